"""Whether a task may go to a node at all, whoever is there now: one rule, one file, one function that answers with a
refusal or None. How much is free is not asked here."""

from __future__ import annotations

from collections.abc import Callable

from aliquot.core.fit.affinity import is_like
from aliquot.core.fit.cluster import Cluster
from aliquot.core.fit.labels import has_labels
from aliquot.core.fit.mig import right_device
from aliquot.core.fit.ready import is_ready
from aliquot.core.fit.roles import has_role
from aliquot.core.fit.size import large_enough
from aliquot.core.fit.taints import bears_taints
from aliquot.core.model import Node, Task
from aliquot.core.plan import Refusal

Rule = Callable[[Task, Node, Cluster], Refusal | None]
# The first refusal is the one that is told: first what a user asked for, then what the node is like.
RULES: tuple[Rule, ...] = (has_labels, is_like, has_role, bears_taints, right_device, is_ready)

__all__ = ["RULES", "Cluster", "large_enough", "place_refusal"]


def place_refusal(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    for rule in RULES:
        if found := rule(task, node, cluster):
            return found
    return None
