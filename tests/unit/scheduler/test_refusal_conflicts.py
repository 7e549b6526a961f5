"""Refusals are written with the version they were decided from, and again where that version was old."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aliquot.api import Workload
from aliquot.store.driver import AnyKind, Document, StoreDriver
from aliquot.store.typed_store import Store
from aliquot.workload_status import Reconciled, WorkloadStatusWriter
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace


class OvertakenDriver:
    """Another writer changes a workload's status just before the scheduler writes its first refusals."""

    def __init__(self, driver: StoreDriver) -> None:
        self._driver = driver
        self.overtaken = False
        self.versions: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def patch(self, kind: AnyKind, name: str, namespace: str, change: Any, **options: Any) -> Document:
        if kind.name == "Workload":
            self.versions.append(options.get("version", ""))
            if not self.overtaken:
                self.overtaken = True
                seen = await Store(self._driver).get(Workload, name, namespace)
                status = replace(seen.status, message="written meanwhile")
                await WorkloadStatusWriter(Store(self._driver)).write(seen, Reconciled(status))
        return await self._driver.patch(kind, name, namespace, change, **options)


async def test_a_refusal_that_was_overtaken_is_written_again(embedded: StoreNamespace) -> None:
    """The status of the other writer stays, and the next cycle adds the refusals."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 4)
    await world.submit("x", gpu=2000, pod=True)
    driver = OvertakenDriver(embedded.driver)
    async with world.scheduler(driver):  # type: ignore[arg-type]
        await world.until_refused("x")

    assert (await world.workload("x")).status.message == "written meanwhile"
    assert len(driver.versions) == 2
    assert all(driver.versions)
