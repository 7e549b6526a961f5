"""Some reasons to wait end with time, and the scheduler must then run a cycle without an event."""

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


def test_no_job_waits() -> None:
    """Without waiting jobs time changes nothing."""
    assert next_wakeup(snapshot(Queue("q", reclaim_min_runtime=60), started=990), Plan(), [Policy()], NOW) is None


def test_no_time_based_rule() -> None:
    """Without a time-based rule there is no wake-up."""
    assert next_wakeup(snapshot(Queue("q"), started=990), waiting(), [Policy()], NOW) is None


def test_refusal_that_ends() -> None:
    """A refusal with an end causes a wake-up at that time, unless it is past."""
    assert next_wakeup(snapshot(Queue("q")), waiting(1005.0), [Policy()], NOW) == 1005
    assert next_wakeup(snapshot(Queue("q")), waiting(995.0), [Policy()], NOW) is None


def test_minimum_run_time() -> None:
    """When a running job has had its minimum run time; the earlier one of two."""
    queue = Queue("q", reclaim_min_runtime=60, preempt_min_runtime=30)
    assert next_wakeup(snapshot(queue, started=990), waiting(), [Policy()], NOW) == 1020
    assert next_wakeup(snapshot(queue, started=965), waiting(), [Policy()], NOW) == 1025


def test_terminating_grace() -> None:
    """When a task takes longer to stop than the policy's grace."""
    leaving = snapshot(Queue("q"), TaskState.RELEASING, since=990)
    assert next_wakeup(leaving, waiting(), [Policy(), Policy(terminating_grace=20)], NOW) == 1010


async def test_minimum_run_time_live(embedded: StoreNamespace) -> None:
    """A protected job is evicted when its minimum run time ends, although no event arrives then."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 0, reclaim_min_runtime=2)
    await world.project("b", 1)
    async with world.platform():
        await world.submit("borrower")
        await world.until_running("borrower")
        await world.submit("owner", project="b")
        await world.until_refused("owner", "b")
        assert await world.node_of("borrower")
        await world.until_running("owner", project="b")
    (stop,) = (await world.workload("borrower")).status.interruptions
    assert stop.lost_seconds >= 1


async def test_preemption_delay_live(embedded: StoreNamespace) -> None:
    """A job with a preemption delay reclaims when the delay is over."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 0)
    await world.project("b", 1)
    async with world.platform():
        await world.submit("borrower")
        await world.until_running("borrower")
        await world.submit("owner", project="b", preemption_delay=2)
        await world.until_refused("owner", "b", code="preemption-delay")
        assert await world.node_of("borrower")
        await world.until_running("owner", project="b")


def test_restart_limit() -> None:
    """When a job that reached the limit of restarts may be evicted again; no wake-up where it always or never may."""
    often = snapshot(Queue("q"), stops=(500.0, 800.0))  # type: ignore[arg-type]
    wakeups = [next_wakeup(often, waiting(), [Policy(restarts_per_hour=limit)], NOW) for limit in (None, 0, 1, 2, 3)]
    assert wakeups == [None, None, 4400, 4100, None]
