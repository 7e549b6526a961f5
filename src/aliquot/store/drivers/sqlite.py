"""The store in one SQLite file, for the embedded mode.

    write ──> queue ──> writer thread ── one transaction and one fsync for all queued writes ──> results, watchers
    read  ──> reader threads ── snapshot reads, never blocked by the writer (WAL)

A returned write is durable: the writer commits with a full sync before it answers (see sqlite_writer.py).

Watchers read from memory. A watcher that is further behind, or that resumes after a restart, reads from the log table.
A watcher that is older than the log table gets `Expired`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from aliquot.api import Json
from aliquot.errors import Unavailable
from aliquot.store import object_table, selectors
from aliquot.store.driver import AnyKind, Change, Document, Listing
from aliquot.store.drivers import sqlite_database
from aliquot.store.drivers.sqlite_writer import Writer
from aliquot.store.object_table import Entry, ObjectTable
from aliquot.store.watch_log import BOOKMARK_SECONDS, WatchLog, expired

T = TypeVar("T")

LOG_LENGTH = 100_000  # changes in the log table; at most about 150 MB of workloads
RECENT = 1_000  # changes of each kind that stay in memory
READERS = 2


class SqliteDriver:
    """Stores objects in one file. No other process may have it open for writing (serve.py holds the lock)."""

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
        """Opens or creates the file. Requires a running event loop."""
        self._path = path
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._closed = False
        try:
            sqlite_database.inspect(path)
            self._writer = Writer(path, self._published, log_length=log_length, synchronous=synchronous)
        except (sqlite3.Error, OSError) as exc:
            raise sqlite_database.translated(exc, path) from exc
        self._log = WatchLog(revision=self._writer.revision, length=RECENT, bookmark_seconds=bookmark_seconds)
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")

    def _published(self, entries: Sequence[Entry]) -> None:
        self._log.append(entries)

    # --- reads

    async def get(self, kind: AnyKind, name: str, namespace: str = "") -> Document:
        scope = namespace if kind.namespaced else ""
        document = await self._read(lambda db: sqlite_database.find(db, kind.name, scope, name))
        if document is None:
            raise object_table.not_found(kind, name, namespace)
        return document

    async def list(self, kind: AnyKind, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Listing:
        selector = selectors.parse(kind, labels, fields)

        def snapshot(db: sqlite3.Connection) -> Listing:
            with sqlite_database.reading(db):
                items = [
                    document
                    for document in sqlite_database.listed(db, kind.name, namespace, selector.hints())
                    if not selector or selector.matches(selectors.selectable_fields(kind, document.data))
                ]
                return Listing(items, str(sqlite_database.revision(db)))

        return await self._read(snapshot)

    async def count(self, kind: AnyKind) -> int:
        return await self._read(lambda db: sqlite_database.count(db, kind.name))

    def watch(
        self, kind: AnyKind, namespace: str | None = None, *, version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Change]:
        selector = selectors.parse(kind, labels, fields)
        return self._log.follow(kind, namespace, version, selector, self._older, self._newest)

    async def check(self) -> None:
        if not self._writer.alive:
            raise Unavailable("the store's writer has stopped", hint="restart the server; its log says why")
        await self._read(lambda db: db.execute("SELECT 1").fetchone())

    # --- writes

    async def create(self, kind: AnyKind, document: Document) -> Document:
        return await self._write(lambda table: object_table.create(table, kind, document, self._clock()))

    async def update(self, kind: AnyKind, document: Document) -> Document:
        return await self._write(lambda table: object_table.update(table, kind, document, status=False))

    async def update_status(self, kind: AnyKind, document: Document) -> Document:
        return await self._write(lambda table: object_table.update(table, kind, document, status=True))

    async def patch(
        self, kind: AnyKind, name: str, namespace: str, patch: Json, *, version: str = "", status: bool = False
    ) -> Document:
        return await self._write(
            lambda table: object_table.patch(table, kind, name, namespace, patch, version=version, status=status)
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
        return await self._write(
            lambda table: object_table.delete(
                table, kind, name, namespace, version=version, uid=uid, grace_seconds=grace_seconds, now=self._clock()
            )
        )

    async def close(self) -> None:
        """Completes queued writes, then closes the file and ends the watches."""
        if self._closed:
            return
        self._closed = True
        await self._writer.close()
        self._log.close()
        self._readers.shutdown(wait=True)
        for connection in self._connections:
            connection.close()

    # --- threads

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise Unavailable("the store is closed")

        def run() -> T:
            db = getattr(self._local, "db", None)
            try:
                if db is None:
                    db = self._local.db = sqlite_database.open_reader(self._path)
                    self._connections.append(db)
                return work(db)
            except sqlite3.Error as exc:
                raise sqlite_database.translated(exc, self._path) from exc

        return await self._loop.run_in_executor(self._readers, run)

    async def _older(self, kind: str, after: int, upto: int) -> Sequence[Entry]:
        def snapshot(db: sqlite3.Connection) -> Sequence[Entry]:
            # One transaction: a trim between the two queries would leave an unnoticed gap.
            with sqlite_database.reading(db):
                if after < sqlite_database.oldest(db):
                    raise expired(after)
                return sqlite_database.logged(db, kind, after, upto)

        return await self._read(snapshot)

    async def _newest(self) -> int:
        # A list may have read a commit that has not reached the watch log yet.
        return await self._read(sqlite_database.revision)

    async def _write(self, work: Callable[[ObjectTable], T]) -> T:
        if self._closed:
            raise Unavailable("the store is closed")
        return await self._writer.do(work)
