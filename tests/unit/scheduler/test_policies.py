"""Scheduling policies can change while the scheduler runs, and an invalid one does no harm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aliquot.api import KINDS, Metadata, SchedulingPolicy, Weights
from aliquot.api.scheduling_policy import SchedulingPolicySpec
from aliquot.planner import Policy
from aliquot.scheduler.policy import policies_of, policy_of
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace, document
from support.waiting import eventually

POLICY = KINDS.named("SchedulingPolicy")


def policy(name: str = "p", **spec: Any) -> SchedulingPolicy:
    return SchedulingPolicy(metadata=Metadata(name=name), spec=SchedulingPolicySpec(**spec))


async def borrowed(namespace: StoreNamespace) -> World:
    """Project a has borrowed four GPUs: two for one job, one for each of two others. Project b has a quota of two."""
    world = World(namespace)
    await world.node("n1", 4)
    await world.project("a", 0)
    await world.project("b", 2)
    async with world.platform():
        for name, gpu in (("wide", 2000), ("x-one", 1000), ("y-two", 1000)):
            await world.submit(name, gpu)
            await world.until_running(name)
    return world


async def test_steps(embedded: StoreNamespace) -> None:
    """Without the reclaim step no job is evicted; with it, at once."""
    world = await borrowed(embedded)
    created = await world.store.create(policy(steps=("allocate",)))
    async with world.platform():
        await world.submit("owner", 2000, "b")
        await world.until_refused("owner", "b")
        assert await world.bound_workloads() == {"wide", "x-one", "y-two"}
        await world.store.update(replace(created, spec=SchedulingPolicySpec()), seen=created)
        await world.until_running("owner", project="b")


@pytest.mark.parametrize(("victims", "left"), [(None, {"x-one", "y-two"}), ("newest", {"wide"})])
async def test_victims(embedded: StoreNamespace, victims: Any, left: set[str]) -> None:
    """The policy chooses the victims: the fewest, or the newest."""
    world = await borrowed(embedded)
    async with world.platform():
        await world.store.create(policy(steps=("allocate",)))
        await world.submit("owner", 2000, "b")
        await world.until_refused("owner", "b")
        seen = await world.store.get(SchedulingPolicy, "p")
        await world.store.update(replace(seen, spec=SchedulingPolicySpec(victims=victims)), seen=seen)
        await world.until_running("owner", project="b")
        assert await world.bound_workloads() == {"owner"} | left


async def test_spare(embedded: StoreNamespace) -> None:
    """A change from spare by quota to spare by weight moves GPUs from one project to the other."""
    world = World(embedded)
    await world.node("n1", 8)
    await world.project("a", 3, over_quota_weight=Weights(gpu=1000))
    await world.project("b", 1, over_quota_weight=Weights(gpu=3000))
    async with world.platform():
        for number in range(7):
            await world.submit(f"a{number}", project="a")
            await world.submit(f"b{number}", project="b")

        async def split(a: int, b: int) -> bool:
            running = await world.bound_workloads()
            return [sum(name.startswith(team) for name in running) for team in "ab"] == [a, b]

        await eventually(lambda: split(6, 2))
        await world.store.create(policy(spare="weight"))
        await eventually(lambda: split(4, 4))


async def test_invalid(embedded: StoreNamespace) -> None:
    """A policy that cannot be read is ignored, and the scheduler goes on."""
    world = await borrowed(embedded)
    async with world.platform():
        await embedded.driver.create(
            POLICY, document(POLICY, "bad", spec={"victims": "the tallest", "steps": ["none"]})
        )
        await world.submit("owner", 2000, "b")
        await world.until_running("owner", project="b")
        assert await world.bound_workloads() == {"owner", "x-one", "y-two"}


def test_conflict() -> None:
    """Where two policies name the same pool, or none, the first by name applies, in whatever order they came."""
    policies = [
        policy("b", pools=("x",), victims="newest"),
        policy("a", pools=("x", "y"), spare="weight"),
        policy("z", share_unit="whole"),
        policy("q", spare="weight"),
    ]
    expected = (Policy(spare="weight"), {"x": Policy(spare="weight"), "y": Policy(spare="weight")})
    assert policies_of(policies) == policies_of(reversed(policies)) == expected


def test_absent_is_the_default() -> None:
    """Absent fields have the planner's defaults; -1 means no bound."""
    assert policy_of(SchedulingPolicySpec()) == Policy()
    assert policy_of(SchedulingPolicySpec(disruption_bound=-1)).disruption_bound is None
    assert policy_of(SchedulingPolicySpec(disruption_bound=0)).disruption_bound == 0
