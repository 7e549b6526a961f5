"""openb as a replay: a pod comes each second and stays; one that does not fit at once is dropped for good.

So the cluster fills up, and what is in use in the end says how well it was packed. Nothing may be stopped or moved. The
nodes are in `openb_node_list_gpu_node.csv` beside the pods.
"""

from __future__ import annotations

from aliquot.errors import Invalid
from aliquot.sim.traces import openb
from aliquot.sim.traces.csv_rows import Text, read
from aliquot.sim.traces.record import Trace, TraceJob

COLUMNS = openb.POD_COLUMNS
_NODES = "openb_node_list_gpu_node.csv"
_SEED = 42  # the first of those that its publishers used


def load(text: Text, seed: int | None = None) -> Trace:
    if text.path is None:
        raise Invalid(f"{text.name}: pods without their nodes", hint=f"give a file that has {_NODES} beside it")
    machines = openb.nodes(read(str(text.path.with_name(_NODES))))
    gpus = sum(len(node.devices) for node in machines)
    order = openb.arrivals(openb.pods(text), _SEED if seed is None else seed, gpus)
    jobs = tuple(_job(pod, index) for index, pod in enumerate(order))
    return Trace(text.name, "openb", jobs, quotas={"default": gpus}, machines=machines)


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
        patient=False,
    )
