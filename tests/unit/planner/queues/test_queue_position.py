"""The positions of waiting jobs."""

from __future__ import annotations

from aliquot.planner import Queue
from aliquot.planner.queues.queue_position import QueuePosition, queue_positions
from support.planner import World, cluster, gpus, quota


def full(**queues: Queue) -> World:
    """One node, held for good by a job of another queue."""
    world = cluster([gpus(4)], {**queues, "z": quota(4)})
    return world.running("holder", "n1", [0, 1, 2, 3], "z", gpu=4, preemptible=False)


def positions(world: World) -> dict[str, int]:
    by_job = queue_positions(world.snapshot(), world.policy, world.now, world.plan())
    return {name: job.position for name, job in by_job.items()}


def test_in_a_project_by_priority_then_age() -> None:
    """Jobs of higher priority come first, then older ones."""
    world = full(a=quota(4))
    world.pending("old", gpu=1).pending("new", gpu=1).pending("urgent", gpu=1, priority=75)
    assert positions(world) == {"urgent": 1, "old": 2, "new": 3}


def test_projects_alternate() -> None:
    """A job that starts raises its project's dominant share, so another project comes next."""
    world = full(a=quota(2), b=quota(2))
    for name, queue in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")):
        world.pending(name, queue, gpu=1)
    assert positions(world) == {"a1": 1, "b1": 2, "a2": 3, "b2": 4, "a3": 5}


def test_in_the_pool_and_in_the_queue() -> None:
    """A job has a position in its project and one among all waiting jobs."""
    world = full(a=quota(2), b=quota(2)).pending("a1", gpu=1).pending("b1", "b", gpu=1)
    by_job = queue_positions(world.snapshot(), world.policy, world.now, world.plan())
    assert by_job == {"a1": QueuePosition(1, 2, 1, 1), "b1": QueuePosition(2, 2, 1, 1)}


def test_a_job_that_never_fits_has_no_position() -> None:
    """A job that fits no node of the cluster has no position and delays no other job."""
    world = full(a=quota(9)).pending("huge", gpu=9).pending("small", gpu=1)
    assert positions(world) == {"small": 1}


def test_a_job_that_starts_has_no_position() -> None:
    """Only jobs that still wait after the plan have a position, and what the plan gives counts."""
    world = cluster([gpus(1)], {"a": quota(2), "b": quota(2)})
    world.pending("a1", gpu=1).pending("a2", gpu=1).pending("b1", "b", gpu=1)
    assert positions(world) == {"b1": 1, "a2": 2}


def test_each_pool_has_its_own_order() -> None:
    """Jobs of other node pools do not count."""
    world = cluster([gpus(1), gpus(1, "x1", pool="x")], {"a": quota(4)})
    world.running("h", "n1", [0], preemptible=False).running("i", "x1", [0], preemptible=False)
    world.pending("here", gpu=1).pending("there", gpu=1, pools=("x",))
    by_job = queue_positions(world.snapshot(), world.policy, world.now, world.plan())
    assert {name: (job.position, job.waiting, job.pool) for name, job in by_job.items()} == {
        "here": (1, 1, "default"),
        "there": (1, 1, "x"),
    }
