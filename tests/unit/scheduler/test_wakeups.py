"""Some reasons to wait end by themselves, and then somebody must look again."""

from __future__ import annotations

from aliquot.planner import Job, Plan, Policy, Queue, Refusal, Request, Snapshot, Task, TaskState, Verdict
from aliquot.scheduler.wakeups import next_wakeup
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace

NOW = 1000.0


def waiting(until: float | None = None) -> Plan:
    return Plan(refusals={"w": (Refusal("some", Verdict.NOT_NOW, "", until=until),)})


def snapshot(queue: Queue, state: TaskState = TaskState.RUNNING, **job: float) -> Snapshot:
    task = Task("t", Request(devices=1, milli=1000), state, "n1", releasing_since=job.pop("since", None))
    return Snapshot((), (queue,), (Job("j", "q", (task,), **job),))  # type: ignore[arg-type]


def test_nobody_waits() -> None:
    """Where nobody waits time changes nothing."""
    assert next_wakeup(snapshot(Queue("q", reclaim_min_runtime=60), started=990), Plan(), [Policy()], NOW) is None


def test_nothing_about_time() -> None:
    """Without a rule about time there is no moment to wait for."""
    assert next_wakeup(snapshot(Queue("q"), started=990), waiting(), [Policy()], NOW) is None


def test_reason_that_ends() -> None:
    """A reason that says when it ends is looked at then; one that has ended is not waited for."""
    assert next_wakeup(snapshot(Queue("q")), waiting(1005.0), [Policy()], NOW) == 1005
    assert next_wakeup(snapshot(Queue("q")), waiting(995.0), [Policy()], NOW) is None


def test_minimum_run_time() -> None:
    """When what runs has had its minimum, the sooner of two."""
    queue = Queue("q", reclaim_min_runtime=60, preempt_min_runtime=30)
    assert next_wakeup(snapshot(queue, started=990), waiting(), [Policy()], NOW) == 1020
    assert next_wakeup(snapshot(queue, started=965), waiting(), [Policy()], NOW) == 1025


def test_stuck_while_stopping() -> None:
    """When somebody who is leaving has taken too long."""
    leaving = snapshot(Queue("q"), TaskState.RELEASING, since=990)
    assert next_wakeup(leaving, waiting(), [Policy(), Policy(terminating_grace=20)], NOW) == 1010


async def test_minimum_run_time_live(embedded: StoreNamespace) -> None:
    """Who is safe for a while is stopped when the while is over, although nothing happens then."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 0, reclaim_min_runtime=2)
    await world.project("b", 1)
    async with world.living():
        await world.submit("borrower")
        await world.runs("borrower")
        await world.submit("owner", project="b")
        await world.waits("owner", "b")
        assert await world.node_of("borrower")
        await world.runs("owner", project="b")
    (stop,) = (await world.workload("borrower")).status.interruptions
    assert stop.lost_seconds >= 1


async def test_preemption_delay_live(embedded: StoreNamespace) -> None:
    """A job with a delay takes from others when it is over."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 0)
    await world.project("b", 1)
    async with world.living():
        await world.submit("borrower")
        await world.runs("borrower")
        await world.submit("owner", project="b", preemption_delay=2)
        await world.waits("owner", "b", code="preemption-delay")
        assert await world.node_of("borrower")
        await world.runs("owner", project="b")


def test_left_alone() -> None:
    """When who was stopped too often may be stopped again; where it never or always may, there is no moment."""
    often = snapshot(Queue("q"), stops=(500.0, 800.0))  # type: ignore[arg-type]
    moments = [next_wakeup(often, waiting(), [Policy(restarts_per_hour=most)], NOW) for most in (None, 0, 1, 2, 3)]
    assert moments == [None, None, 4400, 4100, None]
