"""Only nodes that are well and take new work."""

from __future__ import annotations

from aliquot.core.model import Task
from aliquot.core.plan import Refusal, Verdict
from aliquot.core.room import Free


def is_ready(task: Task, free: Free) -> Refusal | None:
    if free.node.ready:
        return None
    return Refusal("not-ready", Verdict.NOT_NOW, "not ready")
