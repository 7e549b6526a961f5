"""The scheduler as a loop: what is decided reaches the store, and only once."""

from __future__ import annotations

from dataclasses import replace

from aliquot.api import Amounts, Metadata, Pod, Workload, decode, encode, shares_of
from aliquot.api.workload import Refusal as ShownRefusal
from aliquot.api.workload import WorkloadSpec
from aliquot.planner import Refusal, Verdict
from aliquot.podspec.builder import build_pod
from aliquot.scheduler.nominations import nomination_of
from aliquot.scheduler.refusal_writer import api_refusal
from aliquot.scheduler.snapshot import job_of
from support.scheduler.world import V100, World
from support.stores.namespace import POD, StoreNamespace, document
from support.stores.running import until


async def cluster(place: StoreNamespace, gpus: int = 2, quota: int = 4) -> World:
    """One node, one project with its namespace."""
    world = World(place)
    await world.node("n1", gpus)
    await world.project("a", quota)
    return world


async def test_binds_with_exact_devices(embedded: StoreNamespace) -> None:
    """A pod gets its node and its devices in one step."""
    world = await cluster(embedded)
    await world.submit("x", 500, pod=True)
    async with world.scheduling():
        await world.bound("x")
    pod = await world.pod("x")
    assert pod is not None
    (share,) = shares_of(pod)
    assert (pod.spec.node_name, share.index, share.milli, share.memory_mib) == ("n1", 0, 500, V100 // 2)


async def test_burst_never_shares_a_whole_gpu(embedded: StoreNamespace) -> None:
    """Many submissions at once: every device is given out once, the rest waits."""
    world = await cluster(embedded, gpus=4)
    names = [f"j{index}" for index in range(8)]
    async with world.scheduling():
        for name in names:
            await world.submit(name, 1000, pod=True)

        async def settled() -> bool:
            bound = [await world.node_of(name) for name in names]
            told = [(await world.workload(name)).status.refusals for name in names]
            return all(node or why for node, why in zip(bound, told, strict=True)) and bound.count("n1") == 4

        await until(settled)
    held = [share.index for pod in (await world.store.list(Pod)).items for share in shares_of(pod)]
    assert sorted(held) == [0, 1, 2, 3]


async def test_tells_why(embedded: StoreNamespace) -> None:
    """A job that cannot start finds out why, and the reason goes when it starts."""
    world = await cluster(embedded, gpus=1)
    async with world.scheduling():
        await world.submit("x", pod=True)
        await world.bound("x")
        await world.submit("y", pod=True)
        await world.waits("y", code="enough-gpu")
        await world.gone("x")
        await world.bound("y")

        async def silent() -> bool:
            return not (await world.workload("y")).status.refusals

        await until(silent)


async def test_waits_for_what_still_stops(embedded: StoreNamespace) -> None:
    """A device is free when its pod is gone, not when its end was asked for."""
    world = await cluster(embedded, gpus=1)
    async with world.scheduling():
        await world.submit("old", pod=True)
        await world.bound("old")
        await world.store.driver.delete(POD, "old-0-0", "runai-a")
        await world.submit("new", pod=True)

        async def promised() -> bool:
            pod = await world.pod("new")
            assert pod is not None
            assert not pod.spec.node_name
            return nomination_of(pod) is not None

        await until(promised)
        await world.gone("old")
        await world.bound("new")


async def test_node_comes_later(embedded: StoreNamespace) -> None:
    """A new node starts what waited for it."""
    world = await cluster(embedded, gpus=1)
    async with world.scheduling():
        await world.submit("large", 2000, pod=True)
        await world.waits("large", code="too-large")
        await world.node("n2", 2)
        await world.bound("large")
    assert await world.node_of("large") == "n2"


async def test_restart_finds_the_same_picture(embedded: StoreNamespace) -> None:
    """A scheduler that starts anew gives out nothing that is taken."""
    world = await cluster(embedded, gpus=1)
    await world.submit("x", pod=True)
    async with world.scheduling():
        await world.bound("x")
    await world.submit("y", 500, pod=True)
    async with world.scheduling():
        await world.waits("y", code="enough-gpu")


async def test_foreign_pods_are_left_alone(embedded: StoreNamespace) -> None:
    """A pod of another scheduler is not ours to place."""
    world = await cluster(embedded)
    await world.submit("ours", pod=True)
    spec = {"containers": [{"name": "main", "image": "busybox"}], "schedulerName": "default-scheduler"}
    await world.store.driver.create(POD, document(POD, "theirs", "runai-a", spec))
    async with world.scheduling():
        await world.bound("ours")
    assert not (await world.store.get(Pod, "theirs", "runai-a")).spec.node_name


def test_nothing_negative_is_missing() -> None:
    """What is written about a waiting job can be read back: more than enough is no amount that is missing."""
    told = api_refusal(Refusal("some", Verdict.NOT_NOW, "", missing=(500, 0, -900 << 20)))
    assert told.missing == Amounts(gpu=500)
    assert decode(ShownRefusal, encode(told)) == told


def test_age_is_the_workloads() -> None:
    """A workload whose pod was made anew keeps its place in the queue."""
    work = Workload(metadata=Metadata(name="x", namespace="runai-a", uid="u"), spec=WorkloadSpec(image="python"))
    pod = build_pod(work, "a")
    pod = replace(pod, metadata=replace(pod.metadata, created=500.0))
    old = replace(work, metadata=replace(work.metadata, created=100.0))
    assert job_of(("runai-a", "x"), [pod], None, None, old, {}).created == 100.0
    assert job_of(("runai-a", "x"), [pod], None, None, None, {}).created == 500.0
