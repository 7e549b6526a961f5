"""The traces of Muri (SIGCOMM'22): 64 GPUs, jobs of 1 to 32 GPUs, all in one project.

A job's duration is its iterations times the time of one, plus 1.5 %, as in the published runs. A stopped job loses no
progress there, but 10 seconds with each restart.
"""

from __future__ import annotations

from aliquot.sim.traces.csv_rows import TraceFile, rows_with_header
from aliquot.sim.traces.record import Trace, TraceJob

COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "iteration_time")
_SLOWDOWN = 1.015
_RESTART_SECONDS = 10


def load(file: TraceFile) -> Trace:
    jobs = tuple(
        TraceJob(
            name=f"job-{row.text('job_id')}",
            submit=row.number("submit_time") / 1000,
            duration=row.number("iterations") * row.number("iteration_time") / 1000 * _SLOWDOWN,
            gpu_milli=row.whole("num_gpu", least=1) * 1000,
        )
        for row in rows_with_header(file, COLUMNS)
    )
    return Trace(file.name, "muri", jobs, 8, 8, {"default": 64}, restart_cost=_RESTART_SECONDS, checkpoint_every=0)
