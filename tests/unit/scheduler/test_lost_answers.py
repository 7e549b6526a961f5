"""Nobody gets a device of which we do not know for sure that it is free: not when an answer was lost, and not when we
take over from somebody who decided a moment ago."""

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
from support.stores.running import running, until

X = "x-0-0"


class Late:
    """A way to the store on which news of one pod does not arrive, and answers to its binding may be lost."""

    def __init__(self, driver: StoreDriver) -> None:
        self._driver = driver
        self.loses = False
        self.deaf = False
        self.listed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def patch(self, kind: AnyKind, name: str, namespace: str, change: Any, **options: Any) -> Document:
        binds = "nodeName" in change.get("spec", {})
        done = await self._driver.patch(kind, name, namespace, change, **options)
        if binds and name == X and self.loses:
            raise Unavailable("the answer was lost")
        return done

    async def watch(self, kind: AnyKind, namespace: str | None = None, **options: Any) -> AsyncIterator[Change]:
        async for change in self._driver.watch(kind, namespace, **options):
            if not (self.deaf and change.document is not None and change.document.name == X):
                yield change

    async def list(self, kind: AnyKind, *asked: Any, **options: Any) -> Listing:
        self.listed += kind.name == "Pod"
        return await self._driver.list(kind, *asked, **options)


async def crowded(place: StoreNamespace) -> tuple[World, Late, Informers, Scheduler]:
    """One GPU, and a job that waits for it."""
    world, late = World(place), Late(place.driver)
    await world.node("n1", 1)
    await world.project("a", 4)
    await world.submit("x", pod=True)
    informers = Informers(late)  # type: ignore[arg-type]
    return world, late, informers, Scheduler(Store(late), informers)  # type: ignore[arg-type]


async def considered(world: World) -> None:
    """Until the notebook has a place, or is promised the one that a job must leave for it."""

    async def done() -> bool:
        pod = await world.pod("notebook")
        return pod is not None and (bool(pod.spec.node_name) or nomination_of(pod) is not None)

    await until(done)


async def test_place_of_a_lost_answer(embedded: StoreNamespace) -> None:
    """A binding whose answer was lost may have been done: until that is known its device is nobody else's."""
    world, late, informers, scheduler = await crowded(embedded)
    late.loses = late.deaf = True
    async with running(*(informer.run() for informer in informers), scheduler.run()):
        await world.bound("x")
        await world.submit("notebook", pod=True, type="interactive")
        await considered(world)
    assert not await world.node_of("notebook")


async def test_binding_that_was_not_done(embedded: StoreNamespace) -> None:
    """Where only the request was lost the device is free, and the job gets it."""
    world, late, informers, scheduler = await crowded(embedded)
    failed = asyncio.Event()

    async def fails_once(*asked: Any, **options: Any) -> Document:
        if "nodeName" in asked[3].get("spec", {}) and not failed.is_set():
            failed.set()
            raise Unavailable("the request was lost")
        return await embedded.driver.patch(*asked, **options)

    late.patch = fails_once  # type: ignore[method-assign]
    async with running(*(informer.run() for informer in informers), scheduler.run()):
        await world.bound("x")
    assert failed.is_set()


async def test_takes_over_from_what_is(embedded: StoreNamespace) -> None:
    """What the last leader gave out is taken, also where we have not heard of it yet."""
    world, late, informers, scheduler = await crowded(embedded)
    async with running(*(informer.run() for informer in informers)):
        await informers.wait()
        late.deaf = True
        given = shares_text([DeviceShare(index=0, milli=1000)])
        await embedded.driver.patch(
            POD, X, "runai-a", {"spec": {"nodeName": "n1"}, "metadata": {"annotations": {labels.DEVICES: given}}}
        )
        await world.submit("notebook", pod=True, type="interactive")
        before = late.listed
        async with running(scheduler.run()):

            async def decided() -> bool:
                return late.listed > before + 1 or bool(await world.node_of("notebook"))

            await until(decided)
            late.deaf = False
            await embedded.driver.patch(POD, X, "runai-a", {"metadata": {"labels": {"news": "again"}}})
            await considered(world)
    assert not await world.node_of("notebook")
