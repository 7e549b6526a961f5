"""The one thread that writes to the database: group commit, and what happens when the disk fails.

Writes queue up while a commit is under way and share the next one, so that the sync, which is the whole cost of a
durable write, is paid once for all of them. What a batch could not do because of one member is done again one by one,
so nobody fails for a neighbour.
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

BATCH = 256  # more would make the first of them wait for the last
_TRIM_EVERY = 1_000
# Called on the event loop with what was committed, in order, before the writers get their answers.
Publish = Callable[[list[Entry]], None]


@dataclass(slots=True)
class _Job:
    work: Callable[[ObjectTable], Any]
    answer: asyncio.Future[Any]


class Writer:
    """Runs jobs against the shelf of one file; an answer means that the job is on the disk."""

    def __init__(self, path: Path, publish: Publish, *, log_length: int, synchronous: str) -> None:
        self._path = path
        self._publish = publish
        self._log_length = log_length
        self._synchronous = synchronous
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        tables = self._open()
        self._tables: sqlite_database.Tables | None = (
            tables  # None: the disk failed, and the next write tries to open again
        )
        self.revision = self._trimmed = self._delivered = tables.revision  # at the start
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def do(self, work: Callable[[ObjectTable], T]) -> T:
        answer: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(work, answer))
        # Once queued it may happen, whatever becomes of the caller.
        return await asyncio.shield(answer)

    async def close(self) -> None:
        """Finish what was asked, then close."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        if self._tables is not None:
            self._tables.db.close()

    def _open(self) -> sqlite_database.Tables:
        return sqlite_database.Tables(sqlite_database.open_writer(self._path, self._synchronous))

    # --- on the thread

    def _run(self) -> None:
        """Take all that waits, commit once, answer all."""
        while True:
            batch, last = self._take()
            if batch:
                self._commit(batch)
            if last:
                return

    def _take(self) -> tuple[list[_Job], bool]:
        job = self._jobs.get()
        batch: list[_Job] = []
        while job is not None:
            batch.append(job)
            if len(batch) == BATCH:
                return batch, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[_Job]) -> None:
        try:
            entries, results = self._transact(batch)
        except Exception as exc:  # noqa: BLE001  # the thread must outlive every job
            error = sqlite_database.translated(exc, self._path) if isinstance(exc, (sqlite3.Error, OSError)) else exc
            self._recover()
            if len(batch) == 1 or isinstance(error, Unavailable):
                # After a failed sync nobody knows what is on the disk: say so, and let the caller look.
                self._answer(self._caught_up(), [(job, error) for job in batch])
                return
            for job in batch:
                self._commit([job])
            return
        self._answer(entries, results)

    def _transact(self, batch: list[_Job]) -> tuple[list[Entry], list[tuple[_Job, Any]]]:
        tables = self._tables = self._tables or self._open()
        results: list[tuple[_Job, Any]] = []
        tables.db.execute("BEGIN IMMEDIATE")
        for job in batch:
            try:
                results.append((job, job.work(tables)))
            except PlatformError as exc:
                results.append((job, exc))
        if tables.revision - self._trimmed >= _TRIM_EVERY:
            tables.trim(self._log_length)
        entries = tables.entries
        if entries and entries[0].revision > self._delivered + 1:
            # A commit that was reported as failed had reached the disk. Asked before ours, which must not fail after.
            entries = sqlite_database.newest(tables.db, self._delivered)
        tables.db.execute("COMMIT")
        if tables.revision - self._trimmed >= _TRIM_EVERY:
            self._trimmed = tables.revision
        tables.entries = []
        return entries, results

    def _recover(self) -> None:
        """Back to what the file says. A new connection, because a failed one may hold a half-known state."""
        broken, self._tables = self._tables, None
        with suppress(sqlite3.Error):  # the connection is given up anyway
            if broken is not None:
                broken.db.close()
        with suppress(sqlite3.Error, OSError):  # still failing: the next write opens it, or is told why not
            self._tables = self._open()

    def _caught_up(self) -> list[Entry]:
        """Changes that are in the file although their commit failed: watchers must see them too."""
        try:
            return sqlite_database.newest(self._tables.db, self._delivered) if self._tables else []
        except sqlite3.Error:
            return []  # the next commit that works brings them along, since the log is in order

    def _answer(self, entries: list[Entry], results: list[tuple[_Job, Any]]) -> None:
        if entries:
            self._delivered = entries[-1].revision

        def deliver() -> None:
            self._publish(entries)
            for job, result in results:
                if job.answer.done():
                    continue
                if isinstance(result, BaseException):
                    job.answer.set_exception(result)
                else:
                    job.answer.set_result(result)

        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            return  # the loop is gone, and with it everybody who waited
