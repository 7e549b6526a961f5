"""Microsoft's Philly trace (2017): virtual clusters become projects, and their sizes quotas.

The sizes, in nodes of 8 GPUs, are in `philly_vc_nodes.csv` beside the trace.
"""

from __future__ import annotations

from aliquot.sim.traces.csv_rows import TraceFile, read_file, rows_with_header
from aliquot.sim.traces.record import Trace, TraceJob

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
SIZE_COLUMNS = ("vc", "node num")
_NODES = 352
_GPUS = 8


def load(file: TraceFile) -> Trace:
    jobs = tuple(
        TraceJob(
            name=f"job-{index}",
            submit=row.moment("timestamp"),
            duration=row.number("duration"),
            gpu_milli=row.whole("num_gpus", least=1) * 1000,
            project=row.text("cluster"),
        )
        for index, row in enumerate(rows_with_header(file, COLUMNS))
    )
    sizes = {} if file.path is None else _sizes(file)
    return Trace(
        file.name, "philly", jobs, sum(sizes.values()) or _NODES, _GPUS, {k: v * _GPUS for k, v in sizes.items()}
    )


def _sizes(file: TraceFile) -> dict[str, int]:
    assert file.path is not None
    sizes_file = file.path.with_name("philly_vc_nodes.csv")
    return nodes_by_project(read_file(str(sizes_file))) if sizes_file.exists() else {}


def nodes_by_project(file: TraceFile) -> dict[str, int]:
    return {row.text("vc"): row.whole("node num", least=0) for row in rows_with_header(file, SIZE_COLUMNS)}
