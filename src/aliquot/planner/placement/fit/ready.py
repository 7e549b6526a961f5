"""Nodes that are ready and schedulable."""

from __future__ import annotations

from aliquot.planner.model import Node, Task
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.plan import Refusal, Verdict


def is_ready(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    if node.ready:
        return None
    return Refusal("not-ready", Verdict.NOT_NOW, "not ready")
