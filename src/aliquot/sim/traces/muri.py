"""The traces of Muri (SIGCOMM'22): 64 GPUs, jobs of 1 to 32, all in one project.

Work is iterations times the time of one, and 1.5 % more, as in the published runs. A job that is stopped loses no
progress there, but 10 seconds each time.
"""

from __future__ import annotations

from aliquot.sim.traces.csv_rows import Text, table
from aliquot.sim.traces.record import Trace, TraceJob

COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "iteration_time")
_SLOWER = 1.015
_RESTART_SECONDS = 10


def load(text: Text) -> Trace:
    jobs = tuple(
        TraceJob(
            name=f"job-{row.text('job_id')}",
            submit=row.number("submit_time") / 1000,
            duration=row.number("iterations") * row.number("iteration_time") / 1000 * _SLOWER,
            gpu_milli=row.whole("num_gpu", least=1) * 1000,
        )
        for row in table(text, COLUMNS)
    )
    return Trace(text.name, "muri", jobs, 8, 8, {"default": 64}, restart_cost=_RESTART_SECONDS, checkpoint_every=0)
