"""Whose turn it is: each rule by itself, where all the rules before it do not decide."""

from __future__ import annotations

from dataclasses import replace

from aliquot.planner.model import PoolQuota, TaskState
from aliquot.planner.queues.queue_order import Batch, QueueOrder
from support.planner import World, cluster, gpus, quota


def turns(world: World) -> list[str]:
    """The waiting jobs in their turn, if none of them got anything."""
    state = world.cycle_state()
    line = QueueOrder([Batch([job]) for job in state.jobs if job.waiting()], state.placer.next_request)
    found = []
    while batch := line.pop():
        found.append(batch.head.name)
    return found


def test_1_above_its_share_in_everything_comes_last() -> None:
    """Who holds more than its share of GPUs, CPU and memory goes after a queue that goes beyond its quota."""
    world = cluster([gpus(8, "n1")], {"a": quota(1), "b": quota(0)})
    none_of_all = PoolQuota(quota=(0, 0, 0), limit=(0, 0, 0), priority=500)
    world.queues.append(replace(world.queues[0], name="c", pools={"default": none_of_all}))
    task = world.task("c1-0-0", "n1", [0])
    world.job("c1", "c", replace(task, request=replace(task.request, cpu=1, memory=1)))
    world.pending("c2", "c", gpu=1).pending("b1", "b", gpu=1)
    assert turns(world) == ["b1", "c2"]


def test_2_within_quota_comes_first() -> None:
    """Who stays within its quota goes before a higher priority that does not."""
    world = cluster([gpus(8)], {"a": quota(0, priority=500), "b": quota(1)})
    assert turns(world.pending("a1", "a", gpu=1).pending("b1", "b", gpu=1)) == ["b1", "a1"]


def test_3_priority_of_the_queue() -> None:
    """Both within quota: the higher priority first, although it holds more."""
    world = cluster([gpus(8, "n1")], {"a": quota(4), "b": quota(4, priority=200)})
    world.running("b0", "n1", [0], "b").pending("a1", "a", gpu=1).pending("b1", "b", gpu=1)
    assert turns(world) == ["b1", "a1"]


def test_4_who_is_due_nothing_comes_last() -> None:
    """Of two beyond quota, the one that is due some of what it asks for goes first, however far it goes beyond."""
    world = cluster([gpus(8)], {"a": quota(0, weight=0), "b": quota(0)})
    one_byte = PoolQuota(quota=(0, None, 1), weight=(1, 1, 0))
    world.queues[1] = replace(world.queues[1], pools={"default": one_byte})
    world.pending("a1", "a", gpu=1).pending("b1", "b", memory=1 << 38)
    assert turns(world) == ["b1", "a1"]


def test_5_smaller_part_of_its_due_with_the_job() -> None:
    """The queue that would hold the smaller part of its due goes first, counting its next job."""
    world = cluster([gpus(8, "n1")], {"a": quota(4), "b": quota(4)})
    world.running("b0", "n1", [0], "b").pending("a1", "a", gpu=3).pending("b1", "b", gpu=1)
    assert turns(world) == ["b1", "a1"]


def test_6_smaller_part_of_its_due_without_the_job() -> None:
    """With the job they would be alike: who holds less now goes first."""
    world = cluster([gpus(8, "n1")], {"a": quota(4), "b": quota(4)})
    world.running("a0", "n1", [0], "a").pending("a1", "a", gpu=1).pending("b1", "b", gpu=2)
    assert turns(world) == ["b1", "a1"]


def test_7_smaller_due() -> None:
    """Alike in proportion: who is due less goes first."""
    world = cluster([gpus(8)], {"a": quota(4), "b": quota(2)})
    world.pending("a1", "a", gpu=2).pending("b1", "b", gpu=1)
    assert turns(world) == ["b1", "a1"]


def test_8_older_queue() -> None:
    """Alike in what they are due and hold: the older queue first."""
    world = cluster([gpus(8)], {"a": quota(4), "b": quota(4, created=-5)})
    assert turns(world.pending("a1", "a", gpu=1).pending("b1", "b", gpu=1)) == ["b1", "a1"]


def test_name_of_the_queue() -> None:
    """Alike in everything: by name, so that the same cluster has the same plan."""
    names = "gkabfldcjhie"
    world = cluster([gpus(12)], {name: quota(1) for name in names})
    for name in names:
        world.pending(f"{name}1", name, gpu=1)
    assert turns(world) == [f"{name}1" for name in sorted(names)]


def test_department_is_judged_by_its_best_job() -> None:
    """At each level the queue that deserves it most, judged with the job that would start there."""
    queues = {"d": quota(2), "e": quota(4), "d1": quota(2, parent="d"), "e1": quota(4, parent="e")}
    world = cluster([gpus(8, "n1")], queues)
    world.running("d0", "n1", [0, 1], "d1", gpu=2).pending("x", "d1", gpu=1).pending("y", "e1", gpu=1)
    assert turns(world) == ["y", "x"]


def test_jobs_of_a_queue() -> None:
    """Priority, then age, then the name."""
    world = cluster([gpus(8)], {"a": quota(8)})
    world.pending("late", gpu=1, created=5).pending("early", gpu=1, created=1).pending("also", gpu=1, created=1)
    assert turns(world.pending("high", gpu=1, created=9, priority=60)) == ["high", "also", "early", "late"]


def test_below_its_minimum_goes_before_growing() -> None:
    """A job that has nothing yet goes before an older one that has its minimum and wants more."""
    world = cluster([gpus(8, "n1")], {"a": quota(8)})
    more = world.task("old-0-0", "n1", [0])
    world.job(
        "old", "a", more, replace(more, name="old-1-0", node="", shares=(), state=TaskState.PENDING), min_available=1
    )
    assert turns(world.pending("new", gpu=1)) == ["new", "old"]


def test_touch_makes_standing_anew() -> None:
    """A queue that got something stands elsewhere at the next turn."""
    world = cluster([gpus(8)], {"a": quota(4), "b": quota(4)})
    for name in ("a1", "a2", "b1"):
        world.pending(name, name[0], gpu=1)
    state = world.cycle_state()
    line = QueueOrder([Batch([job]) for job in state.jobs], state.placer.next_request)
    batch = line.pop()
    assert batch is not None
    first = batch.head
    first.queue.add_usage((1000, 0, 0), nonpreemptible=False)
    line.touch(first.queue)
    assert [first.name, *(batch.head.name for batch in iter(line.pop, None))] == ["a1", "b1", "a2"]


def test_push_gives_another_turn() -> None:
    """A job that is put back has its turn again, also as the last of its queue."""
    state = cluster([gpus(8)], {"a": quota(4), "b": quota(4)}).pending("a1", "a", gpu=1).cycle_state()
    line = QueueOrder([Batch([job]) for job in state.jobs], state.placer.next_request)
    batch = line.pop()
    assert batch is not None
    assert line.pop() is None
    line.push(batch)
    assert line.pop() is batch


def test_the_next_of_a_batch_follows() -> None:
    """When one of several that are alike is served the next has its turn; when it is not, all have had theirs."""
    world = cluster([gpus(8)], {"a": quota(4)})
    for name in ("a1", "a2", "a3"):
        world.pending(name, "a", gpu=1)
    state = world.cycle_state()
    (batch,) = state.batches(state.jobs)
    line = QueueOrder([batch], state.placer.next_request)
    assert line.pop() is batch
    line.advance(batch)
    assert line.pop() is batch
    assert [job.name for job in batch.remaining()] == ["a2", "a3"]
    assert line.pop() is None
