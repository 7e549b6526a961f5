"""The store in one SQLite file: what the embedded platform runs on.

    caller ──> queue ──> writer thread ── one transaction for all that wait, one fsync ──> answers, watchers
    caller ──> reader threads ── snapshot reads, never blocked by the writer (WAL)

An answer means *on the disk*: the writer commits with a full sync before it says so. That sync is the whole cost of
a write, so writes that arrive while one is under way share the next one (group commit). What a batch could not do
because of one member is done again one by one, so nobody fails for a neighbour.

Watchers are fed from memory; one that lags further behind, or comes back after a restart, is fed from the log table,
and one older than that is told so.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aliquot.errors import PlatformError, Unavailable
from aliquot.store import database, selectors, shelf
from aliquot.store.base import AnyKind, Change, Document, Listing
from aliquot.store.shelf import Entry, Shelf
from aliquot.store.watchlog import BOOKMARK_SECONDS, WatchLog, fell_behind
from aliquot.types.base import Json

T = TypeVar("T")

LOG_LENGTH = 100_000  # changes a watcher may be away for; about 150 MB of workloads at worst
RECENT = 1_000  # of each kind, kept in memory for watchers that keep up
BATCH = 256  # more would make the first of them wait for the last
READERS = 2
_TRIM_EVERY = 1_000


@dataclass(slots=True)
class _Job:
    work: Callable[[Shelf], Any]
    answer: asyncio.Future[Any]


class SqliteBody:
    """A body over one file, which nobody else may have open for writing (serve.py holds the lock)."""

    collects_orphans = False

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        log_length: int = LOG_LENGTH,
        bookmark_seconds: float = BOOKMARK_SECONDS,
        synchronous: str = "FULL",
    ) -> None:
        """Opens the file, or makes it; must be called where an event loop runs."""
        self._path = path
        self._clock = clock
        self._log_length = log_length
        self._synchronous = synchronous
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        try:
            database.inspect(path)
            self._tables = database.Tables(database.open_writer(path, synchronous))
        except sqlite3.Error as exc:
            raise database.translated(exc, path) from exc
        self._oldest = database.oldest(self._tables.db)
        self._trimmed = self._delivered = self._tables.revision
        self._log = WatchLog(revision=self._tables.revision, length=RECENT, bookmark_seconds=bookmark_seconds)
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._writer = threading.Thread(target=self._write, name="store-writer", daemon=True)
        self._writer.start()

    # --- reads

    async def get(self, kind: AnyKind, name: str, namespace: str = "") -> Document:
        place = namespace if kind.namespaced else ""
        found = await self._read(lambda db: database.find(db, kind.name, place, name))
        if found is None:
            raise shelf.not_found(kind, name, namespace)
        return found

    async def list(
        self, kind: AnyKind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        selector = selectors.parse(kind, labels, fields)

        def snapshot(db: sqlite3.Connection) -> Listing:
            db.execute("BEGIN")
            try:
                items = [
                    document
                    for document in database.listed(db, kind.name, namespace)
                    if not selector or selector.matches(selectors.marks_of(kind, document.data))
                ]
                return Listing(items, str(database.revision(db)))
            finally:
                db.execute("COMMIT")

        return await self._read(snapshot)

    async def count(self, kind: AnyKind) -> int:
        return await self._read(lambda db: database.count(db, kind.name))

    def watch(
        self, kind: AnyKind, namespace: str | None = None, *, version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Change]:
        selector = selectors.parse(kind, labels, fields)
        return self._log.follow(kind, namespace, version, selector, self._older)

    async def check(self) -> None:
        if not self._writer.is_alive():
            raise Unavailable("the store's writer has stopped", hint="restart the server; its log says why")
        await self._read(lambda db: db.execute("SELECT 1").fetchone())

    # --- writes

    async def create(self, kind: AnyKind, document: Document) -> Document:
        return await self._do(lambda on: shelf.create(on, kind, document, self._clock()))

    async def update(self, kind: AnyKind, document: Document) -> Document:
        return await self._do(lambda on: shelf.update(on, kind, document, status=False))

    async def update_status(self, kind: AnyKind, document: Document) -> Document:
        return await self._do(lambda on: shelf.update(on, kind, document, status=True))

    async def patch(
        self, kind: AnyKind, name: str, namespace: str, patch: Json, *, version: str = "", status: bool = False
    ) -> Document:
        return await self._do(
            lambda on: shelf.patch(on, kind, name, namespace, patch, version=version, status=status)
        )

    async def delete(
        self,
        kind: AnyKind,
        name: str,
        namespace: str = "",
        *,
        version: str = "",
        uid: str = "",
        grace_seconds: int | None = None,
    ) -> bool:
        return await self._do(
            lambda on: shelf.delete(
                on, kind, name, namespace, version=version, uid=uid, grace_seconds=grace_seconds, now=self._clock()
            )
        )

    async def close(self) -> None:
        """Finish what was asked, then close; watchers end."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._writer.join)
        self._log.close()
        self._readers.shutdown(wait=True)
        for connection in (*self._connections, self._tables.db):
            connection.close()

    # --- how

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise Unavailable("the store is closed")

        def run() -> T:
            db = getattr(self._local, "db", None)
            try:
                if db is None:
                    db = self._local.db = database.open_reader(self._path)
                    self._connections.append(db)
                return work(db)
            except sqlite3.Error as exc:
                raise database.translated(exc, self._path) from exc

        return await self._loop.run_in_executor(self._readers, run)

    async def _older(self, kind: str, after: int, upto: int) -> Sequence[Entry]:
        entries = await self._read(lambda db: database.logged(db, kind, after, upto))
        # Asked after the read: what was trimmed meanwhile may be missing from it.
        if after < self._oldest:
            raise fell_behind(after)
        return entries

    async def _do(self, work: Callable[[Shelf], T]) -> T:
        if self._closed:
            raise Unavailable("the store is closed")
        answer: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(work, answer))
        # Once queued it may happen, whatever becomes of the caller: cancelling must not lose the answer's bookkeeping.
        return await asyncio.shield(answer)

    def _write(self) -> None:
        """The writer thread: take all that waits, commit once, answer all."""
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
            results = self._transact(batch)
        except Exception as exc:  # noqa: BLE001  # the thread must outlive every job
            error = database.translated(exc, self._path) if isinstance(exc, sqlite3.Error) else exc
            self._recover()
            if len(batch) == 1 or isinstance(error, Unavailable):
                # After a failed sync nobody knows what is on the disk: say so, and let the caller look.
                self._answer(self._caught_up(), [(job, error) for job in batch])
                return
            for job in batch:
                self._commit([job])
            return
        entries, self._tables.entries = self._tables.entries, []
        if entries and entries[0].revision > self._delivered + 1:
            entries = self._caught_up()  # a commit that was reported as failed had reached the disk
        self._answer(entries, results)

    def _transact(self, batch: list[_Job]) -> list[tuple[_Job, Any]]:
        tables = self._tables
        results: list[tuple[_Job, Any]] = []
        tables.db.execute("BEGIN IMMEDIATE")
        for job in batch:
            try:
                results.append((job, job.work(tables)))
            except PlatformError as exc:
                results.append((job, exc))
        if tables.revision - self._trimmed >= _TRIM_EVERY:
            tables.trim(self._log_length)
        tables.db.execute("COMMIT")
        if tables.revision - self._trimmed >= _TRIM_EVERY:
            self._trimmed = tables.revision
            self._oldest = max(self._oldest, tables.revision - self._log_length)
        return results

    def _recover(self) -> None:
        """Back to what the file says. A new connection, because a failed one may hold a half-known state."""
        try:
            if self._tables.db.in_transaction:
                self._tables.db.execute("ROLLBACK")
            self._tables.db.close()
        except sqlite3.Error:
            pass  # the connection is given up anyway
        try:
            self._tables = database.Tables(database.open_writer(self._path, self._synchronous))
        except sqlite3.Error:
            # Still failing: keep the old, closed one. Its next use fails and brings us here again.
            self._tables.entries = []

    def _caught_up(self) -> list[Entry]:
        """Changes that are in the file although their commit failed: watchers must see them too."""
        try:
            return database.newest(self._tables.db, self._delivered)
        except sqlite3.Error:
            return []  # the next commit that works brings them along, since the log is in order

    def _answer(self, entries: list[Entry], results: list[tuple[_Job, Any]]) -> None:
        if entries:
            self._delivered = entries[-1].revision

        def deliver() -> None:
            self._log.append(entries)
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
