"""Pods that the cluster stops without us, because their node is drained, say: the workload's history tells it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.api import Metadata, Pod, Workload
from aliquot.api.pod import Container, PodCondition, PodSpec, PodStatus
from aliquot.labels import EVICTION_RECORD
from aliquot.scheduler.eviction_records import EvictionRecord, disruption_of, eviction_record_text
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.stores.running import until

DRAINED = PodCondition(
    type="DisruptionTarget", status="True", reason="EvictionByEvictionAPI", message="evicted", last_transition_time=50.0
)


def pod(node: str = "n1", phase: str = "Running", deleted: float | None = 60.0, *told: PodCondition) -> Pod:
    place = Metadata(name="w-0-0", namespace="runai-a", uid="p1", deleted=deleted)
    spec = PodSpec(node_name=node, containers=(Container(name="main", image="python"),))
    return Pod(metadata=place, spec=spec, status=PodStatus(phase=phase, conditions=told or (DRAINED,)))


def test_drained() -> None:
    """When, where and why, in a sentence."""
    told = EvictionRecord("disrupted", "", "the cluster stopped it on node n1: evicted", 50.0)
    assert disruption_of(pod()) == told
    assert told.reason == "disrupted"


@pytest.mark.parametrize(
    "found",
    [
        pod(deleted=None),
        pod(node=""),
        pod(phase="Succeeded"),
        pod("n1", "Running", 60.0, replace(DRAINED, status="False")),
        pod("n1", "Running", 60.0, replace(DRAINED, type="Ready")),
    ],
    ids=["goes on", "waits", "has ended", "taken back", "another condition"],
)
def test_not_disrupted(found: Pod) -> None:
    """Only a pod that held a place and loses it."""
    assert disruption_of(found) is None


def test_stopped_by_us() -> None:
    """Our own evictions go the same way, and their history is written already."""
    marks = {EVICTION_RECORD: eviction_record_text(EvictionRecord("reclaim", "b/x", "reclaimed by b/x", 40.0))}
    found = pod()
    assert disruption_of(replace(found, metadata=replace(found.metadata, annotations=marks))) is None


async def test_history(embedded: StoreNamespace) -> None:
    """The workload says once that it was interrupted, and runs again in another pod."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 1)
    async with world.living():
        await world.submit("w")
        await world.runs("w")
        before = await world.pod("w")
        assert before is not None
        told = replace(before, status=replace(before.status, conditions=(DRAINED,)))
        await world.store.delete(await world.store.update_status(told, seen=before))

        async def again() -> bool:
            now = await world.pod("w")
            return now is not None and now.metadata.uid != before.metadata.uid and now.status.phase == "Running"

        await until(again)
        await world.runs("w")
    status = (await world.store.get(Workload, "w", "runai-a")).status
    stops = [(stop.reason, stop.message, stop.pod) for stop in status.interruptions]
    assert stops == [("disrupted", "the cluster stopped it on node n1: evicted", before.metadata.uid)]
    assert (status.interruption_count, status.preemption_count) == (1, 0)
