"""The figures of a replay: sums over time, distributions, fairness."""

from __future__ import annotations

import pytest

from aliquot.planner.model import Policy
from aliquot.sim.replay import Replay, ReplayPolicy, figures
from aliquot.sim.replay.figures import spread
from aliquot.sim.replay.usage_meter import jain
from aliquot.sim.traces import Trace, TraceJob


def replayed(*jobs: TraceJob, gpus: int = 2, quotas: dict[str, int]) -> Replay:
    replay = Replay(Trace("test", "csv", jobs, 1, gpus, quotas, 0, 0), ReplayPolicy("test", Policy()))
    replay.run()
    return replay


def test_allocation_over_time() -> None:
    """Two GPUs for 100 seconds and one for 300: the mean is 62.5 % and the median 50 %."""
    result = figures(replayed(TraceJob("x", 0, 100, 1000, "a"), TraceJob("y", 0, 400, 1000, "a"), quotas={"a": 2}))
    assert result["allocation"] == {"mean": 0.625, "p50": 0.5, "end": 0}
    assert result["makespanSeconds"] == 400


def test_series_covers_all_time() -> None:
    """The mean of the chart's points is the mean allocation."""
    series = figures(replayed(TraceJob("x", 0, 100, 1000, "a"), TraceJob("y", 0, 333, 1000, "a"), quotas={"a": 2}))[
        "series"
    ]
    assert sum(series["allocation"]) / len(series["allocation"]) == pytest.approx(433 / 666, abs=1e-3)
    assert len(series["hours"]) == len(series["waiting"]) == 400


def test_wait_and_completion() -> None:
    """Wait is all time without GPUs; completion is from submission to end."""
    result = figures(replayed(TraceJob("x", 0, 100, 2000, "a"), TraceJob("y", 40, 10, 2000, "a"), quotas={"a": 2}))
    assert result["waitSeconds"] == {"mean": 30, "p50": 60, "p99": 60, "max": 60}
    assert result["jctSeconds"] == {"mean": 85, "p50": 100, "p99": 100, "max": 100}


def test_spread_of_nothing() -> None:
    """Without an ended job there are no numbers."""
    assert spread([]) == {"mean": None, "p50": None, "p99": None, "max": None}


def test_fair_projects() -> None:
    """The index is 1 when every project gets its fair share, and lower when one waits for it."""
    even = replayed(TraceJob("x", 0, 100, 1000, "a"), TraceJob("y", 0, 100, 1000, "b"), quotas={"a": 1, "b": 1})
    assert figures(even)["fairness"]["jain"] == 1
    fixed = TraceJob("x", 0, 100, 2000, "a", preemptible=False)
    uneven = replayed(fixed, TraceJob("y", 0, 100, 2000, "b"), quotas={"a": 2, "b": 2})
    assert figures(uneven)["fairness"]["jain"] < 1
    hours = figures(uneven)["fairness"]["projects"]
    assert hours["a"]["receivedGpuHours"] == hours["b"]["receivedGpuHours"]


def test_borrowing_is_not_unfair() -> None:
    """A project that borrows idle GPUs does not lower the fairness index."""
    borrower = TraceJob("x", 0, 100, 2000, "b")
    replay = replayed(borrower, TraceJob("y", 40, 100, 2000, "a"), quotas={"a": 2, "b": 0})
    assert figures(replay)["fairness"]["jain"] == 1


def test_jain() -> None:
    """1 when all are equal, 1/n when one has everything."""
    assert jain([2, 2, 2]) == pytest.approx(1)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([]) == 1


def test_finish_time_fairness() -> None:
    """Four jobs on two GPUs: each deserves half of one, so twice its duration is fair, and four times is not."""
    jobs = [TraceJob(f"j{index}", 0, 100, 2000, "a") for index in range(4)]
    rho = figures(replayed(*jobs, quotas={"a": 2}))["fairness"]["rho"]
    assert rho == {"worst": 2.0, "mean": 1.25, "unfairPercent": 50.0}
