"""The traces of Shockwave (NSDI'23): all jobs in one project; tab-separated, without a header.

The file name begins with the number of jobs. Each published number of jobs has its number of GPUs.
"""

from __future__ import annotations

from aliquot.sim.traces.csv_rows import TraceFile, rows_without_header
from aliquot.sim.traces.record import Trace, TraceJob

COLUMNS = (
    "job_type", "command", "working_dir", "steps_arg", "needs_data_dir", "total_steps", "scale_factor", "mode",
    "priority_weight", "SLO", "duration", "arrival_time",
)  # fmt: skip
_GPUS_PER_NODE = 4
_GPUS_BY_JOBS = {120: 32, 220: 64, 460: 128, 900: 256}
_GPUS = 32


def load(file: TraceFile) -> Trace:
    jobs = tuple(
        TraceJob(
            name=f"job-{index}",
            submit=row.number("arrival_time"),
            duration=row.number("duration"),
            gpu_milli=row.whole("scale_factor", least=1) * 1000,
        )
        for index, row in enumerate(rows_without_header(file, COLUMNS, "\t"))
    )
    gpus = _GPUS_BY_JOBS.get(len(jobs), _GPUS)
    nodes = gpus // _GPUS_PER_NODE
    return Trace(file.name, "shockwave", jobs, nodes, _GPUS_PER_NODE, {"default": gpus}, 10, checkpoint_every=0)
