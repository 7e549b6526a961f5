"""Shapes that several kinds share: amounts of resources, conditions, and where pods may run."""

from __future__ import annotations

from typing import Literal

from aliquot.api.serialization import record

DeviceStrategy = Literal["binpack", "spread"]


NodeStrategy = Literal["binpack", "spread", "least-fragments"]


@record
class Placement:
    """Whether pods are packed together, spread out, or put where they leave the least room that nobody can use."""

    gpu: NodeStrategy | None = None
    """Which nodes pods with GPUs get; binpack unless given."""
    cpu: NodeStrategy | None = None
    """Which nodes pods without GPUs get; binpack unless given."""
    device: DeviceStrategy | None = None
    """Which GPU of a node a fraction gets; binpack unless given."""
