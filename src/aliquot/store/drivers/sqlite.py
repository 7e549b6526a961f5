"""The store in one SQLite file: what the embedded platform runs on.

    caller ──> queue ──> writer thread ── one transaction for all that wait, one fsync ──> answers, watchers
    caller ──> reader threads ── snapshot reads, never blocked by the writer (WAL)

An answer means *on the disk*: the writer commits with a full sync before it says so (see writer.py).

Watchers are fed from memory; one that lags further behind, or comes back after a restart, is fed from the log table,
and one older than that is told so.
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
from aliquot.store.watch_log import BOOKMARK_SECONDS, WatchLog, fell_behind

T = TypeVar("T")

LOG_LENGTH = 100_000  # changes a watcher may be away for; about 150 MB of workloads at worst
RECENT = 1_000  # of each kind, kept in memory for watchers that keep up
READERS = 2


class SqliteDriver:
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
        place = namespace if kind.namespaced else ""
        found = await self._read(lambda db: sqlite_database.find(db, kind.name, place, name))
        if found is None:
            raise object_table.not_found(kind, name, namespace)
        return found

    async def list(self, kind: AnyKind, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Listing:
        selector = selectors.parse(kind, labels, fields)

        def snapshot(db: sqlite3.Connection) -> Listing:
            with sqlite_database.reading(db):
                items = [
                    document
                    for document in sqlite_database.listed(db, kind.name, namespace, selector.hints())
                    if not selector or selector.matches(selectors.marks_of(kind, document.data))
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
        return await self._do(lambda on: object_table.create(on, kind, document, self._clock()))

    async def update(self, kind: AnyKind, document: Document) -> Document:
        return await self._do(lambda on: object_table.update(on, kind, document, status=False))

    async def update_status(self, kind: AnyKind, document: Document) -> Document:
        return await self._do(lambda on: object_table.update(on, kind, document, status=True))

    async def patch(
        self, kind: AnyKind, name: str, namespace: str, patch: Json, *, version: str = "", status: bool = False
    ) -> Document:
        return await self._do(
            lambda on: object_table.patch(on, kind, name, namespace, patch, version=version, status=status)
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
            lambda on: object_table.delete(
                on, kind, name, namespace, version=version, uid=uid, grace_seconds=grace_seconds, now=self._clock()
            )
        )

    async def close(self) -> None:
        """Finish what was asked, then close; watchers end."""
        if self._closed:
            return
        self._closed = True
        await self._writer.close()
        self._log.close()
        self._readers.shutdown(wait=True)
        for connection in self._connections:
            connection.close()

    # --- how

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
            # One transaction: a trim between the two questions would leave a hole that nobody notices.
            with sqlite_database.reading(db):
                if after < sqlite_database.oldest(db):
                    raise fell_behind(after)
                return sqlite_database.logged(db, kind, after, upto)

        return await self._read(snapshot)

    async def _newest(self) -> int:
        # A list may have read a commit whose news is still on its way to the log.
        return await self._read(sqlite_database.revision)

    async def _do(self, work: Callable[[ObjectTable], T]) -> T:
        if self._closed:
            raise Unavailable("the store is closed")
        return await self._writer.do(work)
