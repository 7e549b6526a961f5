"""A local picture of one kind, kept up to date.

List, then watch from the list's version. When the watch says it fell behind, list again and *compare*: what is new,
what changed, what is gone. Nothing is guessed, so nothing is missed; and whoever listens hears about each difference
exactly as if it had been watched. A connection that breaks is taken up where it was, with growing, jittered pauses.

What is kept of an object is up to the reader: the typed object, or only the few fields it needs.
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
# Called with what was and what is; None where there is nothing.
Listener = Callable[[Key, T | None, T | None], None]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
log = structlog.get_logger()


class Informer(Generic[T]):
    """What `read` makes of each object of a kind. Run it in a task; look at any time after `synced`."""

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
        """Hear of every change from now on, and of what is already there."""
        self._listeners.append(listener)
        for key, found in self._objects.items():
            listener(key, None, found)

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get((namespace, name))

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def items(self) -> ItemsView[Key, T]:
        return self._objects.items()

    def __len__(self) -> int:
        return len(self._objects)

    async def run(self) -> None:
        """Until cancelled."""
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
            # Full jitter: many readers of one server must not come back at the same moment.
            await asyncio.sleep(random.uniform(0, pause))  # noqa: S311  # not a secret
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _relist(self) -> str:
        listing = await self._driver.list(self._kind, labels=self._labels, fields=self._fields)
        found = {(document.namespace, document.name): document for document in listing.items}
        for key in [key for key in self._objects if key not in found]:
            self._set(key, None, "")
        for key, document in found.items():
            if self._versions.get(key) != document.version:
                self._take(key, document)
        return listing.version

    def _apply(self, change: Change) -> None:
        if change.document is None:
            return
        key = (change.document.namespace, change.document.name)
        if change.type == "DELETED":
            self._set(key, None, "")
        else:
            self._take(key, change.document)

    def _take(self, key: Key, document: Document) -> None:
        try:
            self._set(key, self._read(document), document.version)
        except Invalid as exc:
            # Somebody wrote it past our checks. Others must not suffer: it is as if it were not there.
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
    """One informer a type, shared by everybody in the process, so that an object is read and kept once."""

    def __init__(self, driver: StoreDriver) -> None:
        self._driver = driver
        self._by_type: dict[type, Informer[Any]] = {}

    def of(self, cls: type[T]) -> Informer[T]:
        """Ask before `run`: what is asked for later is not run."""
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
    """An informer that keeps the objects themselves."""
    return Informer(driver, KINDS.of(cls), lambda document: decode(cls, document.data), labels=labels, fields=fields)
