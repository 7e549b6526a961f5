"""A place that somebody is leaving belongs to whom it was freed for, whatever happens meanwhile."""

from __future__ import annotations

import pytest

from aliquot import labels
from aliquot.api import Node, Pod
from aliquot.planner import DeviceShare
from aliquot.scheduler.nominations import nomination_of, nomination_text
from support.scheduler.world import V100, World
from support.stores.namespace import POD, StoreNamespace
from support.stores.running import until


async def lent(place: StoreNamespace) -> World:
    """Two nodes with one GPU each; project a has borrowed that of project b, and holds it although asked to leave."""
    world = World(place)
    await world.node("n1", 1)
    await world.project("a", 0)
    await world.project("b", 1)
    await world.project("c", 0)
    async with world.living():
        await world.submit("borrower")
        await world.runs("borrower")
    return world


async def promised(world: World) -> Pod:
    """Until the owner's pod has its promise."""
    found: list[Pod] = []

    async def is_promised() -> bool:
        pod = await world.pod("owner", "b")
        found[:] = [pod] if pod is not None and nomination_of(pod) is not None else []
        return bool(found)

    await until(is_promised)
    return found[0]


async def test_written_and_honoured(embedded: StoreNamespace) -> None:
    """Who waits for one who is leaving has the place in writing, and starts exactly there."""
    world = await lent(embedded)
    async with world.living(holds=True):
        await world.submit("owner", project="b")
        assert nomination_of(await promised(world)) == ("n1", (DeviceShare(0, 1000, V100),))
        assert not await world.node_of("owner", "b")
        assert world.kubelet is not None
        world.kubelet.release()
        await world.runs("owner", project="b")
        assert await world.devices("owner", "b") == ("n1", [0])


async def test_nobody_else_takes_it(embedded: StoreNamespace) -> None:
    """Who comes meanwhile, or was stopped for it, does not get the place."""
    world = await lent(embedded)
    async with world.living(holds=True):
        await world.submit("owner", project="b")
        await promised(world)
        await world.submit("thief", project="c")
        await world.waits("thief", "c")
        assert world.kubelet is not None
        world.kubelet.release()
        await world.runs("owner", project="b")
        await world.waits("thief", "c")
        await world.waits("borrower")


async def test_survives_a_restart(embedded: StoreNamespace) -> None:
    """The next scheduler finds the promise and keeps it, without a word."""
    world = await lent(embedded)
    async with world.living(holds=True):
        await world.submit("owner", project="b")
        before = await promised(world)
    async with world.living(holds=True):
        await world.submit("thief", project="c")
        await world.waits("thief", "c")  # so a plan was made and carried out
        now = await promised(world)
        assert now.metadata.version == before.metadata.version
        assert world.kubelet is not None
        world.kubelet.release()
        await world.runs("owner", project="b")
    assert not (await world.workload("borrower")).status.interruptions[1:]


async def test_taken_back(embedded: StoreNamespace) -> None:
    """A promise that no plan repeats is taken back: its node is gone."""
    world = await lent(embedded)
    async with world.living(holds=True):
        await world.submit("owner", project="b")
        await promised(world)
        await world.store.delete(await world.store.get(Node, "n1"))

        async def taken_back() -> bool:
            pod = await world.pod("owner", "b")
            return pod is not None and labels.NOMINATION not in pod.metadata.annotations

        await until(taken_back)


@pytest.mark.parametrize(
    "text",
    [
        nomination_text("elsewhere", [DeviceShare(0, 1000, V100)]),
        nomination_text("n1", [DeviceShare(7, 1000, V100)]),
        nomination_text("n1", []),
        "nonsense",
        '{"node": "n1", "shares": [["x", 1, 2]]}',
    ],
    ids=["no such node", "no such GPU", "no GPU", "unreadable", "no number"],
)
async def test_never_in_the_way(embedded: StoreNamespace, text: str) -> None:
    """A promise that cannot be kept does not keep a pod from a place that is free."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 1)
    await world.submit("x", pod=True)
    await embedded.driver.patch(POD, "x-0-0", "runai-a", {"metadata": {"annotations": {labels.NOMINATION: text}}})
    async with world.scheduling():
        await world.bound("x")
    assert await world.devices("x") == ("n1", [0])
