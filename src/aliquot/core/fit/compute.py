"""Enough CPU, memory and pod places."""

from __future__ import annotations

from aliquot.core.model import Task
from aliquot.core.plan import Refusal, Verdict
from aliquot.core.room import Free


def enough_compute(task: Task, free: Free) -> Refusal | None:
    request, node = task.request, free.node
    if request.cpu > node.cpu or request.memory > node.memory:
        return Refusal("too-large", Verdict.NEVER, "with less CPU or memory in all")
    if request.cpu > free.cpu:
        return Refusal("enough-cpu", Verdict.NOT_NOW, f"with {max(free.cpu, 0) / 1000:g} cores free")
    if request.memory > free.memory:
        return Refusal("enough-memory", Verdict.NOT_NOW, f"with {max(free.memory, 0) >> 20} MiB of memory free")
    if free.pods < 1:
        return Refusal("enough-pods", Verdict.NOT_NOW, "without a place for another pod")
    return None
