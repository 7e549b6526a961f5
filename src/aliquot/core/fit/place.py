"""Only nodes the task may go to: their labels, types and taints."""

from __future__ import annotations

from aliquot.core.model import Taint, Task, Toleration
from aliquot.core.plan import Refusal, Verdict
from aliquot.core.room import Free
from aliquot.labels import NODE_TYPE


def allowed_place(task: Task, free: Free) -> Refusal | None:
    labels = free.node.labels
    if any(labels.get(key) != value for key, value in task.selector.items()):
        return Refusal("node-selector", Verdict.NEVER, "without the labels it needs")
    if task.node_types and labels.get(NODE_TYPE) not in task.node_types:
        return Refusal("node-type", Verdict.NEVER, f"not of type {' or '.join(task.node_types)}")
    for taint in free.node.taints:
        if taint.effect != "PreferNoSchedule" and not any(_bears(one, taint) for one in task.tolerations):
            return Refusal("taint", Verdict.NEVER, f"tainted {taint.key}")
    return None


def _bears(toleration: Toleration, taint: Taint) -> bool:
    return (
        toleration.key in ("", taint.key)
        and toleration.value in (None, taint.value)
        and toleration.effect in ("", taint.effect)
    )
