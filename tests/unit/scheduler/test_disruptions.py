"""Pods that the cluster stops without the scheduler, by a drain for example: the workload's history shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.api import Pod, Workload
from aliquot.api.pod import PodCondition
from aliquot.labels import EVICTION_RECORD
from aliquot.scheduler.eviction_records import EvictionRecord, disruption_of, eviction_record_text
from support.objects import pod
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.waiting import eventually

DRAINED = PodCondition(
    type="DisruptionTarget", status="True", reason="EvictionByEvictionAPI", message="evicted", last_transition_time=50.0
)


def drained_pod(
    node: str = "n1", phase: str = "Running", deleted: float | None = 60.0, condition: PodCondition = DRAINED
) -> Pod:
    return pod(node=node, phase=phase, deleted=deleted, conditions=(condition,))


def test_drained() -> None:
    """The record says when, where and why."""
    record = EvictionRecord("disrupted", "", "the cluster stopped it on node n1: evicted", 50.0)
    assert disruption_of(drained_pod()) == record
    assert record.reason == "disrupted"


@pytest.mark.parametrize(
    "stopped",
    [
        drained_pod(deleted=None),
        drained_pod(node=""),
        drained_pod(phase="Succeeded"),
        drained_pod(condition=replace(DRAINED, status="False")),
        drained_pod(condition=replace(DRAINED, type="Ready")),
    ],
    ids=["not deleted", "not bound", "ended", "condition is false", "another condition"],
)
def test_not_disrupted(stopped: Pod) -> None:
    """Only a bound pod that is being deleted counts."""
    assert disruption_of(stopped) is None


def test_evicted_by_the_scheduler() -> None:
    """The scheduler's own evictions set the same condition, and their history is already written."""
    annotations = {EVICTION_RECORD: eviction_record_text(EvictionRecord("reclaim", "b/x", "reclaimed by b/x", 40.0))}
    evicted = drained_pod()
    assert disruption_of(replace(evicted, metadata=replace(evicted.metadata, annotations=annotations))) is None


async def test_history(embedded: StoreNamespace) -> None:
    """The history shows one interruption, and the workload runs again in another pod."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 1)
    async with world.platform():
        await world.submit("w")
        await world.until_running("w")
        before = await world.pod("w")
        assert before is not None
        drained = replace(before, status=replace(before.status, conditions=(DRAINED,)))
        await world.store.delete(await world.store.update_status(drained, seen=before))

        async def runs_again() -> bool:
            now = await world.pod("w")
            return now is not None and now.metadata.uid != before.metadata.uid and now.status.phase == "Running"

        await eventually(runs_again)
        await world.until_running("w")
    status = (await world.store.get(Workload, "w", "runai-a")).status
    stops = [(stop.reason, stop.message, stop.pod) for stop in status.interruptions]
    assert stops == [("disrupted", "the cluster stopped it on node n1: evicted", before.metadata.uid)]
    assert (status.interruption_count, status.preemption_count) == (1, 0)
