"""Somebody who waits in front of a screen is not kept waiting by a long plan for others."""

from __future__ import annotations

import asyncio
from typing import Any

from aliquot.store.driver import AnyKind, Document, StoreDriver
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace

JOBS = 300  # several times as many as are written at once


class Slow:
    """A way to the store on which every binding takes a moment; at the twentieth somebody submits a notebook."""

    def __init__(self, driver: StoreDriver, world: World) -> None:
        self._driver, self._world = driver, world
        self.bound: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def patch(self, kind: AnyKind, name: str, namespace: str, change: Any, **options: Any) -> Document:
        if "nodeName" in change.get("spec", {}):
            self.bound.append(name)
            if len(self.bound) == 20:
                await self._world.submit("notebook", 1000, pod=True, type="interactive")
            await asyncio.sleep(0.01)
        return await self._driver.patch(kind, name, namespace, change, **options)


async def test_a_notebook_among_many_jobs(embedded: StoreNamespace) -> None:
    """It has its place long before the many jobs have theirs, and all of them get one."""
    world = World(embedded)
    for number in range(5):
        await world.node(f"n{number}", 64)
    await world.project("a", 320)
    for number in range(JOBS):
        await world.submit(f"j{number}", 1000, pod=True)
    slow = Slow(embedded.driver, world)
    async with world.scheduling(slow):  # type: ignore[arg-type]
        await world.bound("notebook", *(f"j{number}" for number in range(JOBS)))
    assert slow.bound.index("notebook-0-0") < JOBS / 2
    assert len(slow.bound) == JOBS + 1, "somebody was bound twice"
