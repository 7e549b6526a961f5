"""An interactive workload does not wait until a long plan for other jobs is written."""

from __future__ import annotations

import asyncio
from typing import Any

from aliquot.store.driver import AnyKind, Document, StoreDriver
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace

JOBS = 300  # several times as many as are written at once


class SlowDriver:
    """A store driver with slow bindings. At the twentieth of them a notebook is submitted."""

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
    """It is bound long before the last of many jobs, and all of them are bound once."""
    world = World(embedded)
    for number in range(5):
        await world.node(f"n{number}", 64)
    await world.project("a", 320)
    for number in range(JOBS):
        await world.submit(f"j{number}", 1000, pod=True)
    slow = SlowDriver(embedded.driver, world)
    async with world.scheduler(slow):  # type: ignore[arg-type]
        await world.until_bound("notebook", *(f"j{number}" for number in range(JOBS)))
    assert slow.bound.index("notebook-0-0") < JOBS / 2
    assert len(slow.bound) == JOBS + 1, "a pod was bound twice"
