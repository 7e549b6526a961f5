"""Of jobs that could make way alike, the one goes that loses least work; a minute of it is as good as none."""

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
    """Two GPUs, lent to two jobs that started long ago and last saved their work then; an owner wants one back."""
    node = Node("n1", tuple(Device(index, 1000) for index in range(2)), 64000, 1 << 36, 110)
    lent = [
        Job(name, "a", (Task(name, GPU, TaskState.RUNNING, "n1", (DeviceShare(index, 1000, 1000),)),), index, saved=at)
        for index, (name, at) in enumerate(zip(("older", "newer"), saved, strict=True))
    ]
    lent = [replace(job, started=job.created) for job in lent]
    queues = (Queue("a"), Queue("b", pools={"default": PoolQuota((1000, None, None))}))
    return Snapshot((node,), queues, (*lent, Job("owner", "b", (Task("o", GPU),), created=9)))


@pytest.mark.parametrize(
    ("older", "newer", "goes"),
    [
        (None, None, "newer"),
        (NOW - 5, None, "older"),
        (NOW - 100, NOW - 200, "older"),
        (NOW - 200, NOW - 100, "newer"),
        (NOW - 5, NOW - 50, "newer"),
    ],
)
def test_who_goes(older: float | None, newer: float | None, goes: str) -> None:
    """Who saved its work later, unless both did within the last minute: then the newest."""
    assert [one.job for one in plan(borrowed(older, newer), Policy(), NOW).evictions] == [goes]


def test_as_time_goes_by() -> None:
    """A plan that goes on from the last one sees what has been lost since."""
    session, snapshot = IncrementalPlanner(), borrowed(NOW - 50, NOW - 1000)
    gone = [session.plan(snapshot, Policy(), now, changed={}).evictions[0].job for now in (NOW - 1000, NOW)]
    assert gone == ["newer", "older"]
