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


def played(path: str, limit: int | None = None, policy: str = "binpack") -> dict[str, Any]:
    replay = Replay(load_trace(read_file(str(DATA / path)), limit=limit), named_policy(policy, (3600.0, 36000.0)))
    replay.run()
    told = figures(replay)
    assert told["jobs"]["finished"] == told["jobs"]["submitted"], "every job of these traces fits and ends"
    return told


@pytest.mark.parametrize(
    "path, limit", [("muri/trace3.csv.gz", 150), ("philly/philly_jobs.csv.gz", 1000), (SHOCKWAVE, 120)]
)
def test_a_part(path: str, limit: int) -> None:
    """The first jobs of each published trace end, and the figures are consistent."""
    told = played(path, limit)
    assert told["jobs"]["finished"] == limit
    assert 0 < told["allocation"]["mean"] <= 1
    assert told["jctSeconds"]["mean"] >= told["waitSeconds"]["mean"]


def test_a_part_of_openb() -> None:
    """Pods that fit stay, others are dropped, and cores and GPU models count."""
    replay = Replay(
        load_trace(read_file(str(DATA / "openb/openb_pod_list_default.csv.gz")), limit=300), named_policy("binpack", ())
    )
    replay.run()
    told = figures(replay)
    assert (told["jobs"]["running"], told["jobs"]["finished"], told["disruption"]["moves"]) == (300, 0, 0)
    placed = sum(work.trace_job.gpu_milli for work in replay.running)
    assert told["allocation"]["end"] == round(placed / 6_212_000, 4)


def test_oldest_first_is_known() -> None:
    """Without stops, moves and kept room the order is that of arrival with backfill, of which the mean can be worked
    out apart from the scheduler."""
    trace = load_trace(read_file(str(DATA / "muri/trace4.csv.gz")), limit=200)
    replay = Replay(trace, ReplayPolicy("plain", Policy(steps=("allocate",), hold_after=None)))
    replay.run()
    assert figures(replay)["jctSeconds"]["mean"] == pytest.approx(_by_hand(trace.jobs), rel=0.02)


def _by_hand(jobs: Any) -> float:
    """Mean completion time of a simple simulation: the oldest job that fits takes the fullest node that fits."""
    free, waiting, total, coming = [8] * 8, [], 0.0, list(jobs)
    running: list[tuple[float, int, int]] = []  # when it ends, its node, its GPUs
    while coming or running:
        now = min([one.submit for one in coming[:1]] + [end for end, _, _ in running])
        for end, node, gpus in [one for one in running if one[0] <= now]:
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
    told = played(f"muri/{trace}.csv.gz")
    with (DATA / "muri/reference.csv").open() as opened:
        slowest = max(float(row["makespan_s"]) for row in csv.DictReader(opened) if row["trace"] == trace)
    assert told["makespanSeconds"] < 1.1 * slowest


@pytest.mark.soak
def test_ladder() -> None:
    """The ladder policy (least attained service) is at least as good as published similar policies."""
    told = played("muri/trace3.csv.gz", policy="ladder")
    assert told["jctSeconds"]["mean"] < published("trace3", "Themis")


@pytest.mark.soak
def test_philly() -> None:
    """82,247 jobs of fifteen virtual clusters."""
    told = played("philly/philly_jobs.csv.gz")
    assert told["jobs"]["finished"] == 82_247
    assert told["fairness"]["jain"] > 0.95
