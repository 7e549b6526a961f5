"""Of equal candidates, the one that loses the least work is evicted. Less than a minute of work counts as none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.planner import (
    Device,
    DeviceShare,
    Job,
    Node,
    Policy,
    PoolQuota,
    Queue,
    Request,
    Snapshot,
    Task,
    TaskState,
    plan,
)
from aliquot.planner.incremental import IncrementalPlanner

GPU, NOW = Request(1, 1000), 10_000.0


def borrowed(*saved: float | None) -> Snapshot:
    """Two jobs started long ago on borrowed GPUs and saved checkpoints at these times; the owner wants one GPU back."""
    node = Node("n1", tuple(Device(index, 1000) for index in range(2)), 64000, 1 << 36, 110)
    borrowers = [
        Job(name, "a", (Task(name, GPU, TaskState.RUNNING, "n1", (DeviceShare(index, 1000, 1000),)),), index, saved=at)
        for index, (name, at) in enumerate(zip(("older", "newer"), saved, strict=True))
    ]
    borrowers = [replace(job, started=job.created) for job in borrowers]
    queues = (Queue("a"), Queue("b", pools={"default": PoolQuota((1000, None, None))}))
    return Snapshot((node,), queues, (*borrowers, Job("owner", "b", (Task("o", GPU),), created=9)))


@pytest.mark.parametrize(
    ("older", "newer", "victim"),
    [
        (None, None, "newer"),
        (NOW - 5, None, "older"),
        (NOW - 100, NOW - 200, "older"),
        (NOW - 200, NOW - 100, "newer"),
        (NOW - 5, NOW - 50, "newer"),
    ],
)
def test_victim(older: float | None, newer: float | None, victim: str) -> None:
    """The job with the later checkpoint, or the newest job if both saved within the last minute."""
    evictions = plan(borrowed(older, newer), Policy(), NOW).evictions
    assert [eviction.job for eviction in evictions] == [victim]


def test_incremental_planner_updates_costs() -> None:
    """An incremental plan counts the work that would be lost at its own time."""
    planner, snapshot = IncrementalPlanner(), borrowed(NOW - 50, NOW - 1000)
    victims = [planner.plan(snapshot, Policy(), now, changed={}).evictions[0].job for now in (NOW - 1000, NOW)]
    assert victims == ["newer", "older"]
