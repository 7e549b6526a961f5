"""Nodes that do not answer: their pods are given up after a while, and the workload's history says so."""

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
from support.stores.running import running, until

SPACE = "runai-a"
SILENT_SINCE = 1000.0
PATIENCE = 60.0


def node(ready: str | None, since: float | None = SILENT_SINCE, name: str = "n1") -> Node:
    told = () if ready is None else (NodeCondition(type="Ready", status=ready, last_transition_time=since),)
    return Node(metadata=Metadata(name=name), status=NodeStatus(conditions=told))


@pytest.mark.parametrize(
    ("found", "since"),
    [
        (node("True"), None),
        (node("False"), None),
        (node(None), None),
        (node("Unknown"), SILENT_SINCE),
        (node("Unknown", None), 2000.0),
        (None, 0.0),
    ],
    ids=["well", "unwell and says so", "new", "silent", "silent since nobody knows when", "gone"],
)
def test_lost_since(found: Node | None, since: float | None) -> None:
    """Lost is who is gone, or is said not to answer."""
    assert silent_since(found, now=2000.0) == since


class World:
    """One node, with a workload's pod on it, and a clock that stands still."""

    def __init__(self) -> None:
        self.driver = MemoryDriver()
        self.store = Store(self.driver)
        self.informers = Informers(self.driver)
        self.now = SILENT_SINCE
        self.controller = LostNodeController(self.store, self.informers, PATIENCE, clock=lambda: self.now).controller

    async def build(self, ready: str = "True", phase: str = "Running") -> World:
        await self.store.create(Namespace(metadata=Metadata(name=SPACE)))
        await self.store.create(node(ready))
        spec = WorkloadSpec(image="python", compute=Compute(gpu=1000))
        made = await self.store.create(Workload(metadata=Metadata(name="w", namespace=SPACE), spec=spec))
        status = WorkloadStatus(phase="Running", started_at=SILENT_SINCE - 100)
        made = await self.store.update_status(replace(made, status=status), seen=made)
        await self.pod(build_pod(made, "a"), phase)
        return self

    async def pod(self, wanted: Pod, phase: str = "Running") -> Pod:
        made = await self.store.create(replace(wanted, spec=replace(wanted.spec, node_name="n1")))
        return await self.store.update_status(replace(made, status=PodStatus(phase=phase)), seen=made)

    async def turns(self, ready: str) -> None:
        """And this has been heard of."""
        seen = await self.store.get(Node, "n1")
        await self.store.update_status(replace(seen, status=node(ready).status), seen=seen)

        async def heard() -> bool:
            found = self.informers.of(Node).get("n1")
            return found is not None and found.status.conditions[0].status == ready

        await until(heard)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        async with running(*(informer.run() for informer in self.informers), self.controller.run()):
            await self.informers.wait()
            yield

    async def looked(self) -> None:
        """The node was looked at again, and what was to be done is done."""

        async def idle() -> bool:
            return self.controller.idle

        self.controller.enqueue(("", "n1"))
        await until(idle)

    async def pods(self) -> list[str]:
        return [one.metadata.name for one in (await self.store.list(Pod)).items]

    async def stops(self) -> tuple[Interruption, ...]:
        return (await self.store.get(Workload, "w", SPACE)).status.interruptions


async def without_pods(world: World) -> bool:
    return not await world.pods()


async def test_pods_of_a_lost_node_are_given_up() -> None:
    """When its time is over the workload says why it was interrupted, and its pod is gone without the node's word."""
    world = await World().build()
    uid = (await world.store.list(Pod)).items[0].metadata.uid
    async with world.watched():
        await world.turns("Unknown")
        world.now = SILENT_SINCE + PATIENCE
        await world.looked()
        await until(lambda: without_pods(world))
        (stop,) = await world.stops()
    assert (stop.reason, stop.message, stop.pod) == ("node-lost", "node n1 does not answer", uid)
    assert (stop.lost_seconds, stop.final) == (100 + PATIENCE, False)


async def test_told_once() -> None:
    """Who was stopped between the two writes has told it already."""
    world = await World().build("Unknown")
    uid = (await world.store.list(Pod)).items[0].metadata.uid
    told = Interruption(at=SILENT_SINCE + PATIENCE, reason="node-lost", pod=uid)
    seen = await world.store.get(Workload, "w", SPACE)
    await world.store.update_status(replace(seen, status=replace(seen.status, interruptions=(told,))), seen=seen)
    world.now = SILENT_SINCE + 2 * PATIENCE
    async with world.watched():
        await until(lambda: without_pods(world))
    assert await world.stops() == (told,)


async def test_a_node_that_comes_back_in_time() -> None:
    """Nothing happens to who is silent for a moment."""
    world = await World().build()
    async with world.watched():
        await world.turns("Unknown")
        world.now = SILENT_SINCE + PATIENCE - 1
        await world.looked()
        assert await world.pods() == ["w-0-0"]
        await world.turns("True")
        world.now = SILENT_SINCE + 2 * PATIENCE
        await world.looked()
        assert await world.pods() == ["w-0-0"]
    assert await world.stops() == ()


async def test_a_node_that_is_removed() -> None:
    """There is nothing to wait for."""
    world = await World().build()
    async with world.watched():
        await world.store.delete(await world.store.get(Node, "n1"))
        await until(lambda: without_pods(world))
    assert [stop.reason for stop in await world.stops()] == ["node-lost"]


async def test_pods_of_others() -> None:
    """Who made them looks after them."""
    world = await World().build("Unknown")
    theirs = Pod(
        metadata=Metadata(name="plain", namespace=SPACE),
        spec=PodSpec(containers=(Container(name="main", image="python"),)),
    )
    await world.pod(theirs)
    world.now = SILENT_SINCE + PATIENCE
    async with world.watched():
        await world.looked()
        assert await world.pods() == ["plain"]


async def test_a_pod_that_had_ended() -> None:
    """It is taken away, and was not interrupted."""
    world = await World().build("Unknown", phase="Succeeded")
    world.now = SILENT_SINCE + PATIENCE
    async with world.watched():
        await until(lambda: without_pods(world))
    assert await world.stops() == ()
