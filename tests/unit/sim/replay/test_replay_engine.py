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
    ordered = tuple(sorted(jobs, key=lambda job: job.submit))
    quotas = quotas or {"a": nodes * gpus}
    return Trace("test", "csv", ordered, nodes, gpus, quotas, restart_cost, checkpoint_every)


def replayed(recorded: Trace, policy: Policy | None = None, grace: float = 0, ladder: tuple[float, ...] = ()) -> Replay:
    replay = Replay(recorded, ReplayPolicy("test", policy or Policy(), ladder), grace)
    replay.run()
    return replay


def ends(replay: Replay) -> dict[str, float | None]:
    return {job.job.name: job.finished for job in replay.jobs}


def test_job_starts_when_gpus_are_free() -> None:
    """A job starts when GPUs are free, ends after its duration, and the next one takes its GPUs."""
    replay = replayed(trace(trace_job("x", 0, 100, 2), trace_job("y", 10, 50, 1), trace_job("z", 20, 50, 1)))
    assert ends(replay) == {"x": 100, "y": 150, "z": 150}
    assert [job.first for job in replay.jobs] == [0, 100, 100]


def test_gang_waits_for_all_its_nodes() -> None:
    """A job of more GPUs than a node has starts on several nodes together, or not at all."""
    replay = replayed(trace(trace_job("small", 0, 100, 1), trace_job("gang", 10, 50, 4), nodes=2, quotas={"a": 4}))
    assert ends(replay) == {"small": 100, "gang": 150}


def test_fractions_share_a_gpu() -> None:
    """Two halves run on one GPU at the same time."""
    replay = replayed(trace(trace_job("x", 0, 100, 0.5), trace_job("y", 0, 100, 0.5), gpus=1))
    assert ends(replay) == {"x": 100, "y": 100}
    assert replay.meter.mean_allocation() == 1


def reclaimed(*, restart_cost: float = 0.0, checkpoint_every: float = 0.0) -> Replay:
    """`b` borrows both GPUs and gives them back to `a` after 100 seconds, for 50 seconds."""
    jobs = (trace_job("borrower", 0, 1000, 2, "b"), trace_job("owner", 100, 50, 2, "a"))
    quotas = {"a": 2, "b": 0}
    return replayed(trace(*jobs, quotas=quotas, restart_cost=restart_cost, checkpoint_every=checkpoint_every))


def test_evicted_job_resumes() -> None:
    """A job that saves when it is evicted loses only the time of the other job."""
    replay = reclaimed()
    assert ends(replay) == {"borrower": 1050, "owner": 150}
    assert replay.evictions == {"reclaim": 1}


def test_work_since_the_last_checkpoint_is_lost() -> None:
    """With a checkpoint every 30 seconds, 10 of 100 seconds are repeated."""
    replay = reclaimed(checkpoint_every=30)
    assert ends(replay)["borrower"] == 1060
    assert figures(replay)["disruption"]["gpuHoursLost"] == round(20 / 3600, 1)
    assert replay.jobs[0].lost == 10


def test_restart_costs_time() -> None:
    """An evicted job makes no progress in the first seconds after its restart; the first start costs nothing."""
    replay = reclaimed(restart_cost=20)
    assert ends(replay) == {"borrower": 1070, "owner": 150}


def test_job_is_nominated_during_grace() -> None:
    """While an evicted job terminates, the job that replaces it is nominated and waits."""
    jobs = (
        trace_job("borrower", 0, 1000, 2, "b"),
        trace_job("owner", 100, 50, 2, "a"),
        trace_job("late", 105, 10, 1, "b"),
    )
    replay = replayed(trace(*jobs, quotas={"a": 2, "b": 0}), grace=30)
    assert (replay.jobs[1].first, ends(replay)["owner"]) == (130, 180)
    assert replay.jobs[2].first == 1080  # nor could it start earlier: the older job goes first


def test_evicted_job_keeps_its_age() -> None:
    """An evicted job starts again before jobs that were submitted after it."""
    jobs = (trace_job("old", 0, 1000, 2, "b"), trace_job("owner", 100, 50, 2, "a"), trace_job("new", 110, 10, 2, "b"))
    replay = replayed(trace(*jobs, quotas={"a": 2, "b": 0}))
    assert ends(replay)["new"] == 1060


def test_consolidation_is_a_move() -> None:
    """Jobs are moved together for a job that needs a whole node, and that counts as a move, not as an eviction."""
    jobs = (
        trace_job("x", 0, 1000),
        trace_job("y", 0, 1000),
        trace_job("end", 0, 10),
        trace_job("end2", 0, 10),
        trace_job("pair", 20, 10, 2),
    )
    replay = replayed(trace(*jobs, nodes=2, quotas={"a": 4}), Policy(gpu="spread"))
    result = figures(replay)["disruption"]
    assert (result["moves"], result["evictions"]) == (1, 0)
    finished = [end for end in ends(replay).values() if end is not None]
    assert len(finished) == len(jobs)
    assert sorted(finished)[-2:] == [1000, 1000]  # its new GPUs were free, so it resumed at once


def test_ladder_lets_short_jobs_pass() -> None:
    """With a ladder a job that has used its GPU-time is preempted by one that has used none."""
    jobs = trace(trace_job("long", 0, 1000, 2), trace_job("short", 50, 10, 2))
    assert ends(replayed(jobs))["short"] == 1010
    assert ends(replayed(jobs, ladder=(200,)))["short"] == 110


def test_job_that_may_not_wait_is_dropped() -> None:
    """A job that may not wait is dropped when it does not start at once; the others continue."""
    jobs = (
        trace_job("x", 0, 100, 2),
        trace_job("y", 0, 100, 1, may_wait=False),
        trace_job("z", 200, 10, 1, may_wait=False),
    )
    replay = replayed(trace(*jobs))
    assert [job.job.name for job in replay.dropped] == ["y"]
    assert ends(replay) == {"x": 100, "y": None, "z": 210}


def test_nodes_may_differ() -> None:
    """A trace may have its own nodes; a job runs where it fits."""
    uneven = replace(
        trace(trace_job("pair", 0, 10, 2)), custom_nodes=(uniform_node("small", 1), uniform_node("large", 2))
    )
    replay = replayed(uneven)
    assert {task.node for task in replay.jobs[0].job.tasks} == {"large"}
    assert uneven.gpus == 3


def test_time_alone_may_help() -> None:
    """Capacity reserved for a large job is released after a while, and small jobs start although no job ends."""
    jobs = (trace_job("first", 0, 1e6), trace_job("large", 0, 10, 2), trace_job("small", 700, 10, 1))
    replay = replayed(trace(*jobs), Policy(hold_after=600))
    assert replay.jobs[2].first == pytest.approx(750)
    assert replayed(trace(*jobs), Policy(hold_after=None)).jobs[2].first == 700


def test_job_that_fits_nowhere() -> None:
    """A job that does not fit on the cluster never starts, and has a refusal."""
    replay = replayed(trace(trace_job("x", 0, 10), trace_job("huge", 0, 10, 8)))
    assert [job.job.name for job in replay.never_started] == ["huge"]
    assert replay.last_plan.refusals["huge"]


def test_outdated_events_do_not_advance_time() -> None:
    """Events of a run that was interrupted do not lengthen the replay."""
    replay = replayed(trace(trace_job("x", 0, 100, 2)), ladder=(10_000,))
    assert replay.meter.now == 100


def busy_trace(seed: int) -> Trace:
    """A small busy cluster: gangs, fractions, three projects, priorities and nonpreemptible jobs."""
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
    """No GPU is given out twice, no job waits without a refusal (both asserted by the engine), and the times add up."""
    replay = replayed(busy_trace(seed), Policy(victims=victims), grace=seed % 2 * 5)
    for job in replay.jobs:
        if job.finished is not None:
            assert job.trace_job.duration is not None
            assert job.ran == pytest.approx(job.trace_job.duration + job.lost)
            assert job.finished - job.trace_job.submit >= job.ran
    assert not any(
        job.trace_job.preemptible for job in replay.never_started
    )  # nonpreemptible jobs may not exceed the quota
    assert replay.meter.in_use == 0
    assert not replay.unsettled


def test_same_trace_same_figures() -> None:
    """A replay depends only on the trace and the policy."""
    first, second = (figures(replayed(busy_trace(1))) for _ in range(2))
    assert first.pop("planning") is not second.pop("planning")
    assert first == second


def test_incremental_plans_equal_full_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The incremental planner decides as a plan of the whole cluster does."""
    seen = []
    plan_incrementally = IncrementalPlanner.plan

    def both(self: IncrementalPlanner, snapshot: Snapshot, policy: Policy, now: float, **more: object) -> object:
        decided = plan_incrementally(self, snapshot, policy, now, **more)  # type: ignore[arg-type]  # passed through
        assert plan_incrementally(IncrementalPlanner(), snapshot, policy, now) == decided
        seen.append(now)
        return decided

    monkeypatch.setattr(IncrementalPlanner, "plan", both)
    replayed(busy_trace(2))
    assert len(seen) > 40


def test_checkpoints_decide_the_victim() -> None:
    """Of two possible victims, the one with the latest checkpoint is evicted."""
    jobs = (trace_job("x", 0, 1e5, 1, "b"), trace_job("y", 4000, 1e5, 1, "b"), trace_job("owner", 10500, 50, 1, "a"))
    recorded = trace(*jobs, quotas={"a": 1, "b": 0}, checkpoint_every=5000)
    stopped = {job.job.name: job.stops for job in replayed(recorded).jobs}
    assert stopped == {"x": 1, "y": 0, "owner": 0}
    assert replayed(replace(recorded, checkpoint_every=1e5)).jobs[1].stops == 1


def test_each_checkpoint_is_reported_once() -> None:
    """`save` reports each new checkpoint once."""
    recorded = trace_job("x", 0, 1000)
    job = JobProgress(recorded, trace(recorded, checkpoint_every=30))
    job.start(0, {"x-0": ("n", ())})
    assert [job.save(now) for now in (10, 35, 40, 61)] == [False, True, False, True]
    assert job.job.saved == 60
