"""Placement strategies: how the scheduler chooses among the nodes and GPUs that fit."""

from __future__ import annotations

from typing import Literal

from aliquot.api.serialization import record

DeviceStrategy = Literal["binpack", "spread"]


NodeStrategy = Literal["binpack", "spread", "least-fragments"]


@record
class Placement:
    """Placement strategies: pack pods together, spread them, or leave the least unusable capacity."""

    gpu: NodeStrategy | None = None
    """Strategy that chooses the node of a pod with GPUs; defaults to binpack."""
    cpu: NodeStrategy | None = None
    """Strategy that chooses the node of a pod without GPUs; defaults to binpack."""
    device: DeviceStrategy | None = None
    """Strategy that chooses the GPU of a fraction within a node; defaults to binpack."""
