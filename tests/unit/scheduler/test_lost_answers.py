"""No device is given out that may be taken: not when the answer to a binding was lost, and not when a new leader has
not yet seen the last bindings of the previous one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from aliquot import labels
from aliquot.api import DeviceShare, shares_text
from aliquot.errors import Unavailable
from aliquot.scheduler.loop import Scheduler
from aliquot.scheduler.nominations import nomination_of
from aliquot.store.driver import AnyKind, Change, Document, Listing, StoreDriver
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.scheduler.world import World
from support.stores.namespace import POD, StoreNamespace
from support.stores.running import running
from support.waiting import eventually

X = "x-0-0"


class UnreliableDriver:
    """A store driver whose watch can hide one pod, and which can lose the answer to that pod's binding."""

    def __init__(self, driver: StoreDriver) -> None:
        self._driver = driver
        self.loses_answers = False
        self.hides_changes = False
        self.pod_lists = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def patch(self, kind: AnyKind, name: str, namespace: str, change: Any, **options: Any) -> Document:
        binds = "nodeName" in change.get("spec", {})
        document = await self._driver.patch(kind, name, namespace, change, **options)
        if binds and name == X and self.loses_answers:
            raise Unavailable("the answer was lost")
        return document

    async def watch(self, kind: AnyKind, namespace: str | None = None, **options: Any) -> AsyncIterator[Change]:
        async for change in self._driver.watch(kind, namespace, **options):
            if not (self.hides_changes and change.document is not None and change.document.name == X):
                yield change

    async def list(self, kind: AnyKind, *arguments: Any, **options: Any) -> Listing:
        self.pod_lists += kind.name == "Pod"
        return await self._driver.list(kind, *arguments, **options)


async def one_gpu(namespace: StoreNamespace) -> tuple[World, UnreliableDriver, Informers, Scheduler]:
    """One GPU, and a job that waits for it."""
    world, driver = World(namespace), UnreliableDriver(namespace.driver)
    await world.node("n1", 1)
    await world.project("a", 4)
    await world.submit("x", pod=True)
    informers = Informers(driver)  # type: ignore[arg-type]
    return world, driver, informers, Scheduler(Store(driver), informers)  # type: ignore[arg-type]


async def until_planned(world: World) -> None:
    """Until the notebook is bound, or has a nomination for the place of a job that is evicted for it."""

    async def bound_or_nominated() -> bool:
        pod = await world.pod("notebook")
        return pod is not None and (bool(pod.spec.node_name) or nomination_of(pod) is not None)

    await eventually(bound_or_nominated)


async def test_lost_answer_to_a_binding(embedded: StoreNamespace) -> None:
    """A binding whose answer was lost may have happened: until that is known its device is not given out again."""
    world, driver, informers, scheduler = await one_gpu(embedded)
    driver.loses_answers = driver.hides_changes = True
    async with running(*(informer.run() for informer in informers), scheduler.run()):
        await world.until_bound("x")
        await world.submit("notebook", pod=True, type="interactive")
        await until_planned(world)
    assert not await world.node_of("notebook")


async def test_lost_request_to_bind(embedded: StoreNamespace) -> None:
    """When the request itself was lost the device is free, and the pod gets it."""
    world, driver, informers, scheduler = await one_gpu(embedded)
    failed = asyncio.Event()

    async def fails_once(*arguments: Any, **options: Any) -> Document:
        if "nodeName" in arguments[3].get("spec", {}) and not failed.is_set():
            failed.set()
            raise Unavailable("the request was lost")
        return await embedded.driver.patch(*arguments, **options)

    driver.patch = fails_once  # type: ignore[method-assign]
    async with running(*(informer.run() for informer in informers), scheduler.run()):
        await world.until_bound("x")
    assert failed.is_set()


async def test_new_leader_waits_for_existing_bindings(embedded: StoreNamespace) -> None:
    """A device that the previous leader gave out is taken, even before the new leader's informer shows it."""
    world, driver, informers, scheduler = await one_gpu(embedded)
    async with running(*(informer.run() for informer in informers)):
        await informers.wait()
        driver.hides_changes = True
        devices = shares_text([DeviceShare(index=0, milli=1000)])
        await embedded.driver.patch(
            POD, X, "runai-a", {"spec": {"nodeName": "n1"}, "metadata": {"annotations": {labels.DEVICES: devices}}}
        )
        await world.submit("notebook", pod=True, type="interactive")
        before = driver.pod_lists
        async with running(scheduler.run()):

            async def polled_or_bound() -> bool:
                return driver.pod_lists > before + 1 or bool(await world.node_of("notebook"))

            await eventually(polled_or_bound)
            driver.hides_changes = False
            await embedded.driver.patch(POD, X, "runai-a", {"metadata": {"labels": {"news": "again"}}})
            await until_planned(world)
    assert not await world.node_of("notebook")
