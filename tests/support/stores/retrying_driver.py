"""A store driver for tests whose server is killed during calls.

An interrupted call may or may not have taken effect. This wrapper reads the object and repeats the call only if it had
no effect. That is exact, because each test is the only writer of its objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from aliquot.api import Json
from aliquot.errors import NotFound, Unavailable
from aliquot.store.driver import AnyKind, Change, Document, Listing, StoreDriver

T = TypeVar("T")


class RetryingDriver:
    def __init__(self, driver: StoreDriver) -> None:
        self._driver = driver
        self.collects_orphans = driver.collects_orphans
        # Versions that this client has seen: an object with another version was changed by the interrupted call.
        self._known_versions: set[str] = set()
        self._last_seen: dict[tuple[str, str], Document] = {}

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        async with asyncio.timeout(120):
            while True:
                try:
                    return await call()
                except Unavailable:
                    await asyncio.sleep(0.05)

    def _remember(self, document: Document) -> Document:
        self._known_versions.add(document.version)
        self._last_seen[document.namespace, document.name] = document
        return document

    async def get(self, kind: AnyKind, name: str, namespace: str = "") -> Document:
        return self._remember(await self._retry(lambda: self._driver.get(kind, name, namespace)))

    async def list(self, kind: AnyKind, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Listing:
        listing = await self._retry(lambda: self._driver.list(kind, namespace, labels=labels, fields=fields))
        self._known_versions.update(item.version for item in listing.items)
        return listing

    async def count(self, kind: AnyKind) -> int:
        return await self._retry(lambda: self._driver.count(kind))

    async def _read(self, kind: AnyKind, name: str, namespace: str) -> Document | None:
        try:
            return await self._retry(lambda: self._driver.get(kind, name, namespace))
        except NotFound:
            return None

    async def create(self, kind: AnyKind, document: Document) -> Document:
        return await self._write(kind, document.name, document.namespace, lambda: self._driver.create(kind, document))

    async def update(self, kind: AnyKind, document: Document) -> Document:
        return await self._write(kind, document.name, document.namespace, lambda: self._driver.update(kind, document))

    async def update_status(self, kind: AnyKind, document: Document) -> Document:
        return await self._write(
            kind, document.name, document.namespace, lambda: self._driver.update_status(kind, document)
        )

    async def patch(
        self, kind: AnyKind, name: str, namespace: str, patch: Json, *, version: str = "", status: bool = False
    ) -> Document:
        return await self._write(
            kind,
            name,
            namespace,
            lambda: self._driver.patch(kind, name, namespace, patch, version=version, status=status),
        )

    async def _write(
        self, kind: AnyKind, name: str, namespace: str, call: Callable[[], Awaitable[Document]]
    ) -> Document:
        interrupted = False
        while True:
            try:
                return self._remember(await call())
            except Unavailable:
                interrupted = True
                stored = await self._read(kind, name, namespace)
                if stored is not None and stored.version not in self._known_versions:
                    return self._remember(stored)
            except NotFound:
                if not interrupted or (namespace, name) not in self._last_seen:
                    raise
                return self._last_seen[namespace, name]  # the interrupted call removed the last finalizer

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
        interrupted = False
        while True:
            try:
                removed = await self._driver.delete(
                    kind, name, namespace, version=version, uid=uid, grace_seconds=grace_seconds
                )
                if not removed and (marked := await self._read(kind, name, namespace)) is not None:
                    self._known_versions.add(
                        marked.version
                    )  # otherwise a later interrupted call would take the mark for its own
                return removed
            except Unavailable:
                interrupted = True
                stored = await self._read(kind, name, namespace)
                if stored is not None and stored.version not in self._known_versions:
                    self._known_versions.add(stored.version)
                    return False
            except NotFound:
                if not interrupted:
                    raise
                return True

    def watch(
        self, kind: AnyKind, namespace: str | None = None, *, version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Change]:
        return self._driver.watch(kind, namespace, version=version, labels=labels, fields=fields)

    async def check(self) -> None:
        await self._retry(self._driver.check)

    async def close(self) -> None:
        await self._driver.close()
