"""Alibaba's openb (cluster-trace-gpu-v2023): nodes of seven GPU models, and pods that want cores, memory and GPUs.

It has no work to replay, it is a test of packing: pods arrive one by one in a shuffled order, and stay. `arrivals` is
that order as its publishers make it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from aliquot import labels
from aliquot.planner import Device, Node, Request
from aliquot.planner.model import GPU
from aliquot.sim.traces.csv_rows import Text, table

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
PODS_PER_NODE = 1001
# Device memory is not recorded; a power of ten so that fractions of it are whole numbers.
_DEVICE_MIB = 10_000


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    request: Request
    models: tuple[str, ...] = ()  # GPU models it may use; all when empty

    @property
    def milli(self) -> int:
        return self.request.devices * self.request.milli


def nodes(text: Text) -> tuple[Node, ...]:
    return tuple(
        Node(
            row.text("sn"),
            tuple(Device(index, _DEVICE_MIB) for index in range(row.whole("gpu"))),
            row.whole("cpu_milli"),
            row.whole("memory_mib") << 20,
            PODS_PER_NODE,
            {labels.NODE_TYPE: row.text("model", "")},
        )
        for row in table(text, NODE_COLUMNS)
    )


def pods(text: Text) -> list[Pod]:
    """Sorted by name."""
    found = []
    for row in table(text, POD_COLUMNS):
        devices = row.whole("num_gpu")
        milli = row.whole("gpu_milli") if devices else 0
        request = Request(devices, milli, 0, row.whole("cpu_milli"), row.whole("memory_mib") << 20)
        models = tuple(model for model in row.text("gpu_spec", "").split("|") if model)
        found.append(Pod(row.text("name"), request, models))
    return sorted(found, key=lambda pod: pod.name)


def arrivals(some: Sequence[Pod], seed: int, gpus: int, upto: Fraction = Fraction(13, 10)) -> list[Pod]:
    """All pods in a shuffled order, then some drawn again until they want `upto` times as many GPUs as there are."""
    chance = random.Random(seed)  # noqa: S311  # a shuffle that anybody can repeat
    order = list(some)
    chance.shuffle(order)
    again, wanted = list(order), sum(pod.milli for pod in order)
    while True:
        pod = chance.choice(again)
        # The publishers' rule looks at one device of the pod, not at all of them.
        if wanted + pod.request.milli > upto * gpus * GPU:
            return order
        order.append(pod)
        wanted += pod.milli
