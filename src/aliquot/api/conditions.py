"""Shapes that several kinds share: amounts of resources, conditions, and where pods may run."""

from __future__ import annotations

from typing import Literal

from aliquot.api.field_types import Int64, Interned, Time
from aliquot.api.serialization import record


@record
class Condition:
    """One thing that is true or not about an object, since when, and why."""

    type: Interned
    """What the condition is about, such as Ready."""
    status: Interned
    """True, False or Unknown."""
    reason: Interned = ""
    """One word for programs."""
    message: str = ""
    """A sentence for people."""
    last_transition_time: Time | None = None
    """When the status last changed."""
    observed_generation: Int64 | None = None
    """The generation of the spec that this was said about."""


LifecyclePhase = Literal["Creating", "Updating", "Ready", "Failed", "Deleting"]
