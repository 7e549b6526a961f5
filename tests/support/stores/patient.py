"""A body for tests whose server is killed under them.

A call that breaks off may or may not have happened. This wrapper finds out, as a careful client does: it looks at the
object and repeats the call only if it had no effect. It is exact because each test alone writes its objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from aliquot.api import Json
from aliquot.errors import NotFound, Unavailable
from aliquot.store.driver import AnyKind, Change, Document, Listing, StoreDriver

T = TypeVar("T")


class PatientBody:
    def __init__(self, driver: StoreDriver) -> None:
        self._driver = driver
        self.collects_orphans = driver.collects_orphans
        # Versions this client has been told of: an object at another one was changed by the call that broke off.
        self._told: set[str] = set()
        self._last: dict[tuple[str, str], Document] = {}

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        async with asyncio.timeout(120):
            while True:
                try:
                    return await call()
                except Unavailable:
                    await asyncio.sleep(0.05)

    def _tell(self, document: Document) -> Document:
        self._told.add(document.version)
        self._last[document.namespace, document.name] = document
        return document

    async def get(self, kind: AnyKind, name: str, namespace: str = "") -> Document:
        return self._tell(await self._retry(lambda: self._driver.get(kind, name, namespace)))

    async def list(self, kind: AnyKind, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Listing:
        listing = await self._retry(lambda: self._driver.list(kind, namespace, labels=labels, fields=fields))
        self._told.update(item.version for item in listing.items)
        return listing

    async def count(self, kind: AnyKind) -> int:
        return await self._retry(lambda: self._driver.count(kind))

    async def _look(self, kind: AnyKind, name: str, namespace: str) -> Document | None:
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
        broken = False
        while True:
            try:
                return self._tell(await call())
            except Unavailable:
                broken = True
                found = await self._look(kind, name, namespace)
                if found is not None and found.version not in self._told:
                    return self._tell(found)
            except NotFound:
                if not broken or (namespace, name) not in self._last:
                    raise
                return self._last[namespace, name]  # the call that broke off let go of the last finalizer

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
        broken = False
        while True:
            try:
                gone = await self._driver.delete(
                    kind, name, namespace, version=version, uid=uid, grace_seconds=grace_seconds
                )
                if not gone and (marked := await self._look(kind, name, namespace)) is not None:
                    self._told.add(marked.version)  # or a later call that breaks off would take the mark for its own
                return gone
            except Unavailable:
                broken = True
                found = await self._look(kind, name, namespace)
                if found is not None and found.version not in self._told:
                    self._told.add(found.version)
                    return False
            except NotFound:
                if not broken:
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
