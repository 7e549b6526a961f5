"""The new place of a job that is being moved is held for it."""

from __future__ import annotations

from aliquot.api import Metadata, Placement, SchedulingPolicy
from aliquot.api.scheduling_policy import SchedulingPolicySpec
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.waiting import eventually


async def spread_out(namespace: StoreNamespace) -> World:
    """Two nodes of two GPUs, with one job on each."""
    world = World(namespace)
    await world.node("n1", 2)
    await world.node("n2", 2)
    await world.project("a", 4)
    spread = SchedulingPolicySpec(placement=Placement(gpu="spread"))
    policy = await world.store.create(SchedulingPolicy(metadata=Metadata(name="p"), spec=spread))
    async with world.platform():
        await world.submit("one")
        await world.submit("two")
        await world.until_running("one", "two")
    await world.store.delete(policy)
    assert {await world.node_of("one"), await world.node_of("two")} == {"n1", "n2"}
    return world


async def until_one_is_moved(world: World) -> str:
    """Returns the job that is stopped in order to move."""
    moved: list[str] = []

    async def is_stopping() -> bool:
        pods = [(name, await world.pod(name)) for name in ("one", "two")]
        moved[:] = [name for name, pod in pods if pod is not None and pod.metadata.deleted is not None]
        return bool(moved)

    await eventually(is_stopping)
    return moved[0]


async def test_new_place_is_held(embedded: StoreNamespace) -> None:
    """A job submitted during a move does not get the GPU that the moving job will use, neither while the old pod stops
    nor when it is gone."""
    world = await spread_out(embedded)
    async with world.platform(hold_deleted=True):
        await world.submit("wide", 2000)
        moved = await until_one_is_moved(world)
        await world.submit("late")
        await world.until_refused("late")
        assert world.kubelet is not None
        world.kubelet.release()
        await world.until_running("one", "two", "wide")
        await world.until_refused("late")
    assert await world.node_of("one") == await world.node_of("two")
    history = (await world.workload(moved)).status.interruptions
    assert [interruption.reason for interruption in history] == ["moved"]


async def test_job_deleted_during_its_move(embedded: StoreNamespace) -> None:
    """The new place becomes free for other jobs."""
    world = await spread_out(embedded)
    async with world.platform(hold_deleted=True):
        await world.submit("wide", 2000)
        moved = await until_one_is_moved(world)
        await world.submit("late")
        await world.until_refused("late")
        await world.store.delete(await world.workload(moved))
        await world.until_bound("late")
