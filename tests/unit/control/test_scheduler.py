"""The scheduler as a loop: what is decided reaches the store, and only once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from aliquot import labels
from aliquot.agent.devices.base import NodeFacts, node_object
from aliquot.control.pods import pod_of
from aliquot.control.scheduler import Scheduler
from aliquot.control.snapshot import snapshot_of
from aliquot.store.base import AnyKind
from aliquot.store.informer import Informers
from aliquot.store.typed import Store
from aliquot.types import (
    Compute,
    Device,
    Metadata,
    Namespace,
    Node,
    Pod,
    Project,
    Quota,
    Workload,
    shares_of,
)
from aliquot.types.organisation import ProjectSpec
from aliquot.types.workload import WorkloadSpec
from bodies.place import POD, Place, document
from bodies.running import running, until

V100 = 32510


async def cluster(place: Place, gpus: int = 2, quota: int = 4) -> Store:
    """One node, one project with its namespace."""
    store = Store(place.body)
    devices = tuple(Device(index=index, memory_mib=V100) for index in range(gpus))
    facts = NodeFacts(name="n1", devices=devices, cpu=8000, memory=64 << 30)
    await store.create(node_object(facts, now=0.0))
    await store.create(Namespace(metadata=Metadata(name="runai-a", labels={labels.PROJECT: "a"})))
    await store.create(Project(metadata=Metadata(name="a"), spec=ProjectSpec(quota=Quota(gpu=quota * 1000))))
    return store


async def submit(store: Store, name: str, gpu: int, kind: str = "training") -> None:
    """A workload with its pod, as the workload loop makes it."""
    spec = WorkloadSpec(image="python", type=kind, compute=Compute(gpu=gpu))  # type: ignore[arg-type]
    made = await store.create(Workload(metadata=Metadata(name=name, namespace="runai-a"), spec=spec))
    await store.create(pod_of(made, "a"))


@asynccontextmanager
async def scheduling(store: Store) -> AsyncIterator[None]:
    informers = Informers(store.body)
    of = informers.of
    loop = Scheduler(store, of(Node), of(Pod), of(Project), of(Namespace), of(Workload))
    async with running(*(informer.run() for informer in informers), loop.run()):
        yield


async def node_of(store: Store, name: str) -> str:
    return (await store.get(Pod, f"{name}-0-0", "runai-a")).spec.node_name


async def is_bound(store: Store, *names: str) -> bool:
    return all([await node_of(store, name) for name in names])


async def reason(store: Store, name: str) -> str:
    refusals = (await store.get(Workload, name, "runai-a")).status.refusals
    return refusals[0].code if refusals else ""


async def test_binds_with_exact_devices(embedded: Place) -> None:
    """A pod gets its node and its devices in one step."""
    store = await cluster(embedded)
    await submit(store, "x", 500)
    async with scheduling(store):
        await until(lambda: is_bound(store, "x"))
    pod = await store.get(Pod, "x-0-0", "runai-a")
    (share,) = shares_of(pod)
    assert (pod.spec.node_name, share.index, share.milli, share.memory_mib) == ("n1", 0, 500, V100 // 2)


async def test_burst_never_shares_a_whole_gpu(embedded: Place) -> None:
    """Many submissions at once: every device is given out once, the rest waits."""
    store = await cluster(embedded, gpus=4)
    async with scheduling(store):
        for index in range(8):
            await submit(store, f"j{index}", 1000)

        async def settled() -> bool:
            bound = [await node_of(store, f"j{index}") for index in range(8)]
            told = [await reason(store, f"j{index}") for index in range(8)]
            return all(node or code for node, code in zip(bound, told, strict=True)) and bound.count("n1") == 4

        await until(settled)
    held = [share.index for pod in (await store.list(Pod)).items for share in shares_of(pod)]
    assert sorted(held) == [0, 1, 2, 3]


async def test_tells_why(embedded: Place) -> None:
    """A job that cannot start finds out why, and the reason goes when it starts."""
    store = await cluster(embedded, gpus=1)
    async with scheduling(store):
        await submit(store, "x", 1000)
        await until(lambda: is_bound(store, "x"))
        await submit(store, "y", 1000)

        async def told() -> bool:
            return await reason(store, "y") == "enough-gpu"

        await until(told)
        await store.body.delete(*_pod("x"), grace_seconds=0)
        await until(lambda: is_bound(store, "y"))

        async def silent() -> bool:
            return await reason(store, "y") == ""

        await until(silent)


async def test_waits_for_what_still_stops(embedded: Place) -> None:
    """A device is free when its pod is gone, not when its end was asked for."""
    store = await cluster(embedded, gpus=1)
    async with scheduling(store):
        await submit(store, "old", 1000)
        await until(lambda: is_bound(store, "old"))
        await store.body.delete(*_pod("old"))
        await submit(store, "new", 1000)

        async def told() -> bool:
            return await reason(store, "new") == "enough-gpu"

        await until(told)
        assert not await node_of(store, "new")
        await store.body.delete(*_pod("old"), grace_seconds=0)
        await until(lambda: is_bound(store, "new"))


async def test_node_comes_later(embedded: Place) -> None:
    """A new node starts what waited for it."""
    store = await cluster(embedded, gpus=1)
    async with scheduling(store):
        await submit(store, "large", 2000)

        async def told() -> bool:
            return await reason(store, "large") == "too-large"

        await until(told)
        devices = tuple(Device(index=index, memory_mib=V100) for index in range(2))
        await store.create(node_object(NodeFacts(name="n2", devices=devices, cpu=8000, memory=64 << 30), now=0.0))
        await until(lambda: is_bound(store, "large"))
    assert await node_of(store, "large") == "n2"


async def test_restart_finds_the_same_picture(embedded: Place) -> None:
    """A scheduler that starts anew gives out nothing that is taken."""
    store = await cluster(embedded, gpus=1)
    await submit(store, "x", 1000)
    async with scheduling(store):
        await until(lambda: is_bound(store, "x"))
    await submit(store, "y", 500)
    async with scheduling(store):

        async def told() -> bool:
            return await reason(store, "y") == "enough-gpu"

        await until(told)
    assert not await node_of(store, "y")


async def test_foreign_pods_are_left_alone(embedded: Place) -> None:
    """A pod of another scheduler is not ours to place."""
    store = await cluster(embedded)
    await submit(store, "ours", 1000)
    spec = {"containers": [{"name": "main", "image": "busybox"}], "schedulerName": "default-scheduler"}
    await store.body.create(POD, document(POD, "theirs", "runai-a", spec))
    async with scheduling(store):
        await until(lambda: is_bound(store, "ours"))
    assert not (await store.get(Pod, "theirs", "runai-a")).spec.node_name


def _pod(name: str) -> tuple[AnyKind, str, str]:
    return POD, f"{name}-0-0", "runai-a"


def test_age_is_the_workloads() -> None:
    """A workload whose pod was made anew keeps its place in the queue."""
    work = Workload(metadata=Metadata(name="x", namespace="runai-a", uid="u"), spec=WorkloadSpec(image="python"))
    pod = pod_of(work, "a")
    pod = replace(pod, metadata=replace(pod.metadata, created=500.0))
    (job,) = snapshot_of([], [pod], [], {}, {}, {"runai-a/x": 100.0}).jobs
    assert job.created == 100.0
    (alone,) = snapshot_of([], [pod], [], {}, {}).jobs
    assert alone.created == 500.0
