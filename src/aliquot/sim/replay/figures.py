"""What came of a replay, in numbers. The same trace and policy give the same ones; only `planning` differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aliquot.planner.model import GPU
from aliquot.sim.replay.engine import Replay
from aliquot.sim.replay.job_progress import Work
from aliquot.sim.replay.usage_meter import jain

# Finish-time fairness: a job that takes 5 % longer than its fair part still counts as fairly treated (Shockwave).
_UNFAIR = 1.05
_POINTS = 400  # of a series; more than a chart has room for


def figures(replay: Replay) -> dict[str, Any]:
    ended = [work for work in replay.works if work.finished is not None]
    completion = [_completion(work) for work in ended]
    meter = replay.meter
    return {
        "policy": replay.contender.name,
        "jobs": {
            "submitted": len(replay.works),
            "finished": len(ended),
            "dropped": len(replay.dropped),
            "left": len(replay.left),
            "running": len(replay.running),
        },
        "allocation": {
            "mean": _round(meter.mean_allocation(), 4),
            "p50": _round(meter.allocation(0.5), 4),
            "end": _round(meter.in_use / meter.total, 4),
        },
        "jctSeconds": spread(completion),
        "waitSeconds": spread([_completion(work) - work.ran for work in ended]),
        "firstStartSeconds": spread([work.first - work.source.submit for work in ended if work.first is not None]),
        "makespanSeconds": _round(max((work.finished or 0.0 for work in ended), default=0.0)),
        "fairness": _fairness(replay, ended),
        "disruption": _disruption(replay),
        "planning": _planning(replay.plan_seconds),
        "series": _series(replay),
    }


def _completion(work: Work) -> float:
    assert work.finished is not None
    return work.finished - work.source.submit


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """p99 as others publish it: the value at 99 % of the sorted list."""
    if not values:
        return dict.fromkeys(("mean", "p50", "p99", "max"))
    ordered = sorted(values)
    at = {f"p{part}": _round(ordered[int(part / 100 * len(ordered))]) for part in (50, 99)}
    return {"mean": _round(sum(ordered) / len(ordered)), **at, "max": _round(ordered[-1])}


def _fairness(replay: Replay, ended: list[Work]) -> dict[str, Any]:
    """Jain's index over what projects got of what they were due; and by job, how much longer it took than with its
    part of the cluster: of all jobs of the trace (as Shockwave publishes it), or of those that were there meanwhile."""
    gpus = replay.meter.total / GPU
    crowd = max(1.0, len(replay.works) / gpus)
    timed = [work for work in ended if work.source.duration]
    overall = [_completion(work) / ((work.source.duration or 1) * crowd) for work in timed]
    meanwhile = [
        _completion(work) / ((work.source.duration or 1) * max(1.0, work.contention / _completion(work) / gpus))
        for work in timed
    ]
    return {
        "jain": _round(jain(replay.meter.ratios()), 4),
        "projects": {
            name: {"receivedGpuHours": _round(got / 3600, 1), "deservedGpuHours": _round(due / 3600, 1)}
            for name, got, due in zip(replay.meter.projects, replay.meter.received, replay.meter.deserved, strict=True)
        },
        "rho": _rho(overall),
        "rhoMeanwhile": _rho(meanwhile),
    }


def _rho(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"worst": None, "mean": None, "unfairPercent": None}
    unfair = sum(value > _UNFAIR for value in values)
    return {
        "worst": _round(max(values), 3),
        "mean": _round(sum(values) / len(values), 3),
        "unfairPercent": _round(100 * unfair / len(values), 2),
    }


def _disruption(replay: Replay) -> dict[str, Any]:
    works = replay.works
    return {
        "evictions": sum(work.stops for work in works),
        "moves": sum(work.moves for work in works),
        "jobsStopped": sum(bool(work.stops) for work in works),
        "byRule": dict(sorted(replay.evictions.items())),
        "gpuHoursLost": _round(sum(work.lost * work.gpus for work in works) / 3600, 1),
    }


def _planning(seconds: Sequence[float]) -> dict[str, Any]:
    told = spread([1000 * one for one in seconds])
    return {"plans": len(seconds), "seconds": _round(sum(seconds)), "msMean": told["mean"], "msP99": told["p99"]}


def _series(replay: Replay) -> dict[str, list[float]]:
    """Allocation and jobs that wait, as means over equal parts of the time."""
    moments, end = replay.meter.moments, replay.meter.now
    step = end / _POINTS if end else 1.0
    used, waiting = [0.0] * _POINTS, [0.0] * _POINTS
    for index, (at, milli, count) in enumerate(moments):
        until = moments[index + 1][0] if index + 1 < len(moments) else end
        part = min(int(at / step), _POINTS - 1)
        while at < until:
            edge = until if part == _POINTS - 1 else min(until, (part + 1) * step)
            used[part] += milli * (edge - at)
            waiting[part] += count * (edge - at)
            at, part = edge, min(part + 1, _POINTS - 1)
    return {
        "hours": [_round((index + 0.5) * step / 3600, 4) for index in range(_POINTS)],
        "allocation": [_round(one / step / replay.meter.total, 4) for one in used],
        "waiting": [_round(one / step, 2) for one in waiting],
    }


def _round(value: float, digits: int = 3) -> float:
    return round(float(value), digits)
