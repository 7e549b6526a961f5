"""Only nodes of which holds what a task, or a volume that it mounts, says about its node."""

from __future__ import annotations

from aliquot.planner.model import Node, NodeSelectorRequirement, Task
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.plan import Refusal, Verdict


def matches_node_affinity(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    for alternatives in task.affinity:
        if not any(all(matches_requirement(one, node) for one in term) for term in alternatives):
            return Refusal("node-affinity", Verdict.NEVER, "not as its node affinity or its volumes want it")
    return None


def matches_requirement(expression: NodeSelectorRequirement, node: Node) -> bool:
    """As Kubernetes has it: NotIn also holds where the label is missing; Gt and Lt only between whole numbers."""
    found = node.labels.get(expression.key) if expression.key else node.name
    match expression.operator:
        case "In":
            return found in expression.values
        case "NotIn":
            return found not in expression.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            return found is not None and _compares(found, expression)
    return False


def _compares(found: str, expression: NodeSelectorRequirement) -> bool:
    try:
        value, bound = int(found), int(expression.values[0])
    except (ValueError, IndexError):
        return False
    return value > bound if expression.operator == "Gt" else value < bound
