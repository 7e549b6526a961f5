"""Microsoft's Philly (2017): virtual clusters as projects, their sizes as quotas.

The sizes are in a file of their own, `philly_vc_nodes.csv` beside the jobs, in nodes; a node counts as 8 GPUs.
"""

from __future__ import annotations

from aliquot.sim.traces.csv_rows import Text, read, table
from aliquot.sim.traces.record import Trace, TraceJob

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
SIZES = ("vc", "node num")
_NODES = 352
_GPUS = 8


def load(text: Text) -> Trace:
    jobs = tuple(
        TraceJob(
            name=f"job-{index}",
            submit=row.moment("timestamp"),
            duration=row.number("duration"),
            gpu_milli=row.whole("num_gpus", least=1) * 1000,
            project=row.text("cluster"),
        )
        for index, row in enumerate(table(text, COLUMNS))
    )
    sizes = {} if text.path is None else _sizes(text)
    return Trace(
        text.name, "philly", jobs, sum(sizes.values()) or _NODES, _GPUS, {k: v * _GPUS for k, v in sizes.items()}
    )


def _sizes(text: Text) -> dict[str, int]:
    assert text.path is not None
    beside = text.path.with_name("philly_vc_nodes.csv")
    return nodes_by_project(read(str(beside))) if beside.exists() else {}


def nodes_by_project(text: Text) -> dict[str, int]:
    return {row.text("vc"): row.whole("node num", least=0) for row in table(text, SIZES)}
