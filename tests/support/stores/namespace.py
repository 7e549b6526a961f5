"""What a store test works with: a driver, a namespace of its own, and short calls for common operations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from aliquot.api import KINDS, Json
from aliquot.errors import Unavailable
from aliquot.store.driver import AnyKind, Change, Document, StoreDriver

TEMPLATE = KINDS.named("Template")
DEPARTMENT = KINDS.named("Department")
POD = KINDS.named("Pod")
NAMESPACE = KINDS.named("Namespace")
SECONDS = 60.0  # for a change to arrive while servers are killed; usually it takes milliseconds


def document(kind: AnyKind, name: str, namespace: str = "", spec: Json | None = None, **metadata: Any) -> Document:
    identity = {"name": name, **({"namespace": namespace} if namespace else {})}
    data = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {**identity, **metadata}}
    return Document({**data, **({"spec": spec} if spec is not None else {})})


def changed(current: Document, **parts: Any) -> Document:
    """The document with parts replaced: `spec={...}`, `status={...}`, or any field of the metadata."""
    data = {**current.data, "metadata": {**current.metadata}}
    for key, value in parts.items():
        target = data if key in ("spec", "status") else data["metadata"]
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value
    return Document(data)


class Watcher:
    """Reads a watch, and resumes from the last version when the stream breaks."""

    def __init__(
        self, driver: StoreDriver, kind: AnyKind, namespace: str | None, version: str, **selection: str
    ) -> None:
        self._driver, self._kind, self._namespace = driver, kind, namespace
        self._selection = selection
        self.version = version
        self._stream: AsyncIterator[Change] | None = None

    async def next(self) -> Change:
        async with asyncio.timeout(SECONDS):
            while True:
                change = await self._step()
                if change is not None:
                    self.version = change.version
                    if change.type != "BOOKMARK":
                        return change

    async def _step(self) -> Change | None:
        if self._stream is None:
            self._stream = aiter(
                self._driver.watch(self._kind, self._namespace, version=self.version, **self._selection)
            )
        try:
            return await anext(self._stream)
        except (Unavailable, StopAsyncIteration):
            self._stream = None
            await asyncio.sleep(0.05)
            return None

    async def take(self, count: int) -> list[Change]:
        return [await self.next() for _ in range(count)]

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()  # type: ignore[attr-defined]


class StoreNamespace:
    def __init__(self, driver: StoreDriver, namespace: str, flavour: str) -> None:
        self.driver = driver
        self.namespace = namespace
        self.flavour = flavour
        self._watchers: list[Watcher] = []

    def template(self, name: str = "a", *, description: str = "first", **metadata: Any) -> Document:
        return document(TEMPLATE, name, self.namespace, {"description": description}, **metadata)

    async def create(self, name: str = "a", **parts: Any) -> Document:
        return await self.driver.create(TEMPLATE, self.template(name, **parts))

    async def get(self, name: str = "a") -> Document:
        return await self.driver.get(TEMPLATE, name, self.namespace)

    async def describe(self, current: Document, text: str) -> Document:
        """Changes the spec."""
        return await self.driver.update(TEMPLATE, changed(current, spec={"description": text}))

    async def names(self, **selection: str) -> list[str]:
        return [item.name for item in (await self.driver.list(TEMPLATE, self.namespace, **selection)).items]

    async def delete(self, name: str = "a", **options: Any) -> bool:
        return await self.driver.delete(TEMPLATE, name, self.namespace, **options)

    async def watch(self, kind: AnyKind = TEMPLATE, **selection: str) -> Watcher:
        """A watcher from now on."""
        version = (await self.driver.list(kind, self.namespace)).version
        return self.watch_from(version, kind, **selection)

    def watch_from(self, version: str, kind: AnyKind = TEMPLATE, **selection: str) -> Watcher:
        watcher = Watcher(self.driver, kind, self.namespace, version, **selection)
        self._watchers.append(watcher)
        return watcher

    def unique(self, prefix: str = "d") -> str:
        """A name that no other test uses, for cluster-scoped kinds."""
        return f"{prefix}-{self.namespace}"

    async def close(self) -> None:
        for watcher in self._watchers:
            await watcher.close()
