"""Past usage in the live scheduler: it lowers a project's share of the spare capacity, not its quota."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from aliquot.api import Amounts, Metadata, NodePool, Project, SchedulingPolicy, Weights, Workload
from aliquot.api.node_pool import NodePoolStatus
from aliquot.api.scheduling_policy import PastUse, SchedulingPolicySpec
from aliquot.controllers.usage import UsageReconciler
from aliquot.scheduler.usage_history import extend_history, past_usage
from aliquot.store.informer import Informers
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.stores.running import running
from support.waiting import eventually

HOUR = 3600
RULE = PastUse(weight=1, window=10 * HOUR)


async def ten_hours_later(namespace: StoreNamespace, quota: int = 0) -> World:
    """Ten GPUs for ten hours, of which project a had four for six hours."""
    world = World(namespace)
    now = time.time()
    begin = extend_history("", Amounts(), now - 10 * HOUR)
    await world.node("n1", 10)
    pool = await world.store.create(NodePool(metadata=Metadata(name="default")))
    status = NodePoolStatus(total=Amounts(gpu=10_000), history=begin)
    await world.store.update_status(replace(pool, status=status), seen=pool)
    for name in ("a", "b"):
        await world.project(name, quota, over_quota_weight=Weights(gpu=1000))
    used = extend_history(extend_history(begin, Amounts(gpu=4000), now - 4 * HOUR), Amounts(), now)
    project = await world.store.get(Project, "a")
    await world.store.update_status(replace(project, status=replace(project.status, history=used)), seen=project)
    return world


async def share_of_a(world: World, rule: PastUse, full: int = 10) -> int:
    """Submits ten jobs of each of the two projects. Returns how many of project a run when all GPUs are taken and all
    other jobs show why they wait."""
    spec = SchedulingPolicySpec(spare="weight", usage=rule)
    await world.store.create(SchedulingPolicy(metadata=Metadata(name="p"), spec=spec))
    for number in range(10):
        for name in ("a", "b"):
            await world.submit(f"{name}{number}", project=name, pod=True)
    async with world.platform():

        async def settled() -> bool:
            workloads = (await world.store.list(Workload)).items
            refused = sum(bool(workload.status.refusals) for workload in workloads)
            return len(await world.bound_workloads()) == full and refused == len(workloads) - full

        await eventually(settled)
        return sum(name.startswith("a") for name in await world.bound_workloads())


async def test_past_usage_lowers_the_share(embedded: StoreNamespace) -> None:
    """24 of 100 possible GPU-hours (D16): with k = 1 the weights 0.5 and 0.5 become 0.76 and 1, so 4 and 6 of ten."""
    assert await share_of_a(await ten_hours_later(embedded), RULE) == 4


async def test_without_a_weight_it_does_not_count(embedded: StoreNamespace) -> None:
    """The same history with a policy that gives past usage no weight."""
    assert await share_of_a(await ten_hours_later(embedded), PastUse(window=10 * HOUR)) == 5


async def test_quota_is_not_touched(embedded: StoreNamespace) -> None:
    """A project with a quota of half the GPUs gets them, whatever it used before."""
    assert await share_of_a(await ten_hours_later(embedded, quota=5), PastUse(weight=100, window=10 * HOUR)) == 5


@asynccontextmanager
async def usage_controller(world: World, now: float) -> AsyncIterator[None]:
    informers = Informers(world.store.driver)
    usage = UsageReconciler(world.store, informers, clock=lambda: now)
    async with running(*(informer.run() for informer in informers), usage.run()):
        yield


async def test_usage_is_counted_across_restarts(embedded: StoreNamespace) -> None:
    """A job that holds 4 of 10 GPUs for an hour counts 0.4, although the platform was down for that hour."""
    world = World(embedded)
    await world.node("n1", 10)
    await world.store.create(NodePool(metadata=Metadata(name="default")))
    await world.project("a", 10)
    async with usage_controller(world, 1000.0):

        async def history_started() -> bool:
            pool = await world.store.get(NodePool, "default")
            return pool.status.total.gpu == 10_000 and bool((await world.store.get(Project, "a")).status.history)

        await eventually(history_started)
        async with world.platform():
            await world.submit("j", 4000)
            await world.until_running("j")

            async def allocated() -> bool:
                return (await world.store.get(Project, "a")).status.allocated.gpu == 4000

            await eventually(allocated)
    projects, pools = [await world.store.get(Project, "a")], [await world.store.get(NodePool, "default")]
    assert round(past_usage(projects, pools, RULE, 1000.0 + HOUR)["a"][0], 3) == 0.4
