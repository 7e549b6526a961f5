"""Facts about all nodes that a rule about one node needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aliquot.labels import CPU_WORKER, GPU_WORKER
from aliquot.planner.model import Node


@dataclass(frozen=True, slots=True)
class Cluster:
    # Whether a node has a worker role. If one has, only nodes with a role are used.
    roles: bool = False

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Cluster:
        return cls(any(GPU_WORKER in node.labels or CPU_WORKER in node.labels for node in nodes))
