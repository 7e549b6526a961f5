"""Traces of real clusters, as others published them, and as anybody can write them.

load       a file -> a Trace; its format is known by its content
quotas     a file of quotas -> GPUs by project
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from aliquot.errors import Invalid
from aliquot.sim.traces import csv_format, inflation, muri, philly, shockwave
from aliquot.sim.traces.csv_rows import Text, read, table
from aliquot.sim.traces.record import Trace, TraceJob, machine

__all__ = ["FORMATS", "Trace", "TraceJob", "load", "machine", "quotas", "read"]

FORMATS: Mapping[str, Callable[[Text], Trace]] = {
    "csv": csv_format.load,
    "muri": muri.load,
    "openb": inflation.load,
    "philly": philly.load,
    "shockwave": shockwave.load,
}
_COLUMNS = {"csv": csv_format.COLUMNS, "muri": muri.COLUMNS, "openb": inflation.COLUMNS, "philly": philly.COLUMNS}


def load(text: Text, form: str | None = None, limit: int | None = None, seed: int | None = None) -> Trace:
    """Jobs in the order of their submission, the first at 0; `limit`: only so many of them. With a seed those of the
    same moment are shuffled; where the order of all is a matter of chance, it is this one."""
    form = form or recognised(text)
    trace = inflation.load(text, seed) if form == "openb" else FORMATS[form](text)
    if not trace.jobs:
        raise Invalid(f"{text.name}: holds no jobs")
    given = trace.jobs if seed is None else random.Random(seed).sample(trace.jobs, len(trace.jobs))  # noqa: S311 - an order, not a secret
    jobs = sorted(given, key=lambda job: job.submit)[:limit]
    start = jobs[0].submit
    return replace(trace, jobs=tuple(replace(job, submit=job.submit - start) for job in jobs))


def recognised(text: Text) -> str:
    """The format of a file, by its first line."""
    first = text.first
    titles = {title.strip() for title in first.split(",")}
    for form, columns in _COLUMNS.items():
        if titles.issuperset(columns):
            return form
    if first.count("\t") == len(shockwave.COLUMNS) - 1:
        return "shockwave"
    raise Invalid(
        f"{text.name}: line 1: not a trace that we know",
        hint=f"give --format ({', '.join(FORMATS)}), or name the columns: {', '.join(csv_format.COLUMNS)}",
    )


def quotas(text: Text, gpus_per_node: int) -> dict[str, int]:
    """GPUs by project: columns `project,gpus`, or Philly's nodes by virtual cluster."""
    if {title.strip() for title in text.first.split(",")} == set(philly.SIZES):
        return {name: nodes * gpus_per_node for name, nodes in philly.nodes_by_project(text).items()}
    return {row.text("project"): row.whole("gpus") for row in table(text, ("project", "gpus"), ("project", "gpus"))}
