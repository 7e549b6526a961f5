"""Shapes that several kinds share: amounts of resources, conditions, and where pods may run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema

from aliquot import units
from aliquot.api.base import Bytes, Int64, Milli, Time, Word, record


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


def _as_grace(value: object) -> int:
    return -1 if value in (-1, "-1", "never") else units.duration(value)


# A duration, or -1 for "never": the spelling that scenario files and the platforms before us have.
Grace = Annotated[
    int,
    BeforeValidator(_as_grace),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": -1,
            "pattern": r"^(-1|never|[0-9]+[smhd]?)$",
        }
    ),
]
Placing = Literal["binpack", "spread"]
NodePlacing = Literal["binpack", "spread", "least-fragments"]


@record
class Placement:
    """Whether pods are packed together, spread out, or put where they leave the least room that nobody can use."""

    gpu: NodePlacing | None = None
    """Which nodes pods with GPUs get; binpack unless given."""
    cpu: NodePlacing | None = None
    """Which nodes pods without GPUs get; binpack unless given."""
    device: Placing | None = None
    """Which GPU of a node a fraction gets; binpack unless given."""


@record
class Condition:
    """One thing that is true or not about an object, since when, and why."""

    type: Word
    """What the condition is about, such as Ready."""
    status: Word
    """True, False or Unknown."""
    reason: Word = ""
    """One word for programs."""
    message: str = ""
    """A sentence for people."""
    last_transition_time: Time | None = None
    """When the status last changed."""
    observed_generation: Int64 | None = None
    """The generation of the spec that this was said about."""


@record
class Toleration:
    """Allows pods on nodes that carry a matching taint."""

    key: str = ""
    """Key of the taint; empty with operator Exists matches every taint."""
    operator: Literal["Equal", "Exists"] | None = None
    """Equal compares the value too, Exists only the key; Equal unless given."""
    value: str = ""
    """Value of the taint, for Equal."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty matches all effects."""
    toleration_seconds: int | None = None
    """How long a NoExecute taint is borne; for ever unless given."""


@record
class KeyRef:
    """The name of something in the same namespace, and a key in it."""

    name: str
    """Name of the object."""
    key: str = ""
    """Key inside the object."""
