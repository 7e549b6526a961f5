"""Shapes that several kinds share: amounts of resources, conditions, and where pods may run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from aliquot.api.field_types import Bytes, Milli
from aliquot.api.serialization import record


@record
class Amounts:
    """Amounts of the three resources that quotas count."""

    gpu: Milli | None = None
    """GPUs, to a thousandth."""
    cpu: Milli | None = None
    """CPU cores, to a thousandth."""
    memory: Bytes | None = None
    """CPU memory, such as 512Gi."""


@record
class Quota:
    """What is guaranteed."""

    gpu: Milli = 0
    """Guaranteed GPUs; none unless given."""
    cpu: Milli | None = None
    """Guaranteed CPU cores; unlimited unless given."""
    memory: Bytes | None = None
    """Guaranteed CPU memory; unlimited unless given."""


@record
class Weights:
    """How strongly a queue takes part in the split of what others leave idle, per resource."""

    gpu: Milli | None = None
    """Weight for spare GPUs."""
    cpu: Milli | None = None
    """Weight for spare CPU cores."""
    memory: Milli | None = None
    """Weight for spare CPU memory."""


def _weights(value: Any) -> Any:
    # A single number is short for the same weight on all three.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"gpu": value, "cpu": value, "memory": value}
    return value


# Written as an object; a single number is read too.
WeightsOrNumber = Annotated[Weights, BeforeValidator(_weights)]
