"""A local cache of the objects of one kind, kept current by list and watch.

An informer lists, then watches from the list's version. When the watch has expired, it lists again, compares with the
cache, and notifies its listeners of every difference as if it had been watched. After a broken connection it resumes
from the last version, with growing, jittered pauses.

The `read` function decides what is cached: the typed object, or only a few of its fields.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, ItemsView, Iterator
from typing import Any, Generic, TypeVar

import structlog

from aliquot.api import KINDS, decode
from aliquot.errors import Expired, Invalid, PlatformError
from aliquot.store.driver import AnyKind, Change, Document, StoreDriver

T = TypeVar("T")
Key = tuple[str, str]  # namespace, name
# Called with the old and the new value; None means that the object did not exist, or no longer exists.
Listener = Callable[[Key, T | None, T | None], None]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
log = structlog.get_logger()


class Informer(Generic[T]):
    """Caches `read(document)` for each object of a kind. Needs `run` in a task; complete once `synced` is set."""

    def __init__(
        self, driver: StoreDriver, kind: AnyKind, read: Callable[[Document], T], *, labels: str = "", fields: str = ""
    ) -> None:
        self.synced = asyncio.Event()
        self._driver = driver
        self._kind = kind
        self._read = read
        self._labels, self._fields = labels, fields
        self._objects: dict[Key, T] = {}
        self._versions: dict[Key, str] = {}
        self._listeners: list[Listener[T]] = []

    def listen(self, listener: Listener[T]) -> None:
        """Calls the listener for every cached object now, and for every change from now on."""
        self._listeners.append(listener)
        for key, current in self._objects.items():
            listener(key, None, current)

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get((namespace, name))

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def items(self) -> ItemsView[Key, T]:
        return self._objects.items()

    def __len__(self) -> int:
        return len(self._objects)

    async def run(self) -> None:
        """Runs until cancelled."""
        version, pause = "", _FIRST_PAUSE
        while True:
            try:
                if not version:
                    version = await self._relist()
                    self.synced.set()
                watch = self._driver.watch(self._kind, version=version, labels=self._labels, fields=self._fields)
                async for change in watch:
                    self._apply(change)
                    version, pause = change.version, _FIRST_PAUSE
            except Expired:
                version = ""
                continue
            except PlatformError as exc:
                log.warning("watch interrupted", kind=self._kind.plural, error=str(exc))
            # Full jitter spreads the reconnects of many informers to one server.
            await asyncio.sleep(random.uniform(0, pause))  # noqa: S311  # not a secret
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _relist(self) -> str:
        listing = await self._driver.list(self._kind, labels=self._labels, fields=self._fields)
        documents = {(document.namespace, document.name): document for document in listing.items}
        for key in [key for key in self._objects if key not in documents]:
            self._set(key, None, "")
        for key, document in documents.items():
            if self._versions.get(key) != document.version:
                self._store_document(key, document)
        return listing.version

    def _apply(self, change: Change) -> None:
        if change.document is None:
            return
        key = (change.document.namespace, change.document.name)
        if change.type == "DELETED":
            self._set(key, None, "")
        else:
            self._store_document(key, change.document)

    def _store_document(self, key: Key, document: Document) -> None:
        try:
            self._set(key, self._read(document), document.version)
        except Invalid as exc:
            # Written without our validation, for example with kubectl. Treat it as absent, so that one object does not
            # stop the informer.
            log.error("object cannot be read", kind=self._kind.plural, name=key[1], namespace=key[0], error=str(exc))
            self._set(key, None, "")

    def _set(self, key: Key, new: T | None, version: str) -> None:
        old = self._objects.pop(key, None)
        self._versions.pop(key, None)
        if new is not None:
            self._objects[key], self._versions[key] = new, version
        if old is None and new is None:
            return
        for listener in self._listeners:
            listener(key, old, new)


class Informers:
    """The shared informers of a process: one per type, so that each object is decoded and cached once."""

    def __init__(self, driver: StoreDriver) -> None:
        self._driver = driver
        self._by_type: dict[type, Informer[Any]] = {}

    def of(self, cls: type[T]) -> Informer[T]:
        """The informer of a type. Only informers requested before the process starts them are run."""
        if cls not in self._by_type:
            self._by_type[cls] = typed(self._driver, cls)
        return self._by_type[cls]

    def __iter__(self) -> Iterator[Informer[Any]]:
        return iter(self._by_type.values())

    @property
    def synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self)

    async def wait(self) -> None:
        for informer in list(self):
            await informer.synced.wait()


def typed(driver: StoreDriver, cls: type[T], *, labels: str = "", fields: str = "") -> Informer[T]:
    """An informer that caches the decoded objects."""
    return Informer(driver, KINDS.of(cls), lambda document: decode(cls, document.data), labels=labels, fields=fields)
