"""The scheduling loop: every decision reaches the store once."""

from __future__ import annotations

from dataclasses import replace

from aliquot.api import Amounts, Metadata, Pod, Workload, decode, encode, shares_of
from aliquot.api.workload import Refusal as ApiRefusal
from aliquot.api.workload import WorkloadSpec
from aliquot.planner import Refusal, Verdict
from aliquot.podspec.builder import build_pod
from aliquot.scheduler.nominations import nomination_of
from aliquot.scheduler.refusal_writer import api_refusal
from aliquot.scheduler.snapshot import job_of
from support.scheduler.world import V100, World
from support.stores.namespace import POD, StoreNamespace, document
from support.waiting import eventually


async def cluster(namespace: StoreNamespace, gpus: int = 2, quota: int = 4) -> World:
    """One node, one project with its namespace."""
    world = World(namespace)
    await world.node("n1", gpus)
    await world.project("a", quota)
    return world


async def test_binds_with_exact_devices(embedded: StoreNamespace) -> None:
    """A pod gets its node and its devices in one write."""
    world = await cluster(embedded)
    await world.submit("x", 500, pod=True)
    async with world.scheduler():
        await world.until_bound("x")
    pod = await world.pod("x")
    assert pod is not None
    (share,) = shares_of(pod)
    assert (pod.spec.node_name, share.index, share.milli, share.memory_mib) == ("n1", 0, 500, V100 // 2)


async def test_burst_never_shares_a_whole_gpu(embedded: StoreNamespace) -> None:
    """Of many pods submitted at once each device goes to one; the others wait."""
    world = await cluster(embedded, gpus=4)
    names = [f"j{index}" for index in range(8)]
    async with world.scheduler():
        for name in names:
            await world.submit(name, 1000, pod=True)

        async def settled() -> bool:
            bound = [await world.node_of(name) for name in names]
            refusals = [(await world.workload(name)).status.refusals for name in names]
            return all(node or why for node, why in zip(bound, refusals, strict=True)) and bound.count("n1") == 4

        await eventually(settled)
    held = [share.index for pod in (await world.store.list(Pod)).items for share in shares_of(pod)]
    assert sorted(held) == [0, 1, 2, 3]


async def test_shows_refusals(embedded: StoreNamespace) -> None:
    """The status of a waiting job shows why; the refusals go when it starts."""
    world = await cluster(embedded, gpus=1)
    async with world.scheduler():
        await world.submit("x", pod=True)
        await world.until_bound("x")
        await world.submit("y", pod=True)
        await world.until_refused("y", code="enough-gpu")
        await world.delete_pod("x")
        await world.until_bound("y")

        async def no_refusals() -> bool:
            return not (await world.workload("y")).status.refusals

        await eventually(no_refusals)


async def test_waits_until_the_pod_is_gone(embedded: StoreNamespace) -> None:
    """A device is free when its pod is gone, not when the pod was asked to stop."""
    world = await cluster(embedded, gpus=1)
    async with world.scheduler():
        await world.submit("old", pod=True)
        await world.until_bound("old")
        await world.store.driver.delete(POD, "old-0-0", "runai-a")
        await world.submit("new", pod=True)

        async def nominated() -> bool:
            pod = await world.pod("new")
            assert pod is not None
            assert not pod.spec.node_name
            return nomination_of(pod) is not None

        await eventually(nominated)
        await world.delete_pod("old")
        await world.until_bound("new")


async def test_node_added_later(embedded: StoreNamespace) -> None:
    """A job that fits no node starts when a larger node is added."""
    world = await cluster(embedded, gpus=1)
    async with world.scheduler():
        await world.submit("large", 2000, pod=True)
        await world.until_refused("large", code="too-large")
        await world.node("n2", 2)
        await world.until_bound("large")
    assert await world.node_of("large") == "n2"


async def test_restart_knows_existing_bindings(embedded: StoreNamespace) -> None:
    """A restarted scheduler gives out no device that is taken."""
    world = await cluster(embedded, gpus=1)
    await world.submit("x", pod=True)
    async with world.scheduler():
        await world.until_bound("x")
    await world.submit("y", 500, pod=True)
    async with world.scheduler():
        await world.until_refused("y", code="enough-gpu")


async def test_foreign_pods_are_left_alone(embedded: StoreNamespace) -> None:
    """The scheduler does not bind pods of other schedulers."""
    world = await cluster(embedded)
    await world.submit("ours", pod=True)
    spec = {"containers": [{"name": "main", "image": "busybox"}], "schedulerName": "default-scheduler"}
    await world.store.driver.create(POD, document(POD, "theirs", "runai-a", spec))
    async with world.scheduler():
        await world.until_bound("ours")
    assert not (await world.store.get(Pod, "theirs", "runai-a")).spec.node_name


def test_surplus_counts_as_zero_shortfall() -> None:
    """A written refusal can be read back: missing amounts are never negative."""
    written = api_refusal(Refusal("some", Verdict.NOT_NOW, "", missing=(500, 0, -900 << 20)))
    assert written.missing == Amounts(gpu=500)
    assert decode(ApiRefusal, encode(written)) == written


def test_age_is_that_of_the_workload() -> None:
    """A workload whose pod is replaced keeps its position in the queue."""
    work = Workload(metadata=Metadata(name="x", namespace="runai-a", uid="u"), spec=WorkloadSpec(image="python"))
    pod = build_pod(work, "a")
    pod = replace(pod, metadata=replace(pod.metadata, created=500.0))
    old = replace(work, metadata=replace(work.metadata, created=100.0))
    assert job_of(("runai-a", "x"), [pod], None, None, old, {}).created == 100.0
    assert job_of(("runai-a", "x"), [pod], None, None, None, {}).created == 500.0
