"""Capacity reservations: a stream of small jobs does not starve a large one, and no more than needed is reserved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aliquot.planner import Policy, Snapshot, TaskState, plan
from support.planner import World, cluster, gpus, quota
from support.planner.checks import after, check

WITH_LIMIT = Policy(hold_after=600)


def waiting(age: float, nodes: int = 1, own: float = 16, **more: Any) -> World:
    """Nodes of two GPUs, each with one in use; a job for two that has waited for `age`, and a small one."""
    world = cluster(
        [gpus(2, f"n{index}") for index in range(nodes)], {"a": quota(own), "b": quota(own)}, policy=WITH_LIMIT
    )
    for index in range(nodes):
        world.running(f"x{index}", f"n{index}", [0], "b", created=0, **more)
    world.now = 10_000.0
    world.pending("large", gpu=2, created=world.now - age)
    return world.pending("small", gpu=1, created=world.now - 1)


@pytest.mark.parametrize(
    ("age", "reserved"),
    [(0, False), (599, False), (600, True), (749, True), (750, False), (2399, False), (2400, True), (3000, False)],
)
def test_reservations_begin_and_end(age: float, reserved: bool) -> None:
    """Each is four times as long as the last: from 10 to 12.5 minutes of waiting, from 40 to 50, and so on."""
    assert ("small" not in waiting(age).started()) == reserved


def test_refusals_name_the_reservation() -> None:
    """Both jobs learn for whom capacity is reserved, and until when."""
    refusals = waiting(700).plan().refusals
    own, other = (refusals[name][-1] for name in ("large", "small"))
    assert own.text == "GPUs of n0 are kept for it as they come free, since it has waited so long"
    assert other.text == "GPUs of n0 are kept for a job of project a, which has waited longer"
    assert own.until == other.until == 10_000 - 700 + 750


def test_only_as_much_as_it_needs() -> None:
    """Other jobs may use the second node."""
    assert waiting(700, nodes=2).started()["small"][0] == "n1"


def test_not_beyond_the_fair_share() -> None:
    """A job that requests more than the fair share of its queue gets no reservation."""
    world = cluster([gpus(2, "n0"), gpus(1, "n9")], {"a": quota(1), "b": quota(2)}, policy=WITH_LIMIT)
    world.running("x", "n0", [0], "b").running("y", "n9", [0], "a").pending("more", "b", gpu=2, created=world.now)
    world.pending("large", gpu=2, created=world.now - 700).pending("small", gpu=1, created=world.now - 1)
    assert "small" in world.started()


def test_not_on_devices_of_nonpreemptible_jobs() -> None:
    """A nonpreemptible job may never end, so its device is not reserved."""
    assert "small" in waiting(700, preemptible=False).started()


def test_not_on_devices_of_stuck_tasks() -> None:
    """A pod that terminates for longer than the grace period may never end."""
    world = waiting(700, state=TaskState.RELEASING)
    (task,) = world.jobs[0].tasks
    world.jobs[0] = replace(world.jobs[0], tasks=(replace(task, releasing_since=0.0),))
    assert "small" not in world.started()
    world.policy = replace(WITH_LIMIT, terminating_grace=60)
    assert "small" in world.started()


def test_switched_off() -> None:
    """Without a limit nothing is reserved."""
    world = waiting(700)
    world.policy = replace(WITH_LIMIT, hold_after=None)
    assert "small" in world.started()


def test_reserved_devices_count_in_a_reclaim() -> None:
    """The job can still reclaim, and its reserved devices count for it."""
    world = waiting(700)
    world.queues = [replace(queue, pools=quota(0).pools) if queue.name == "b" else queue for queue in world.queues]
    decided = world.plan()
    assert [eviction.job for eviction in decided.evictions] == ["x0"]
    assert [nomination.job for nomination in decided.nominations] == ["large"]
    check(world.snapshot(), world.policy, decided, world.now)


def _stream(policy: Policy, minutes: int) -> float | None:
    """The minutes that a job for 8 GPUs waits on a node of 8, while each minute a job for one GPU is submitted, which
    runs for 8 minutes."""
    world = cluster([gpus(8, "n1")], {"a": quota(8)}, policy=policy)
    snapshot: Snapshot = world.snapshot()
    started: dict[str, float] = {}
    for minute in range(minutes):
        now = 60.0 * minute
        jobs = [job for job in snapshot.jobs if started.get(job.name, now) > now - 480]
        fresh = World(world.nodes)
        fresh.pending(f"s{minute}", gpu=1, created=now)
        if minute == 10:
            fresh.pending("large", gpu=8, created=now)
        snapshot = replace(snapshot, jobs=(*jobs, *fresh.jobs))
        decided = plan(snapshot, policy, now)
        for bind in decided.binds:
            started[bind.job] = now
        if "large" in started:
            return (now - 600) / 60
        snapshot = after(snapshot, decided, lingering=False, now=now)
        assert all(task.state is not TaskState.NOMINATED for job in snapshot.jobs for task in job.tasks)
    return None


def test_a_stream_of_small_jobs() -> None:
    """Without a limit it never starts. With one it starts when the running small jobs have ended."""
    assert _stream(replace(WITH_LIMIT, hold_after=None), 300) is None
    assert _stream(replace(WITH_LIMIT, hold_after=2400), 300) == 40 - 1 + 8


def test_jobs_that_run_longer_than_the_reservation() -> None:
    """The next reservation is four times as long, and then long enough."""
    assert _stream(replace(WITH_LIMIT, hold_after=120), 300) == 2 * 4 * 4 - 1 + 8
