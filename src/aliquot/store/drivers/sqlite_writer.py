"""The one thread that writes to the database: group commit, and recovery from disk errors.

Writes that arrive during a commit share the next one, so that its fsync, which is nearly the whole cost of a durable
write, is paid once per batch. When a batch fails, its writes are retried one by one, so that one bad write does not
fail the others.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aliquot.errors import PlatformError, Unavailable
from aliquot.store.drivers import sqlite_database
from aliquot.store.object_table import Entry, ObjectTable

T = TypeVar("T")

BATCH = 256  # a larger batch would delay its first write
_TRIM_EVERY = 1_000
# Called on the event loop with the committed entries, in order, before the callers get their results.
Publish = Callable[[list[Entry]], None]


@dataclass(slots=True)
class _Write:
    work: Callable[[ObjectTable], Any]
    result: asyncio.Future[Any]


class Writer:
    """Runs writes against the tables of one file. A write that has returned is on the disk."""

    def __init__(self, path: Path, publish: Publish, *, log_length: int, synchronous: str) -> None:
        self._path = path
        self._publish = publish
        self._log_length = log_length
        self._synchronous = synchronous
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        tables = self._open()
        self._tables: sqlite_database.Tables | None = (
            tables  # None after a disk error: the next write opens the file again
        )
        self.revision = self._trimmed = self._delivered = tables.revision  # at the start
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def do(self, work: Callable[[ObjectTable], T]) -> T:
        result: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Write(work, result))
        # A queued write may be committed even if its caller is cancelled.
        return await asyncio.shield(result)

    async def close(self) -> None:
        """Completes queued writes, then closes the file."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        if self._tables is not None:
            self._tables.db.close()

    def _open(self) -> sqlite_database.Tables:
        return sqlite_database.Tables(sqlite_database.open_writer(self._path, self._synchronous))

    # --- on the thread

    def _run(self) -> None:
        """Takes all queued writes, commits them together, returns their results, and repeats."""
        while True:
            batch, last = self._take()
            if batch:
                self._commit(batch)
            if last:
                return

    def _take(self) -> tuple[list[_Write], bool]:
        write = self._queue.get()
        batch: list[_Write] = []
        while write is not None:
            batch.append(write)
            if len(batch) == BATCH:
                return batch, False
            try:
                write = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[_Write]) -> None:
        try:
            entries, results = self._transact(batch)
        except Exception as exc:  # noqa: BLE001  # the thread must survive every write
            error = sqlite_database.translated(exc, self._path) if isinstance(exc, (sqlite3.Error, OSError)) else exc
            self._recover()
            if len(batch) == 1 or isinstance(error, Unavailable):
                # After a failed sync the state of the disk is unknown: report it, and let the caller read again.
                self._respond(self._undelivered(), [(write, error) for write in batch])
                return
            for write in batch:
                self._commit([write])
            return
        self._respond(entries, results)

    def _transact(self, batch: list[_Write]) -> tuple[list[Entry], list[tuple[_Write, Any]]]:
        tables = self._tables = self._tables or self._open()
        results: list[tuple[_Write, Any]] = []
        tables.db.execute("BEGIN IMMEDIATE")
        for write in batch:
            try:
                results.append((write, write.work(tables)))
            except PlatformError as exc:
                results.append((write, exc))
        if tables.revision - self._trimmed >= _TRIM_EVERY:
            tables.trim(self._log_length)
        entries = tables.entries
        if entries and entries[0].revision > self._delivered + 1:
            # A commit that was reported as failed had reached the disk. Read its entries before our own commit, after
            # which nothing may fail.
            entries = sqlite_database.newest(tables.db, self._delivered)
        tables.db.execute("COMMIT")
        if tables.revision - self._trimmed >= _TRIM_EVERY:
            self._trimmed = tables.revision
        tables.entries = []
        return entries, results

    def _recover(self) -> None:
        """Opens the file again: the state of a failed connection is unknown."""
        broken, self._tables = self._tables, None
        with suppress(sqlite3.Error):  # the connection is discarded anyway
            if broken is not None:
                broken.db.close()
        with suppress(sqlite3.Error, OSError):  # still failing: the next write tries again and reports the error
            self._tables = self._open()

    def _undelivered(self) -> list[Entry]:
        """Changes that are in the file although their commit was reported as failed. Watchers must see them too."""
        try:
            return sqlite_database.newest(self._tables.db, self._delivered) if self._tables else []
        except sqlite3.Error:
            return []  # the next successful commit delivers them, because the log is ordered

    def _respond(self, entries: list[Entry], results: list[tuple[_Write, Any]]) -> None:
        if entries:
            self._delivered = entries[-1].revision

        def deliver() -> None:
            self._publish(entries)
            for write, result in results:
                if write.result.done():
                    continue
                if isinstance(result, BaseException):
                    write.result.set_exception(result)
                else:
                    write.result.set_result(result)

        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            return  # the event loop has ended, and with it every caller
