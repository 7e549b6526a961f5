"""The figures of a replay. The same trace and policy give the same figures; only `planning` differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aliquot.planner.model import GPU
from aliquot.sim.replay.engine import Replay
from aliquot.sim.replay.job_progress import JobProgress
from aliquot.sim.replay.usage_meter import jain

# Finish-time fairness: up to 5 % longer than with its fair share counts as fair, as in Shockwave.
_UNFAIR = 1.05
_POINTS = 400  # of a series; more than a chart can show


def figures(replay: Replay) -> dict[str, Any]:
    ended = [job for job in replay.jobs if job.finished is not None]
    completion = [_completion(job) for job in ended]
    meter = replay.meter
    return {
        "policy": replay.policy.name,
        "jobs": {
            "submitted": len(replay.jobs),
            "finished": len(ended),
            "dropped": len(replay.dropped),
            "left": len(replay.never_started),
            "running": len(replay.running),
        },
        "allocation": {
            "mean": _round(meter.mean_allocation(), 4),
            "p50": _round(meter.allocation(0.5), 4),
            "end": _round(meter.in_use / meter.total, 4),
        },
        "jctSeconds": spread(completion),
        "waitSeconds": spread([_completion(job) - job.ran for job in ended]),
        "firstStartSeconds": spread([job.first - job.trace_job.submit for job in ended if job.first is not None]),
        "makespanSeconds": _round(max((job.finished or 0.0 for job in ended), default=0.0)),
        "fairness": _fairness(replay, ended),
        "disruption": _disruption(replay),
        "planning": _planning(replay.plan_seconds),
        "series": _series(replay),
    }


def _completion(job: JobProgress) -> float:
    assert job.finished is not None
    return job.finished - job.trace_job.submit


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, p50, p99 and max. p99 is the value at 99 % of the sorted list, as in published results."""
    if not values:
        return dict.fromkeys(("mean", "p50", "p99", "max"))
    ordered = sorted(values)
    at = {f"p{part}": _round(ordered[int(part / 100 * len(ordered))]) for part in (50, 99)}
    return {"mean": _round(sum(ordered) / len(ordered)), **at, "max": _round(ordered[-1])}


def _fairness(replay: Replay, ended: list[JobProgress]) -> dict[str, Any]:
    """Jain's index over the projects' received share of their fair share, and rho by job: its completion time over the
    time that it would take with an equal part of the cluster. `rho` divides the cluster among all jobs of the trace, as
    Shockwave publishes it, and `rhoMeanwhile` among the jobs that were active at the same time."""
    gpus = replay.meter.total / GPU
    jobs_per_gpu = max(1.0, len(replay.jobs) / gpus)
    timed = [job for job in ended if job.trace_job.duration]
    overall = [_completion(job) / ((job.trace_job.duration or 1) * jobs_per_gpu) for job in timed]
    meanwhile = [
        _completion(job) / ((job.trace_job.duration or 1) * max(1.0, job.contention / _completion(job) / gpus))
        for job in timed
    ]
    return {
        "jain": _round(jain(replay.meter.ratios()), 4),
        "projects": {
            name: {"receivedGpuHours": _round(received / 3600, 1), "deservedGpuHours": _round(deserved / 3600, 1)}
            for name, received, deserved in zip(
                replay.meter.projects, replay.meter.received, replay.meter.deserved, strict=True
            )
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
    jobs = replay.jobs
    return {
        "evictions": sum(job.stops for job in jobs),
        "moves": sum(job.moves for job in jobs),
        "jobsStopped": sum(bool(job.stops) for job in jobs),
        "byRule": dict(sorted(replay.evictions.items())),
        "gpuHoursLost": _round(sum(job.lost * job.gpus for job in jobs) / 3600, 1),
    }


def _planning(seconds: Sequence[float]) -> dict[str, Any]:
    ms = spread([1000 * duration for duration in seconds])
    return {"plans": len(seconds), "seconds": _round(sum(seconds)), "msMean": ms["mean"], "msP99": ms["p99"]}


def _series(replay: Replay) -> dict[str, list[float]]:
    """Allocation and waiting jobs, as means over equal intervals of time."""
    changes, end = replay.meter.changes, replay.meter.now
    step = end / _POINTS if end else 1.0
    used, waiting = [0.0] * _POINTS, [0.0] * _POINTS
    for index, (at, milli, count) in enumerate(changes):
        until = changes[index + 1][0] if index + 1 < len(changes) else end
        point = min(int(at / step), _POINTS - 1)
        while at < until:
            edge = until if point == _POINTS - 1 else min(until, (point + 1) * step)
            used[point] += milli * (edge - at)
            waiting[point] += count * (edge - at)
            at, point = edge, min(point + 1, _POINTS - 1)
    return {
        "hours": [_round((index + 0.5) * step / 3600, 4) for index in range(_POINTS)],
        "allocation": [_round(total / step / replay.meter.total, 4) for total in used],
        "waiting": [_round(total / step, 2) for total in waiting],
    }


def _round(value: float, digits: int = 3) -> float:
    return round(float(value), digits)
