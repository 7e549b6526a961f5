"""A place that a pod is leaving is kept for the pod that it was reclaimed for."""

from __future__ import annotations

import pytest

from aliquot import labels
from aliquot.api import Node, Pod
from aliquot.planner import DeviceShare
from aliquot.scheduler.nominations import nomination_of, nomination_text
from support.scheduler.world import V100, World
from support.stores.namespace import POD, StoreNamespace
from support.waiting import eventually


async def borrowed(namespace: StoreNamespace) -> World:
    """One GPU, which is the quota of project b and which project a has borrowed."""
    world = World(namespace)
    await world.node("n1", 1)
    await world.project("a", 0)
    await world.project("b", 1)
    await world.project("c", 0)
    async with world.platform():
        await world.submit("borrower")
        await world.until_running("borrower")
    return world


async def until_nominated(world: World) -> Pod:
    """Returns the owner's pod once it has a nomination."""
    nominated: list[Pod] = []

    async def has_nomination() -> bool:
        pod = await world.pod("owner", "b")
        nominated[:] = [pod] if pod is not None and nomination_of(pod) is not None else []
        return bool(nominated)

    await eventually(has_nomination)
    return nominated[0]


async def test_written_and_honoured(embedded: StoreNamespace) -> None:
    """The nomination is written on the waiting pod, which then starts exactly there."""
    world = await borrowed(embedded)
    async with world.platform(hold_deleted=True):
        await world.submit("owner", project="b")
        assert nomination_of(await until_nominated(world)) == ("n1", (DeviceShare(0, 1000, V100),))
        assert not await world.node_of("owner", "b")
        assert world.kubelet is not None
        world.kubelet.release()
        await world.until_running("owner", project="b")
        assert await world.devices("owner", "b") == ("n1", [0])


async def test_no_other_job_takes_it(embedded: StoreNamespace) -> None:
    """Neither a job that arrives meanwhile nor the evicted job gets the place."""
    world = await borrowed(embedded)
    async with world.platform(hold_deleted=True):
        await world.submit("owner", project="b")
        await until_nominated(world)
        await world.submit("latecomer", project="c")
        await world.until_refused("latecomer", "c")
        assert world.kubelet is not None
        world.kubelet.release()
        await world.until_running("owner", project="b")
        await world.until_refused("latecomer", "c")
        await world.until_refused("borrower")


async def test_survives_a_restart(embedded: StoreNamespace) -> None:
    """A restarted scheduler keeps the nomination without writing it again."""
    world = await borrowed(embedded)
    async with world.platform(hold_deleted=True):
        await world.submit("owner", project="b")
        before = await until_nominated(world)
    async with world.platform(hold_deleted=True):
        await world.submit("latecomer", project="c")
        await world.until_refused("latecomer", "c")  # so a plan was made and applied
        now = await until_nominated(world)
        assert now.metadata.version == before.metadata.version
        assert world.kubelet is not None
        world.kubelet.release()
        await world.until_running("owner", project="b")
    assert not (await world.workload("borrower")).status.interruptions[1:]


async def test_removed(embedded: StoreNamespace) -> None:
    """A nomination that the next plan does not repeat is removed: its node was deleted."""
    world = await borrowed(embedded)
    async with world.platform(hold_deleted=True):
        await world.submit("owner", project="b")
        await until_nominated(world)
        await world.store.delete(await world.store.get(Node, "n1"))

        async def removed() -> bool:
            pod = await world.pod("owner", "b")
            return pod is not None and labels.NOMINATION not in pod.metadata.annotations

        await eventually(removed)


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
async def test_useless_nomination_is_ignored(embedded: StoreNamespace, text: str) -> None:
    """A nomination that cannot be honoured does not keep a pod from a free place."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 1)
    await world.submit("x", pod=True)
    await embedded.driver.patch(POD, "x-0-0", "runai-a", {"metadata": {"annotations": {labels.NOMINATION: text}}})
    async with world.scheduler():
        await world.until_bound("x")
    assert await world.devices("x") == ("n1", [0])
