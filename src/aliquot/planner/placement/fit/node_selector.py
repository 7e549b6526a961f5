"""Nodes with the labels and the node type that the task selects."""

from __future__ import annotations

from aliquot.labels import NODE_TYPE
from aliquot.planner.model import Node, Task
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.plan import Refusal, Verdict


def matches_selector(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    labels = node.labels
    if any(labels.get(key) != value for key, value in task.selector.items()):
        return Refusal("node-selector", Verdict.NEVER, "without the labels it needs")
    if task.node_types and labels.get(NODE_TYPE) not in task.node_types:
        return Refusal("node-type", Verdict.NEVER, f"not of type {' or '.join(task.node_types)}")
    return None
