"""Amounts of GPUs, CPU and memory: usage, quotas and over-quota weights."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from aliquot.api.field_types import Bytes, Milli
from aliquot.api.serialization import record


@record
class Amounts:
    """Amounts of the three resources that quotas count."""

    gpu: Milli | None = None
    """Number of GPUs, with up to three decimals."""
    cpu: Milli | None = None
    """Number of CPU cores, with up to three decimals."""
    memory: Bytes | None = None
    """Amount of CPU memory, such as 512Gi."""


@record
class Quota:
    """Guaranteed amounts of resources."""

    gpu: Milli = 0
    """Guaranteed number of GPUs; defaults to 0."""
    cpu: Milli | None = None
    """Guaranteed number of CPU cores; unlimited unless set."""
    memory: Bytes | None = None
    """Guaranteed amount of CPU memory; unlimited unless set."""


@record
class Weights:
    """Weight of a queue, per resource, when idle resources are divided among queues."""

    gpu: Milli | None = None
    """Weight for idle GPUs."""
    cpu: Milli | None = None
    """Weight for idle CPU cores."""
    memory: Milli | None = None
    """Weight for idle CPU memory."""


def _weights(value: Any) -> Any:
    # A single number is short for the same weight on all three.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"gpu": value, "cpu": value, "memory": value}
    return value


# Written as an object; a single number is read too.
WeightsOrNumber = Annotated[Weights, BeforeValidator(_weights)]
