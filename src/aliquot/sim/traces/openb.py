"""Alibaba's openb (cluster-trace-gpu-v2023): nodes with seven GPU models, and pods that request cores, memory and GPUs.

openb tests packing and has no durations: pods arrive one by one in a shuffled order, and stay. `arrivals` makes that
order as the publishers do. openb_trace.py turns it into a trace.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from aliquot import labels
from aliquot.planner import Device, Node, Request
from aliquot.planner.model import GPU
from aliquot.sim.traces.csv_rows import TraceFile, rows_with_header

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
PODS_PER_NODE = 1001
# Device memory is not recorded; a power of ten so that fractions of it are whole numbers.
_DEVICE_MIB = 10_000


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    request: Request
    models: tuple[str, ...] = ()  # allowed GPU models; all when empty

    @property
    def milli(self) -> int:
        return self.request.devices * self.request.milli


def nodes(file: TraceFile) -> tuple[Node, ...]:
    return tuple(
        Node(
            row.text("sn"),
            tuple(Device(index, _DEVICE_MIB) for index in range(row.whole("gpu"))),
            row.whole("cpu_milli"),
            row.whole("memory_mib") << 20,
            PODS_PER_NODE,
            {labels.NODE_TYPE: row.text("model", "")},
        )
        for row in rows_with_header(file, NODE_COLUMNS)
    )


def pods(file: TraceFile) -> list[Pod]:
    """Sorted by name."""
    pods = []
    for row in rows_with_header(file, POD_COLUMNS):
        devices = row.whole("num_gpu")
        milli = row.whole("gpu_milli") if devices else 0
        request = Request(devices, milli, 0, row.whole("cpu_milli"), row.whole("memory_mib") << 20)
        models = tuple(model for model in row.text("gpu_spec", "").split("|") if model)
        pods.append(Pod(row.text("name"), request, models))
    return sorted(pods, key=lambda pod: pod.name)


def arrivals(pods: Sequence[Pod], seed: int, gpus: int, upto: Fraction = Fraction(13, 10)) -> list[Pod]:
    """All pods in a shuffled order, then random ones again until they request `upto` times the cluster's GPUs."""
    rng = random.Random(seed)  # noqa: S311  # a repeatable shuffle
    order = list(pods)
    rng.shuffle(order)
    candidates, requested = list(order), sum(pod.milli for pod in order)
    while True:
        pod = rng.choice(candidates)
        # The publishers count one device of the pod here, not all of them.
        if requested + pod.request.milli > upto * gpus * GPU:
            return order
        order.append(pod)
        requested += pod.milli
