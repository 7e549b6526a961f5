"""openb as a trace: a pod arrives each second and stays; a pod that does not fit at once is dropped.

The cluster fills up, and the final allocation measures the packing. Nothing may be evicted or moved. The nodes are in
`openb_node_list_gpu_node.csv` beside the pods.
"""

from __future__ import annotations

from aliquot.errors import Invalid
from aliquot.sim.traces import openb
from aliquot.sim.traces.csv_rows import TraceFile, read_file
from aliquot.sim.traces.record import Trace, TraceJob

COLUMNS = openb.POD_COLUMNS
_NODES = "openb_node_list_gpu_node.csv"
_SEED = 42  # the first seed of the publishers


def load(file: TraceFile, seed: int | None = None) -> Trace:
    if file.path is None:
        raise Invalid(f"{file.name}: pods without their nodes", hint=f"give a file that has {_NODES} beside it")
    nodes = openb.nodes(read_file(str(file.path.with_name(_NODES))))
    gpus = sum(len(node.devices) for node in nodes)
    order = openb.arrivals(openb.pods(file), _SEED if seed is None else seed, gpus)
    jobs = tuple(_job(pod, index) for index, pod in enumerate(order))
    return Trace(file.name, "openb", jobs, quotas={"default": gpus}, custom_nodes=nodes)


def _job(pod: openb.Pod, index: int) -> TraceJob:
    request = pod.request
    return TraceJob(
        name=f"{pod.name}-{index}",
        submit=index,
        duration=None,
        gpu_milli=pod.milli,
        tasks=1,
        preemptible=False,
        cpu=request.cpu,
        memory=request.memory,
        node_types=pod.models,
        may_wait=False,
    )
