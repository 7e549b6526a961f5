"""Rules for whether a task may use a node at all, whatever runs there now.

One rule is one module with one function, which returns a refusal or None. `node_refusal` applies them all. What is free
on a node is no subject of these rules: see `node_state` and `task_class`.
"""

from __future__ import annotations

from collections.abc import Callable

from aliquot.planner.model import Node, Task
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.placement.fit.mig import offers_device
from aliquot.planner.placement.fit.node_affinity import matches_node_affinity
from aliquot.planner.placement.fit.node_selector import matches_selector
from aliquot.planner.placement.fit.node_size import large_enough
from aliquot.planner.placement.fit.ready import is_ready
from aliquot.planner.placement.fit.roles import has_role
from aliquot.planner.placement.fit.taints import tolerates_taints
from aliquot.planner.plan import Refusal

Rule = Callable[[Task, Node, Cluster], Refusal | None]
# Users see the first refusal: what they asked for comes first, then what the node is like.
RULES: tuple[Rule, ...] = (matches_selector, matches_node_affinity, has_role, tolerates_taints, offers_device, is_ready)

__all__ = ["RULES", "Cluster", "large_enough", "node_refusal"]


def node_refusal(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    for rule in RULES:
        if refusal := rule(task, node, cluster):
            return refusal
    return None
