"""A replay in virtual time: starts, evictions, restarts and checkpoints, and its invariants."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from aliquot.planner.incremental import IncrementalPlanner
from aliquot.planner.model import Policy, Snapshot
from aliquot.sim.replay import Replay, ReplayPolicy, figures
from aliquot.sim.replay.job_progress import JobProgress
from aliquot.sim.traces import Trace, TraceJob, uniform_node


def trace_job(
    name: str, submit: float, duration: float, gpus: float = 1, project: str = "a", **more: object
) -> TraceJob:
    return TraceJob(name, submit, duration, int(gpus * 1000), project, **more)  # type: ignore[arg-type]  # as they come


def trace(
    *jobs: TraceJob,
    nodes: int = 1,
    gpus: int = 2,
    quotas: dict[str, int] | None = None,
    restart_cost: float = 0.0,
    checkpoint_every: float = 0.0,
) -> Trace:
    ordered = tuple(sorted(jobs, key=lambda one: one.submit))
    quotas = quotas or {"a": nodes * gpus}
    return Trace("test", "csv", ordered, nodes, gpus, quotas, restart_cost, checkpoint_every)


def played(one: Trace, policy: Policy | None = None, grace: float = 0, ladder: tuple[float, ...] = ()) -> Replay:
    replay = Replay(one, ReplayPolicy("test", policy or Policy(), ladder), grace)
    replay.run()
    return replay


def ends(replay: Replay) -> dict[str, float | None]:
    return {work.job.name: work.finished for work in replay.jobs}


def test_runs_when_there_is_room() -> None:
    """A job starts when it comes, ends when its work is done, and the next one takes its place."""
    replay = played(trace(trace_job("x", 0, 100, 2), trace_job("y", 10, 50, 1), trace_job("z", 20, 50, 1)))
    assert ends(replay) == {"x": 100, "y": 150, "z": 150}
    assert [work.first for work in replay.jobs] == [0, 100, 100]


def test_gang_waits_for_all_its_nodes() -> None:
    """A job of more GPUs than a node has starts on several nodes together, or not at all."""
    replay = played(trace(trace_job("small", 0, 100, 1), trace_job("gang", 10, 50, 4), nodes=2, quotas={"a": 4}))
    assert ends(replay) == {"small": 100, "gang": 150}


def test_fractions_share_a_gpu() -> None:
    """Two halves run on one GPU at the same time."""
    replay = played(trace(trace_job("x", 0, 100, 0.5), trace_job("y", 0, 100, 0.5), gpus=1))
    assert ends(replay) == {"x": 100, "y": 100}
    assert replay.meter.mean_allocation() == 1


def reclaimed(*, restart_cost: float = 0.0, checkpoint_every: float = 0.0) -> Replay:
    """`b` borrows both GPUs and gives them back to `a` after 100 seconds, for 50 seconds."""
    jobs = (trace_job("borrower", 0, 1000, 2, "b"), trace_job("owner", 100, 50, 2, "a"))
    quotas = {"a": 2, "b": 0}
    return played(trace(*jobs, quotas=quotas, restart_cost=restart_cost, checkpoint_every=checkpoint_every))


def test_stopped_job_goes_on_where_it_was() -> None:
    """Who saves when it is told to stop loses nothing but the time of the other."""
    replay = reclaimed()
    assert ends(replay) == {"borrower": 1050, "owner": 150}
    assert replay.evictions == {"reclaim": 1}


def test_work_since_the_last_checkpoint_is_lost() -> None:
    """With a checkpoint every 30 seconds, 10 of 100 seconds are done again."""
    replay = reclaimed(checkpoint_every=30)
    assert ends(replay)["borrower"] == 1060
    assert figures(replay)["disruption"]["gpuHoursLost"] == round(20 / 3600, 1)
    assert replay.jobs[0].lost == 10


def test_restart_costs_time() -> None:
    """A job that was stopped makes no progress in the first seconds after it starts again; the first start is free."""
    replay = reclaimed(restart_cost=20)
    assert ends(replay) == {"borrower": 1070, "owner": 150}


def test_grace_holds_the_place() -> None:
    """While a stopped job takes its time to leave, the one it was stopped for has a promise and waits."""
    jobs = (
        trace_job("borrower", 0, 1000, 2, "b"),
        trace_job("owner", 100, 50, 2, "a"),
        trace_job("late", 105, 10, 1, "b"),
    )
    replay = played(trace(*jobs, quotas={"a": 2, "b": 0}), grace=30)
    assert (replay.jobs[1].first, ends(replay)["owner"]) == (130, 180)
    assert replay.jobs[2].first == 1080  # nor could it slip in: who is older goes first


def test_stopped_job_keeps_its_age() -> None:
    """After a stop it starts before what was submitted after it."""
    jobs = (trace_job("old", 0, 1000, 2, "b"), trace_job("owner", 100, 50, 2, "a"), trace_job("new", 110, 10, 2, "b"))
    replay = played(trace(*jobs, quotas={"a": 2, "b": 0}))
    assert ends(replay)["new"] == 1060


def test_consolidation_is_a_move() -> None:
    """Scattered work is moved together for a job that needs a whole node; that is told apart from a stop."""
    jobs = (
        trace_job("x", 0, 1000),
        trace_job("y", 0, 1000),
        trace_job("end", 0, 10),
        trace_job("end2", 0, 10),
        trace_job("pair", 20, 10, 2),
    )
    replay = played(trace(*jobs, nodes=2, quotas={"a": 4}), Policy(gpu="spread"))
    told = figures(replay)["disruption"]
    assert (told["moves"], told["evictions"]) == (1, 0)
    finished = [end for end in ends(replay).values() if end is not None]
    assert len(finished) == len(jobs)
    assert sorted(finished)[-2:] == [1000, 1000]  # its new place was its own: it went on at once


def test_ladder_lets_short_jobs_pass() -> None:
    """With a ladder a job that has had its GPU-time makes way for one that has had none."""
    jobs = trace(trace_job("long", 0, 1000, 2), trace_job("short", 50, 10, 2))
    assert ends(played(jobs))["short"] == 1010
    assert ends(played(jobs, ladder=(200,)))["short"] == 110


def test_impatient_job_is_dropped() -> None:
    """A job that may not wait is gone when it does not start at once; the others go on."""
    jobs = (
        trace_job("x", 0, 100, 2),
        trace_job("y", 0, 100, 1, may_wait=False),
        trace_job("z", 200, 10, 1, may_wait=False),
    )
    replay = played(trace(*jobs))
    assert [work.job.name for work in replay.dropped] == ["y"]
    assert ends(replay) == {"x": 100, "y": None, "z": 210}


def test_nodes_may_differ() -> None:
    """A trace may bring its own machines; a job goes where it fits."""
    one = replace(trace(trace_job("pair", 0, 10, 2)), custom_nodes=(uniform_node("small", 1), uniform_node("large", 2)))
    replay = played(one)
    assert {task.node for task in replay.jobs[0].job.tasks} == {"large"}
    assert one.gpus == 3


def test_time_alone_may_help() -> None:
    """Room that is kept for a large job is given up after a while, and the small ones start although nothing ends."""
    jobs = (trace_job("first", 0, 1e6), trace_job("large", 0, 10, 2), trace_job("small", 700, 10, 1))
    replay = played(trace(*jobs), Policy(hold_after=600))
    assert replay.jobs[2].first == pytest.approx(750)
    assert played(trace(*jobs), Policy(hold_after=None)).jobs[2].first == 700


def test_too_large_is_left_over() -> None:
    """A job that fits on no cluster like this is told apart from those that ended, with its reason."""
    replay = played(trace(trace_job("x", 0, 10), trace_job("huge", 0, 10, 8)))
    assert [work.job.name for work in replay.never_started] == ["huge"]
    assert replay.last_plan.refusals["huge"]


def test_time_does_not_pass_for_void_events() -> None:
    """What was expected of a run that was cut short does not lengthen the replay."""
    replay = played(trace(trace_job("x", 0, 100, 2)), ladder=(10_000,))
    assert replay.meter.now == 100


def crowd(seed: int) -> Trace:
    """A busy little cluster: gangs, fractions, three projects, priorities, work that cannot be stopped."""
    dice = random.Random(seed)
    jobs = [
        TraceJob(
            f"j{index}",
            dice.randrange(400),
            dice.choice([0, 5, 30, 200]),
            dice.choice([250, 500, 1000, 2000, 4000, 6000, 8000]),
            dice.choice("abc"),
            priority=dice.choice([50, 60]),
            preemptible=dice.random() < 0.9,
        )
        for index in range(60)
    ]
    quotas = {"a": 4, "b": 2, "c": 0}
    return trace(*jobs, nodes=2, gpus=4, quotas=quotas, restart_cost=3, checkpoint_every=7)


@pytest.mark.parametrize("victims", ["least-disruption", "newest"])
@pytest.mark.parametrize("seed", range(4))
def test_every_job_is_accounted_for(seed: int, victims: str) -> None:
    """Whatever happens: no GPU twice, nobody waits untold (checked while it runs), and work adds up in the end."""
    replay = played(crowd(seed), Policy(victims=victims), grace=seed % 2 * 5)
    for work in replay.jobs:
        if work.finished is not None:
            assert work.trace_job.duration is not None
            assert work.ran == pytest.approx(work.trace_job.duration + work.lost)
            assert work.finished - work.trace_job.submit >= work.ran
    assert not any(work.trace_job.preemptible for work in replay.never_started)  # the others may not go beyond quota
    assert replay.meter.in_use == 0
    assert not replay.unsettled


def test_same_trace_same_figures() -> None:
    """A replay depends on nothing but the trace and the policy."""
    first, second = (figures(played(crowd(1))) for _ in range(2))
    assert first.pop("planning") is not second.pop("planning")
    assert first == second


def test_plans_are_those_made_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Going on from plan to plan decides as the scheduler would with the whole cluster in front of it."""
    seen = []
    go_on = IncrementalPlanner.plan

    def both(self: IncrementalPlanner, snapshot: Snapshot, policy: Policy, now: float, **more: object) -> object:
        decided = go_on(self, snapshot, policy, now, **more)  # type: ignore[arg-type]  # passed through
        assert go_on(IncrementalPlanner(), snapshot, policy, now) == decided
        seen.append(now)
        return decided

    monkeypatch.setattr(IncrementalPlanner, "plan", both)
    played(crowd(2))
    assert len(seen) > 40


def test_checkpoints_are_known_when_somebody_stops() -> None:
    """Of two that could stop, the one that has just saved goes."""
    jobs = (trace_job("x", 0, 1e5, 1, "b"), trace_job("y", 4000, 1e5, 1, "b"), trace_job("owner", 10500, 50, 1, "a"))
    one = trace(*jobs, quotas={"a": 1, "b": 0}, checkpoint_every=5000)
    stopped = {work.job.name: work.stops for work in played(one).jobs}
    assert stopped == {"x": 1, "y": 0, "owner": 0}
    assert played(replace(one, checkpoint_every=1e5)).jobs[1].stops == 1


def test_a_checkpoint_is_news_once() -> None:
    """The scheduler hears of a checkpoint when there is a new one."""
    one = trace_job("x", 0, 1000)
    work = JobProgress(one, trace(one, checkpoint_every=30))
    work.start(0, {"x-0": ("n", ())})
    assert [work.save(now) for now in (10, 35, 40, 61)] == [False, True, False, True]
    assert work.job.saved == 60
