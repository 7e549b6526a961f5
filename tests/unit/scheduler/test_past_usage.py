"""Fairness that looks back, live: who had much lately gets less of what is idle, and nothing less of its quota."""

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
from support.stores.running import running, until

HOUR = 3600
RULE = PastUse(weight=1, window=10 * HOUR)


async def ten_hours_later(place: StoreNamespace, quota: int = 0) -> World:
    """Ten GPUs for ten hours, of which project a had four for six hours."""
    world = World(place)
    now = time.time()
    begin = extend_history("", Amounts(), now - 10 * HOUR)
    await world.node("n1", 10)
    pool = await world.store.create(NodePool(metadata=Metadata(name="default")))
    had = NodePoolStatus(total=Amounts(gpu=10_000), history=begin)
    await world.store.update_status(replace(pool, status=had), seen=pool)
    for name in ("a", "b"):
        await world.project(name, quota, over_quota_weight=Weights(gpu=1000))
    used = extend_history(extend_history(begin, Amounts(gpu=4000), now - 4 * HOUR), Amounts(), now)
    project = await world.store.get(Project, "a")
    await world.store.update_status(replace(project, status=replace(project.status, history=used)), seen=project)
    return world


async def share_of_a(world: World, rule: PastUse, full: int = 10) -> int:
    """Ten jobs of each of the two projects, together; how many of a run once all GPUs are taken and all others are
    told why they wait."""
    spec = SchedulingPolicySpec(spare="weight", usage=rule)
    await world.store.create(SchedulingPolicy(metadata=Metadata(name="p"), spec=spec))
    for number in range(10):
        for name in ("a", "b"):
            await world.submit(f"{name}{number}", project=name, pod=True)
    async with world.living():

        async def settled() -> bool:
            workloads = (await world.store.list(Workload)).items
            told = sum(bool(one.status.refusals) for one in workloads)
            return len(await world.running()) == full and told == len(workloads) - full

        await until(settled)
        return sum(name.startswith("a") for name in await world.running())


async def test_past_use_lowers_the_share(embedded: StoreNamespace) -> None:
    """24 of 100 possible GPU-hours (D16): with k = 1 the weights 0.5 and 0.5 become 0.76 and 1, so 4 and 6 of ten."""
    assert await share_of_a(await ten_hours_later(embedded), RULE) == 4


async def test_without_weight_it_is_nothing(embedded: StoreNamespace) -> None:
    """The same history, and a policy that does not look back."""
    assert await share_of_a(await ten_hours_later(embedded), PastUse(window=10 * HOUR)) == 5


async def test_quota_is_not_touched(embedded: StoreNamespace) -> None:
    """Who is guaranteed half has it, whatever it had before."""
    assert await share_of_a(await ten_hours_later(embedded, quota=5), PastUse(weight=100, window=10 * HOUR)) == 5


@asynccontextmanager
async def counting(world: World, now: float) -> AsyncIterator[None]:
    informers = Informers(world.store.driver)
    usage = UsageReconciler(world.store, informers, clock=lambda: now)
    async with running(*(informer.run() for informer in informers), usage.run()):
        yield


async def test_what_runs_is_counted_across_restarts(embedded: StoreNamespace) -> None:
    """A job of 4 GPUs for an hour, through which the platform did not run, is 0.4 of what ten GPUs had."""
    world = World(embedded)
    await world.node("n1", 10)
    await world.store.create(NodePool(metadata=Metadata(name="default")))
    await world.project("a", 10)
    async with counting(world, 1000.0):

        async def begun() -> bool:
            pool = await world.store.get(NodePool, "default")
            return pool.status.total.gpu == 10_000 and bool((await world.store.get(Project, "a")).status.history)

        await until(begun)
        async with world.living():
            await world.submit("j", 4000)
            await world.runs("j")

            async def held() -> bool:
                return (await world.store.get(Project, "a")).status.allocated.gpu == 4000

            await until(held)
    projects, pools = [await world.store.get(Project, "a")], [await world.store.get(NodePool, "default")]
    assert round(past_usage(projects, pools, RULE, 1000.0 + HOUR)["a"][0], 3) == 0.4
