"""Lost nodes: their pods are deleted after a while, and the workload's history says why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from aliquot.api import Compute, Metadata, Namespace, Node, Pod, Workload
from aliquot.api.node import NodeCondition, NodeStatus
from aliquot.api.pod import Container, PodSpec, PodStatus
from aliquot.api.workload import Interruption, WorkloadSpec, WorkloadStatus
from aliquot.backends.kubernetes.lost_nodes import LostNodeController, silent_since
from aliquot.podspec.builder import build_pod
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.stores.running import running
from support.waiting import eventually

SPACE = "runai-a"
SILENT_SINCE = 1000.0
LOST_SECONDS = 60.0


def node_with_condition(ready: str | None, since: float | None = SILENT_SINCE, name: str = "n1") -> Node:
    conditions = () if ready is None else (NodeCondition(type="Ready", status=ready, last_transition_time=since),)
    return Node(metadata=Metadata(name=name), status=NodeStatus(conditions=conditions))


@pytest.mark.parametrize(
    ("lost", "since"),
    [
        (node_with_condition("True"), None),
        (node_with_condition("False"), None),
        (node_with_condition(None), None),
        (node_with_condition("Unknown"), SILENT_SINCE),
        (node_with_condition("Unknown", None), 2000.0),
        (None, 0.0),
    ],
    ids=["ready", "not ready", "new", "silent", "silent since an unknown time", "deleted"],
)
def test_silent_since(lost: Node | None, since: float | None) -> None:
    """A node is silent if it is deleted, or if its Ready condition is Unknown."""
    assert silent_since(lost, now=2000.0) == since


class Cluster:
    """One node with a workload's pod, and a clock that the test sets."""

    def __init__(self) -> None:
        self.driver = MemoryDriver()
        self.store = Store(self.driver)
        self.informers = Informers(self.driver)
        self.now = SILENT_SINCE
        self.controller = LostNodeController(
            self.store, self.informers, LOST_SECONDS, clock=lambda: self.now
        ).controller

    async def prepare(self, ready: str = "True", phase: str = "Running") -> Cluster:
        await self.store.create(Namespace(metadata=Metadata(name=SPACE)))
        await self.store.create(node_with_condition(ready))
        spec = WorkloadSpec(image="python", compute=Compute(gpu=1000))
        workload = await self.store.create(Workload(metadata=Metadata(name="w", namespace=SPACE), spec=spec))
        status = WorkloadStatus(phase="Running", started_at=SILENT_SINCE - 100)
        workload = await self.store.update_status(replace(workload, status=status), seen=workload)
        await self.create_pod(build_pod(workload, "a"), phase)
        return self

    async def create_pod(self, pod: Pod, phase: str = "Running") -> Pod:
        created = await self.store.create(replace(pod, spec=replace(pod.spec, node_name="n1")))
        return await self.store.update_status(replace(created, status=PodStatus(phase=phase)), seen=created)

    async def set_ready(self, ready: str) -> None:
        """Sets the node's Ready condition and waits until the informer has it."""
        seen = await self.store.get(Node, "n1")
        await self.store.update_status(replace(seen, status=node_with_condition(ready).status), seen=seen)

        async def is_synced() -> bool:
            cached = self.informers.of(Node).get("n1")
            return cached is not None and cached.status.conditions[0].status == ready

        await eventually(is_synced)

    @asynccontextmanager
    async def running_controller(self) -> AsyncIterator[None]:
        async with running(*(informer.run() for informer in self.informers), self.controller.run()):
            await self.informers.wait()
            yield

    async def reconcile(self) -> None:
        """Reconciles the node once more and waits until that is done."""

        async def idle() -> bool:
            return self.controller.idle

        self.controller.enqueue(("", "n1"))
        await eventually(idle)

    async def pods(self) -> list[str]:
        return [pod.metadata.name for pod in (await self.store.list(Pod)).items]

    async def interruptions(self) -> tuple[Interruption, ...]:
        return (await self.store.get(Workload, "w", SPACE)).status.interruptions


async def has_no_pods(cluster: Cluster) -> bool:
    return not await cluster.pods()


async def test_pods_of_a_lost_node_are_deleted() -> None:
    """After the timeout the interruption is recorded on the workload, and the pod is deleted without the kubelet."""
    cluster = await Cluster().prepare()
    uid = (await cluster.store.list(Pod)).items[0].metadata.uid
    async with cluster.running_controller():
        await cluster.set_ready("Unknown")
        cluster.now = SILENT_SINCE + LOST_SECONDS
        await cluster.reconcile()
        await eventually(lambda: has_no_pods(cluster))
        (stop,) = await cluster.interruptions()
    assert (stop.reason, stop.message, stop.pod) == ("node-lost", "node n1 does not answer", uid)
    assert (stop.lost_seconds, stop.final) == (100 + LOST_SECONDS, False)


async def test_interruption_is_recorded_once() -> None:
    """After a crash between the two writes the interruption is not recorded again."""
    cluster = await Cluster().prepare("Unknown")
    uid = (await cluster.store.list(Pod)).items[0].metadata.uid
    recorded = Interruption(at=SILENT_SINCE + LOST_SECONDS, reason="node-lost", pod=uid)
    seen = await cluster.store.get(Workload, "w", SPACE)
    await cluster.store.update_status(replace(seen, status=replace(seen.status, interruptions=(recorded,))), seen=seen)
    cluster.now = SILENT_SINCE + 2 * LOST_SECONDS
    async with cluster.running_controller():
        await eventually(lambda: has_no_pods(cluster))
    assert await cluster.interruptions() == (recorded,)


async def test_node_that_recovers_in_time() -> None:
    """Nothing happens if a node is silent only for a moment."""
    cluster = await Cluster().prepare()
    async with cluster.running_controller():
        await cluster.set_ready("Unknown")
        cluster.now = SILENT_SINCE + LOST_SECONDS - 1
        await cluster.reconcile()
        assert await cluster.pods() == ["w-0-0"]
        await cluster.set_ready("True")
        cluster.now = SILENT_SINCE + 2 * LOST_SECONDS
        await cluster.reconcile()
        assert await cluster.pods() == ["w-0-0"]
    assert await cluster.interruptions() == ()


async def test_deleted_node() -> None:
    """The pods of a deleted node are deleted at once."""
    cluster = await Cluster().prepare()
    async with cluster.running_controller():
        await cluster.store.delete(await cluster.store.get(Node, "n1"))
        await eventually(lambda: has_no_pods(cluster))
    assert [stop.reason for stop in await cluster.interruptions()] == ["node-lost"]


async def test_other_pods_are_left_alone() -> None:
    """Pods without a workload are not deleted."""
    cluster = await Cluster().prepare("Unknown")
    theirs = Pod(
        metadata=Metadata(name="plain", namespace=SPACE),
        spec=PodSpec(containers=(Container(name="main", image="python"),)),
    )
    await cluster.create_pod(theirs)
    cluster.now = SILENT_SINCE + LOST_SECONDS
    async with cluster.running_controller():
        await cluster.reconcile()
        assert await cluster.pods() == ["plain"]


async def test_pod_that_had_ended() -> None:
    """It is deleted, but no interruption is recorded."""
    cluster = await Cluster().prepare("Unknown", phase="Succeeded")
    cluster.now = SILENT_SINCE + LOST_SECONDS
    async with cluster.running_controller():
        await eventually(lambda: has_no_pods(cluster))
    assert await cluster.interruptions() == ()
