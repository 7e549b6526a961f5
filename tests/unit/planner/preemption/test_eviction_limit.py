"""A job that was evicted too often in the last hour is protected."""

from __future__ import annotations

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
from aliquot.planner.preemption.rules import protected_until

GPU = Request(1, 1000)


def borrowed(stops: tuple[float, ...], *, extra: bool = False) -> Snapshot:
    """Queue a's job borrows all GPUs of queue b; with `extra` one of its two tasks is above its minimum."""
    count = 2 if extra else 1
    node = Node("n1", tuple(Device(index, 1000) for index in range(count)), 64000, 1 << 36, 110)
    held = [
        Task(f"t{index}", GPU, TaskState.RUNNING, "n1", (DeviceShare(index, 1000, 1000),)) for index in range(count)
    ]  # fmt: skip
    jobs = (
        Job("lent", "a", tuple(held), created=1, started=0, stops=stops, min_available=1),
        Job("owner", "b", (Task("o", GPU),), created=2),
    )
    queues = (
        Queue("a", pools={"default": PoolQuota((0, None, None))}),
        Queue("b", pools={"default": PoolQuota((1000 * count, None, None))}),
    )
    return Snapshot((node,), queues, jobs)


def victims(snapshot: Snapshot, most: int | None, now: float, order: str = "least-disruption") -> list[str]:
    decided = plan(snapshot, Policy(restarts_per_hour=most, victims=order), now)
    return [eviction.task for eviction in decided.evictions]


@pytest.mark.parametrize("order", ["least-disruption", "newest"])
def test_protected_for_an_hour(order: str) -> None:
    """With one eviction an hour allowed, the next comes exactly an hour after the last."""
    world = borrowed((100.0,))
    assert victims(world, 1, 3699.9, order) == []
    assert victims(world, 1, 3700.0, order) == ["t0"]
    assert victims(world, None, 101.0, order) == ["t0"]


def test_fewer_evictions_than_allowed() -> None:
    """A job that was evicted less often than allowed may be evicted."""
    assert victims(borrowed((100.0,)), 2, 200.0) == ["t0"]
    assert victims(borrowed((100.0, 150.0)), 2, 200.0) == []


def test_none_allowed() -> None:
    """With no evictions allowed, no job is evicted for another."""
    assert victims(borrowed(()), 0, 1e9) == []


@pytest.mark.parametrize("order", ["least-disruption", "newest"])
def test_tasks_above_the_minimum_are_not_protected(order: str) -> None:
    """A protected job may lose tasks above its minimum."""
    assert len(victims(borrowed((100.0,), extra=True), 1, 200.0, order)) == 1


def test_protected_until() -> None:
    """The protection ends an hour after the oldest eviction that counts."""
    stops = (10.0, 20.0, 30.0)
    assert [protected_until(stops, most) for most in (None, 1, 2, 3, 4)] == [None, 3630.0, 3620.0, 3610.0, None]
