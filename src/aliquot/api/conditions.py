"""Conditions and the lifecycle phase, for the status of objects."""

from __future__ import annotations

from typing import Literal

from aliquot.api.field_types import Int64, Interned, Time
from aliquot.api.serialization import record


@record
class Condition:
    """An aspect of an object's state, with the time and the reason of its last change."""

    type: Interned
    """Type of the condition, such as Ready."""
    status: Interned
    """Status of the condition: True, False or Unknown."""
    reason: Interned = ""
    """Reason for the last transition, as one CamelCase word."""
    message: str = ""
    """Human-readable details about the last transition."""
    last_transition_time: Time | None = None
    """Time at which the status last changed."""
    observed_generation: Int64 | None = None
    """Generation of the spec that the condition was computed from."""


LifecyclePhase = Literal["Creating", "Updating", "Ready", "Failed", "Deleting"]
