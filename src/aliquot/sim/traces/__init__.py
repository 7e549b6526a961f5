"""Traces of GPU clusters: published formats, and a CSV format of our own. One module per format.

load_trace     a file -> a Trace; the format is detected from the content
load_quotas    a file of quotas -> GPUs by project
read_file      a path -> a TraceFile, which the other two take
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from aliquot.errors import Invalid
from aliquot.sim.traces import csv_format, muri, openb_trace, philly, shockwave
from aliquot.sim.traces.csv_rows import TraceFile, read_file, rows_with_header
from aliquot.sim.traces.record import Trace, TraceJob, uniform_node

__all__ = ["FORMATS", "Trace", "TraceJob", "load_quotas", "load_trace", "read_file", "uniform_node"]

FORMATS: Mapping[str, Callable[[TraceFile], Trace]] = {
    "csv": csv_format.load,
    "muri": muri.load,
    "openb": openb_trace.load,
    "philly": philly.load,
    "shockwave": shockwave.load,
}
_COLUMNS = {"csv": csv_format.COLUMNS, "muri": muri.COLUMNS, "openb": openb_trace.COLUMNS, "philly": philly.COLUMNS}


def load_trace(
    file: TraceFile, trace_format: str | None = None, limit: int | None = None, seed: int | None = None
) -> Trace:
    """A trace with its jobs in order of submission, the first at 0; with `limit` only the first ones. With a seed,
    jobs of the same moment are shuffled; in openb, where the order is random, the seed determines it."""
    trace_format = trace_format or detect_format(file)
    trace = openb_trace.load(file, seed) if trace_format == "openb" else FORMATS[trace_format](file)
    if not trace.jobs:
        raise Invalid(f"{file.name}: holds no jobs")
    unsorted = trace.jobs if seed is None else random.Random(seed).sample(trace.jobs, len(trace.jobs))  # noqa: S311 - an order, not a secret
    jobs = sorted(unsorted, key=lambda job: job.submit)[:limit]
    start = jobs[0].submit
    return replace(trace, jobs=tuple(replace(job, submit=job.submit - start) for job in jobs))


def detect_format(file: TraceFile) -> str:
    """The format of a file, from its first line."""
    first = file.first_line
    columns = {column.strip() for column in first.split(",")}
    for trace_format, required in _COLUMNS.items():
        if columns.issuperset(required):
            return trace_format
    if first.count("\t") == len(shockwave.COLUMNS) - 1:
        return "shockwave"
    raise Invalid(
        f"{file.name}: line 1: not a trace that we know",
        hint=f"give --format ({', '.join(FORMATS)}), or name the columns: {', '.join(csv_format.COLUMNS)}",
    )


def load_quotas(file: TraceFile, gpus_per_node: int) -> dict[str, int]:
    """GPUs by project: columns `project,gpus`, or Philly's nodes by virtual cluster."""
    if {column.strip() for column in file.first_line.split(",")} == set(philly.SIZE_COLUMNS):
        return {name: nodes * gpus_per_node for name, nodes in philly.nodes_by_project(file).items()}
    return {
        row.text("project"): row.whole("gpus")
        for row in rows_with_header(file, ("project", "gpus"), ("project", "gpus"))
    }
