"""Replays of published traces: a small part of each always, the complete traces in `make soak`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from aliquot.planner.model import Policy
from aliquot.sim.replay import Replay, ReplayPolicy, figures
from aliquot.sim.replay.policies import named_policy
from aliquot.sim.traces import load_trace, read_file

DATA = Path(__file__).parents[3] / "data"
MURI = [f"trace{number}{kind}" for number in (1, 2, 3, 4) for kind in ("", "_pr")]
SHOCKWAVE = "shockwave/120_0.2_5_100_40_25.trace.gz"


def replayed(path: str, limit: int | None = None, policy: str = "binpack") -> dict[str, Any]:
    replay = Replay(load_trace(read_file(str(DATA / path)), limit=limit), named_policy(policy, (3600.0, 36000.0)))
    replay.run()
    result = figures(replay)
    assert result["jobs"]["finished"] == result["jobs"]["submitted"], "every job of these traces fits and ends"
    return result


@pytest.mark.parametrize(
    "path, limit", [("muri/trace3.csv.gz", 150), ("philly/philly_jobs.csv.gz", 1000), (SHOCKWAVE, 120)]
)
def test_part_of_each_trace(path: str, limit: int) -> None:
    """The first jobs of each published trace end, and the figures are consistent."""
    result = replayed(path, limit)
    assert result["jobs"]["finished"] == limit
    assert 0 < result["allocation"]["mean"] <= 1
    assert result["jctSeconds"]["mean"] >= result["waitSeconds"]["mean"]


def test_part_of_openb() -> None:
    """Pods that fit stay, others are dropped, and cores and GPU models count."""
    replay = Replay(
        load_trace(read_file(str(DATA / "openb/openb_pod_list_default.csv.gz")), limit=300), named_policy("binpack", ())
    )
    replay.run()
    result = figures(replay)
    assert (result["jobs"]["running"], result["jobs"]["finished"], result["disruption"]["moves"]) == (300, 0, 0)
    placed = sum(job.trace_job.gpu_milli for job in replay.running)
    assert result["allocation"]["end"] == round(placed / 6_212_000, 4)


def test_arrival_order_equals_a_simple_simulation() -> None:
    """Without evictions, moves and reserved capacity, jobs run in order of arrival with backfill. A simple simulation
    gives nearly the same mean."""
    trace = load_trace(read_file(str(DATA / "muri/trace4.csv.gz")), limit=200)
    replay = Replay(trace, ReplayPolicy("plain", Policy(steps=("allocate",), hold_after=None)))
    replay.run()
    assert figures(replay)["jctSeconds"]["mean"] == pytest.approx(_simple_simulation(trace.jobs), rel=0.02)


def _simple_simulation(jobs: Any) -> float:
    """Mean completion time of a simple simulation: the oldest job that fits takes the fullest node that fits."""
    free, waiting, total, coming = [8] * 8, [], 0.0, list(jobs)
    running: list[tuple[float, int, int]] = []  # end, node and GPUs
    while coming or running:
        now = min([job.submit for job in coming[:1]] + [end for end, _, _ in running])
        for end, node, gpus in [entry for entry in running if entry[0] <= now]:
            running.remove((end, node, gpus))
            free[node] += gpus
        while coming and coming[0].submit <= now:
            waiting.append(coming.pop(0))
        for job in waiting[:]:
            fitting = [(left, node) for node, left in enumerate(free) if left >= job.gpus]
            if fitting:
                node = min(fitting)[1]
                free[node] -= int(job.gpus)
                running.append((now + job.duration, node, int(job.gpus)))
                total += now + job.duration - job.submit
                waiting.remove(job)
    return total / len(jobs)


def published(trace: str, policy: str) -> float:
    with (DATA / "muri/reference.csv").open() as opened:
        rows = {(row["trace"], row["policy"]): row for row in csv.DictReader(opened)}
    return float(rows[trace, policy]["avg_jct_s"])


@pytest.mark.soak
@pytest.mark.parametrize("trace", MURI)
def test_muri(trace: str) -> None:
    """Every trace ends, with a makespan at most a tenth longer than the slowest published one."""
    result = replayed(f"muri/{trace}.csv.gz")
    with (DATA / "muri/reference.csv").open() as opened:
        slowest = max(float(row["makespan_s"]) for row in csv.DictReader(opened) if row["trace"] == trace)
    assert result["makespanSeconds"] < 1.1 * slowest


@pytest.mark.soak
def test_ladder() -> None:
    """The ladder policy (least attained service) is at least as good as published similar policies."""
    result = replayed("muri/trace3.csv.gz", policy="ladder")
    assert result["jctSeconds"]["mean"] < published("trace3", "Themis")


@pytest.mark.soak
def test_philly() -> None:
    """82,247 jobs of fifteen virtual clusters."""
    result = replayed("philly/philly_jobs.csv.gz")
    assert result["jobs"]["finished"] == 82_247
    assert result["fairness"]["jain"] > 0.95
