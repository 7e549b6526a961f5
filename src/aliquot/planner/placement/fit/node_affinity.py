"""Nodes that satisfy the node affinity of the task and of the volumes that it mounts."""

from __future__ import annotations

from aliquot.planner.model import Node, NodeSelectorRequirement, Task
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.plan import Refusal, Verdict


def matches_node_affinity(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    for terms in task.affinity:
        if not any(all(matches_requirement(requirement, node) for requirement in term) for term in terms):
            return Refusal("node-affinity", Verdict.NEVER, "not matching its node affinity or its volumes")
    return None


def matches_requirement(requirement: NodeSelectorRequirement, node: Node) -> bool:
    """As in Kubernetes, NotIn also matches a node without the label, and Gt and Lt compare only whole numbers."""
    value = node.labels.get(requirement.key) if requirement.key else node.name
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and _compares(value, requirement)
    return False


def _compares(value: str, requirement: NodeSelectorRequirement) -> bool:
    try:
        number, bound = int(value), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if requirement.operator == "Gt" else number < bound
