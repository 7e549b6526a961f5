"""Who is moved has its new place for sure, whoever comes meanwhile."""

from __future__ import annotations

from aliquot.api import Metadata, Placement, SchedulingPolicy
from aliquot.api.scheduling_policy import SchedulingPolicySpec
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.stores.running import until


async def scattered(place: StoreNamespace) -> World:
    """Two nodes of two GPUs, with one job on each."""
    world = World(place)
    await world.node("n1", 2)
    await world.node("n2", 2)
    await world.project("a", 4)
    spread = SchedulingPolicySpec(placement=Placement(gpu="spread"))
    policy = await world.store.create(SchedulingPolicy(metadata=Metadata(name="p"), spec=spread))
    async with world.living():
        await world.submit("one")
        await world.submit("two")
        await world.runs("one", "two")
    await world.store.delete(policy)
    assert {await world.node_of("one"), await world.node_of("two")} == {"n1", "n2"}
    return world


async def stopped(world: World) -> str:
    """The job that was told to move."""
    found: list[str] = []

    async def some() -> bool:
        pods = [(name, await world.pod(name)) for name in ("one", "two")]
        found[:] = [name for name, pod in pods if pod is not None and pod.metadata.deleted is not None]
        return bool(found)

    await until(some)
    return found[0]


async def test_the_new_place_is_held(embedded: StoreNamespace) -> None:
    """A job that comes while another is on its way to another node does not get the GPU there, neither while the
    old pod stops nor when it has gone."""
    world = await scattered(embedded)
    async with world.living(holds=True):
        await world.submit("wide", 2000)
        moved = await stopped(world)
        await world.submit("late")
        await world.waits("late")
        assert world.kubelet is not None
        world.kubelet.release()
        await world.runs("one", "two", "wide")
        await world.waits("late")
    assert await world.node_of("one") == await world.node_of("two")
    history = (await world.workload(moved)).status.interruptions
    assert [one.reason for one in history] == ["moved"]


async def test_a_job_that_is_deleted_on_its_way(embedded: StoreNamespace) -> None:
    """Its new place is for others then."""
    world = await scattered(embedded)
    async with world.living(holds=True):
        await world.submit("wide", 2000)
        moved = await stopped(world)
        await world.submit("late")
        await world.waits("late")
        await world.store.delete(await world.workload(moved))
        await world.bound("late")
