"""The order of queues and jobs: each criterion by itself, where all earlier criteria tie."""

from __future__ import annotations

from dataclasses import replace

from aliquot.planner.model import PoolQuota, TaskState
from aliquot.planner.queues.queue_order import Batch, QueueOrder
from support.planner import World, cluster, gpus, quota


def in_order(world: World) -> list[str]:
    """The waiting jobs in queue order, if none of them gets anything."""
    state = world.cycle_state()
    queue_order = QueueOrder([Batch([job]) for job in state.jobs if job.waiting()], state.placer.next_request)
    names = []
    while batch := queue_order.pop():
        names.append(batch.head.name)
    return names


def test_1_above_its_share_of_everything_comes_last() -> None:
    """A queue above its share of GPUs, CPU and memory comes after a queue that goes over its quota."""
    world = cluster([gpus(8, "n1")], {"a": quota(1), "b": quota(0)})
    nothing = PoolQuota(quota=(0, 0, 0), limit=(0, 0, 0), priority=500)
    world.queues.append(replace(world.queues[0], name="c", pools={"default": nothing}))
    task = world.task("c1-0-0", "n1", [0])
    world.job("c1", "c", replace(task, request=replace(task.request, cpu=1, memory=1)))
    world.pending("c2", "c", gpu=1).pending("b1", "b", gpu=1)
    assert in_order(world) == ["b1", "c2"]


def test_2_within_quota_comes_first() -> None:
    """A queue that stays within its quota comes before one of higher priority that does not."""
    world = cluster([gpus(8)], {"a": quota(0, priority=500), "b": quota(1)})
    assert in_order(world.pending("a1", "a", gpu=1).pending("b1", "b", gpu=1)) == ["b1", "a1"]


def test_3_priority_of_the_queue() -> None:
    """Both within quota: the queue of higher priority comes first, although it holds more."""
    world = cluster([gpus(8, "n1")], {"a": quota(4), "b": quota(4, priority=200)})
    world.running("b0", "n1", [0], "b").pending("a1", "a", gpu=1).pending("b1", "b", gpu=1)
    assert in_order(world) == ["b1", "a1"]


def test_4_without_an_allowance_comes_last() -> None:
    """Of two queues over quota, one with an allowance for what it asks for comes first, however far it is over."""
    world = cluster([gpus(8)], {"a": quota(0, weight=0), "b": quota(0)})
    one_byte = PoolQuota(quota=(0, None, 1), weight=(1, 1, 0))
    world.queues[1] = replace(world.queues[1], pools={"default": one_byte})
    world.pending("a1", "a", gpu=1).pending("b1", "b", memory=1 << 38)
    assert in_order(world) == ["b1", "a1"]


def test_5_smaller_dominant_share_with_the_job() -> None:
    """The queue that would have the smaller dominant share with its next job comes first."""
    world = cluster([gpus(8, "n1")], {"a": quota(4), "b": quota(4)})
    world.running("b0", "n1", [0], "b").pending("a1", "a", gpu=3).pending("b1", "b", gpu=1)
    assert in_order(world) == ["b1", "a1"]


def test_6_smaller_dominant_share_without_the_job() -> None:
    """Equal with the job: the queue that holds less now comes first."""
    world = cluster([gpus(8, "n1")], {"a": quota(4), "b": quota(4)})
    world.running("a0", "n1", [0], "a").pending("a1", "a", gpu=1).pending("b1", "b", gpu=2)
    assert in_order(world) == ["b1", "a1"]


def test_7_smaller_allowance() -> None:
    """Equal dominant shares: the queue with the smaller allowance comes first."""
    world = cluster([gpus(8)], {"a": quota(4), "b": quota(2)})
    world.pending("a1", "a", gpu=2).pending("b1", "b", gpu=1)
    assert in_order(world) == ["b1", "a1"]


def test_8_older_queue() -> None:
    """Equal allowance and usage: the older queue comes first."""
    world = cluster([gpus(8)], {"a": quota(4), "b": quota(4, created=-5)})
    assert in_order(world.pending("a1", "a", gpu=1).pending("b1", "b", gpu=1)) == ["b1", "a1"]


def test_name_of_the_queue() -> None:
    """Equal in everything: by name, so that the same cluster gets the same plan."""
    names = "gkabfldcjhie"
    world = cluster([gpus(12)], {name: quota(1) for name in names})
    for name in names:
        world.pending(f"{name}1", name, gpu=1)
    assert in_order(world) == [f"{name}1" for name in sorted(names)]


def test_department_is_judged_by_its_best_job() -> None:
    """A department's key counts the job that would start next in it."""
    queues = {"d": quota(2), "e": quota(4), "d1": quota(2, parent="d"), "e1": quota(4, parent="e")}
    world = cluster([gpus(8, "n1")], queues)
    world.running("d0", "n1", [0, 1], "d1", gpu=2).pending("x", "d1", gpu=1).pending("y", "e1", gpu=1)
    assert in_order(world) == ["y", "x"]


def test_jobs_of_a_queue() -> None:
    """Priority, then age, then the name."""
    world = cluster([gpus(8)], {"a": quota(8)})
    world.pending("late", gpu=1, created=5).pending("early", gpu=1, created=1).pending("also", gpu=1, created=1)
    assert in_order(world.pending("high", gpu=1, created=9, priority=60)) == ["high", "also", "early", "late"]


def test_below_its_minimum_goes_before_growing() -> None:
    """A job that has nothing yet comes before an older one that has its minimum and wants more."""
    world = cluster([gpus(8, "n1")], {"a": quota(8)})
    more = world.task("old-0-0", "n1", [0])
    world.job(
        "old", "a", more, replace(more, name="old-1-0", node="", shares=(), state=TaskState.PENDING), min_available=1
    )
    assert in_order(world.pending("new", gpu=1)) == ["new", "old"]


def test_touch_computes_the_key_again() -> None:
    """A queue that got something has another place in the order."""
    world = cluster([gpus(8)], {"a": quota(4), "b": quota(4)})
    for name in ("a1", "a2", "b1"):
        world.pending(name, name[0], gpu=1)
    state = world.cycle_state()
    queue_order = QueueOrder([Batch([job]) for job in state.jobs], state.placer.next_request)
    batch = queue_order.pop()
    assert batch is not None
    first = batch.head
    first.queue.add_usage((1000, 0, 0), nonpreemptible=False)
    queue_order.touch(first.queue)
    assert [first.name, *(batch.head.name for batch in iter(queue_order.pop, None))] == ["a1", "b1", "a2"]


def test_push_brings_a_batch_back() -> None:
    """A batch that is pushed again is popped again, also as the last of its queue."""
    state = cluster([gpus(8)], {"a": quota(4), "b": quota(4)}).pending("a1", "a", gpu=1).cycle_state()
    queue_order = QueueOrder([Batch([job]) for job in state.jobs], state.placer.next_request)
    batch = queue_order.pop()
    assert batch is not None
    assert queue_order.pop() is None
    queue_order.push(batch)
    assert queue_order.pop() is batch


def test_advance_to_the_next_job_of_a_batch() -> None:
    """When a job of a batch is served the next comes again. When it is not, the whole batch is done."""
    world = cluster([gpus(8)], {"a": quota(4)})
    for name in ("a1", "a2", "a3"):
        world.pending(name, "a", gpu=1)
    state = world.cycle_state()
    (batch,) = state.batches(state.jobs).values()
    queue_order = QueueOrder([batch], state.placer.next_request)
    assert queue_order.pop() is batch
    queue_order.advance(batch)
    assert queue_order.pop() is batch
    assert [job.name for job in batch.remaining()] == ["a2", "a3"]
    assert queue_order.pop() is None
