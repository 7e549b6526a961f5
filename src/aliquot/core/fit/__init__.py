"""Whether a task can go to a node: one rule, one file, one function `(task, node's room) -> Refusal | None`."""

from __future__ import annotations

from collections.abc import Callable

from aliquot.core.fit.compute import enough_compute
from aliquot.core.fit.devices import enough_devices
from aliquot.core.fit.place import allowed_place
from aliquot.core.fit.ready import is_ready
from aliquot.core.model import Task
from aliquot.core.plan import Refusal
from aliquot.core.room import Free

Rule = Callable[[Task, Free], Refusal | None]
# Cheap and final ones first: the first refusal is the one that is told.
# Its text goes on after "2 nodes": "with 1 GPU free", "not ready".
RULES: tuple[Rule, ...] = (is_ready, allowed_place, enough_devices, enough_compute)


def refusal(task: Task, free: Free) -> Refusal | None:
    for rule in RULES:
        if found := rule(task, free):
            return found
    return None
