"""Only nodes that are well and take new work."""

from __future__ import annotations

from aliquot.core.fit.cluster import Cluster
from aliquot.core.model import Node, Task
from aliquot.core.plan import Refusal, Verdict


def is_ready(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    if node.ready:
        return None
    return Refusal("not-ready", Verdict.NOT_NOW, "not ready")
