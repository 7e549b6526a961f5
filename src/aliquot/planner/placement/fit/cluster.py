"""What a rule about one node must know of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aliquot.labels import CPU_WORKER, GPU_WORKER
from aliquot.planner.model import Node


@dataclass(frozen=True, slots=True)
class Cluster:
    # Once a node is marked as a worker, only marked nodes are used.
    roles: bool = False

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Cluster:
        return cls(any(GPU_WORKER in node.labels or CPU_WORKER in node.labels for node in nodes))
