"""The store in memory: the reference for the other drivers, used by tests.

It gives every guarantee of store.driver except durability.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

from aliquot.api import Json
from aliquot.store import object_table, selectors
from aliquot.store.driver import AnyKind, Change, Document, Listing
from aliquot.store.object_table import Entry
from aliquot.store.watch_log import BOOKMARK_SECONDS, WatchLog, no_older_entries


class MemoryDriver:
    """Keeps objects in dictionaries. No call awaits anything, so each is atomic on its event loop."""

    collects_orphans = False

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        log_length: int = 10_000,
        bookmark_seconds: float = BOOKMARK_SECONDS,
    ) -> None:
        self._clock = clock
        self._log = WatchLog(length=log_length, bookmark_seconds=bookmark_seconds)
        self._objects: dict[str, dict[tuple[str, str], Document]] = defaultdict(dict)

    # --- ObjectTable

    def find(self, kind: str, namespace: str, name: str) -> Document | None:
        return self._objects[kind].get((namespace, name))

    def next_revision(self) -> int:
        return self._log.revision + 1

    def apply(self, entry: Entry) -> None:
        kind, namespace, name = object_table.key_of(entry)
        if entry.type == "DELETED":
            del self._objects[kind][namespace, name]
        else:
            self._objects[kind][namespace, name] = entry.document
        self._log.append([entry])

    # --- StoreDriver

    async def get(self, kind: AnyKind, name: str, namespace: str = "") -> Document:
        return object_table.require(self, kind, name, namespace)

    async def list(self, kind: AnyKind, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Listing:
        selector = selectors.parse(kind, labels, fields)
        items = [
            document
            for (own_namespace, _), document in sorted(self._objects[kind.name].items())
            if (namespace is None or own_namespace == namespace)
            and (not selector or selector.matches(selectors.selectable_fields(kind, document.data)))
        ]
        return Listing(items, str(self._log.revision))

    async def count(self, kind: AnyKind) -> int:
        return len(self._objects[kind.name])

    async def create(self, kind: AnyKind, document: Document) -> Document:
        return object_table.create(self, kind, document, self._clock())

    async def update(self, kind: AnyKind, document: Document) -> Document:
        return object_table.update(self, kind, document, status=False)

    async def update_status(self, kind: AnyKind, document: Document) -> Document:
        return object_table.update(self, kind, document, status=True)

    async def patch(
        self, kind: AnyKind, name: str, namespace: str, patch: Json, *, version: str = "", status: bool = False
    ) -> Document:
        return object_table.patch(self, kind, name, namespace, patch, version=version, status=status)

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
        return object_table.delete(
            self, kind, name, namespace, version=version, uid=uid, grace_seconds=grace_seconds, now=self._clock()
        )

    def watch(
        self, kind: AnyKind, namespace: str | None = None, *, version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Change]:
        selector = selectors.parse(kind, labels, fields)
        return self._log.follow(kind, namespace, version, selector, no_older_entries, self._newest)

    async def _newest(self) -> int:
        return self._log.revision

    async def check(self) -> None:
        """Memory is always available."""

    async def close(self) -> None:
        self._log.close()
