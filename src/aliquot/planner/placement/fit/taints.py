"""Nodes whose taints the task tolerates."""

from __future__ import annotations

from aliquot.planner.model import Node, Taint, Task, Toleration
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.plan import Refusal, Verdict


def tolerates_taints(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    for taint in node.taints:
        if taint.effect != "PreferNoSchedule" and not any(
            _tolerates(toleration, taint) for toleration in task.tolerations
        ):
            return Refusal("taint", Verdict.NEVER, f"tainted {taint.key}")
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    return (
        toleration.key in ("", taint.key)
        and toleration.value in (None, taint.value)
        and toleration.effect in ("", taint.effect)
    )
