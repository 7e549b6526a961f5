"""Our own trace format: a CSV file with a line per job and a few columns (docs/replay.md)."""

from __future__ import annotations

from aliquot.sim.traces.csv_rows import Row, TraceFile, rows_with_header
from aliquot.sim.traces.record import Trace, TraceJob

COLUMNS = ("submit", "duration", "gpus")
OPTIONAL = ("name", "project", "priority", "type", "preemptible", "tasks")
# Priority and preemptibility by workload type.
_TYPES = {"training": (50, True), "interactive": (100, False), "inference": (125, False)}
_BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def load(file: TraceFile) -> Trace:
    jobs: list[TraceJob] = []
    names: dict[str, int] = {}
    for index, row in enumerate(rows_with_header(file, COLUMNS, (*COLUMNS, *OPTIONAL))):
        job = _job(row, index)
        if names.setdefault(job.name, index) != index:
            row.refuse("name", f"{job.name!r} appears twice; names must differ")
        jobs.append(job)
    return Trace(file.name, "csv", tuple(jobs))


def _job(row: Row, index: int) -> TraceJob:
    priority, preemptible = row.choice("type", _TYPES, "training")
    default = "true" if preemptible else "false"
    milli = round(row.number("gpus") * 1000, 6)
    if milli != int(milli):
        row.refuse("gpus", "has more than three decimals")
    if milli > 1000 and milli % 1000:
        row.refuse("gpus", "must be a whole number, or a part of one GPU such as 0.5")
    tasks = row.whole("tasks", 0, 0) or None
    if tasks is not None and (milli < 1000 * tasks or milli % (1000 * tasks)):
        row.refuse("tasks", "must divide gpus into equal whole numbers")
    return TraceJob(
        name=row.text("name", f"job-{index}"),
        submit=row.moment("submit"),
        duration=row.number("duration"),
        gpu_milli=int(milli),
        project=row.text("project", "default"),
        tasks=tasks,
        priority=row.whole("priority", priority),
        preemptible=row.choice("preemptible", _BOOLEANS, default),
    )
