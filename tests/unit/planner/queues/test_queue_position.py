"""Whose turn it is among those who wait."""

from __future__ import annotations

from aliquot.planner import Queue
from aliquot.planner.queues.queue_position import QueuePosition, queue_positions
from support.planner import World, cluster, gpus, quota


def full(**queues: Queue) -> World:
    """One node, and somebody outside these queues' lines who has all of it for good."""
    world = cluster([gpus(4)], {**queues, "z": quota(4)})
    return world.running("holder", "n1", [0, 1, 2, 3], "z", gpu=4, preemptible=False)


def places(world: World) -> dict[str, int]:
    found = queue_positions(world.snapshot(), world.policy, world.now, world.plan())
    return {name: turn.position for name, turn in found.items()}


def test_in_a_project_by_priority_then_age() -> None:
    """More important jobs come first, then older ones."""
    world = full(a=quota(4))
    world.pending("old", gpu=1).pending("new", gpu=1).pending("urgent", gpu=1, priority=75)
    assert places(world) == {"urgent": 1, "old": 2, "new": 3}


def test_projects_take_turns() -> None:
    """Who gets something brings its project nearer to its due, and then it is another's turn."""
    world = full(a=quota(2), b=quota(2))
    for name, queue in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")):
        world.pending(name, queue, gpu=1)
    assert places(world) == {"a1": 1, "b1": 2, "a2": 3, "b2": 4, "a3": 5}


def test_counted_twice() -> None:
    """A place in its project, and one among all."""
    world = full(a=quota(2), b=quota(2)).pending("a1", gpu=1).pending("b1", "b", gpu=1)
    found = queue_positions(world.snapshot(), world.policy, world.now, world.plan())
    assert found == {"a1": QueuePosition(1, 2, 1, 1), "b1": QueuePosition(2, 2, 1, 1)}


def test_who_never_starts_is_in_nobodys_way() -> None:
    """A job that fits no node, whoever leaves, is in no line."""
    world = full(a=quota(9)).pending("huge", gpu=9).pending("small", gpu=1)
    assert places(world) == {"small": 1}


def test_who_starts_is_not_in_line() -> None:
    """Only those who go on waiting after the plan have a place, and what the plan gives counts."""
    world = cluster([gpus(1)], {"a": quota(2), "b": quota(2)})
    world.pending("a1", gpu=1).pending("a2", gpu=1).pending("b1", "b", gpu=1)
    assert places(world) == {"b1": 1, "a2": 2}


def test_each_pool_has_its_line() -> None:
    """Jobs for other nodes do not stand in front of one."""
    world = cluster([gpus(1), gpus(1, "x1", pool="x")], {"a": quota(4)})
    world.running("h", "n1", [0], preemptible=False).running("i", "x1", [0], preemptible=False)
    world.pending("here", gpu=1).pending("there", gpu=1, pools=("x",))
    found = queue_positions(world.snapshot(), world.policy, world.now, world.plan())
    assert {name: (turn.position, turn.waiting, turn.pool) for name, turn in found.items()} == {
        "here": (1, 1, "default"),
        "there": (1, 1, "x"),
    }
