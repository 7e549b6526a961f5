"""Whether a task may go to a node at all, whoever is there now: one rule, one file, one function that answers with a
refusal or None. How much is free is not asked here."""

from __future__ import annotations

from collections.abc import Callable

from aliquot.planner.model import Node, Task
from aliquot.planner.placement.fit.affinity import matches_node_affinity
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.placement.fit.labels import matches_selector
from aliquot.planner.placement.fit.mig import offers_device
from aliquot.planner.placement.fit.ready import is_ready
from aliquot.planner.placement.fit.roles import has_role
from aliquot.planner.placement.fit.size import large_enough
from aliquot.planner.placement.fit.taints import tolerates_taints
from aliquot.planner.plan import Refusal

Rule = Callable[[Task, Node, Cluster], Refusal | None]
# The first refusal is the one that is told: first what a user asked for, then what the node is like.
RULES: tuple[Rule, ...] = (matches_selector, matches_node_affinity, has_role, tolerates_taints, offers_device, is_ready)

__all__ = ["RULES", "Cluster", "large_enough", "node_refusal"]


def node_refusal(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    for rule in RULES:
        if found := rule(task, node, cluster):
            return found
    return None
