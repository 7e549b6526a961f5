"""Shapes that several kinds share: amounts of resources, conditions, and where pods may run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aliquot.api.field_types import EMPTY_MAP, Count, Labels, Positive
from aliquot.api.serialization import record


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
class NamedToleration(Toleration):
    """Allows pods on nodes that carry a matching taint; with a name that templates and policies know it by."""

    name: str = ""
    """What templates and policies call it."""
    exclude: bool = False
    """Leaves out the toleration of this name that a template or policy adds."""


@record
class Topology:
    """Keeps pods near each other."""

    name: str = ""
    """Which topology is meant, where there are several."""
    required: str | None = None
    """Node label: all pods run where it has one value, or not at all."""
    preferred: str | None = None
    """Node label: all pods run where it has one value, if that is possible."""


@record
class PodRule:
    """Runs pods only where there are, or are no, pods with some labels."""

    labels: Labels = EMPTY_MAP
    """Labels of the other pods."""
    topology_key: str = ""
    """Node label whose value tells which nodes count as the same place."""
    scheduling_rule: Literal["Required", "Preferred"] | None = None
    """Whether it must hold or is only wished for; Required unless given."""


@record
class Subgroup:
    """Pods that must start together within the whole."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the group."""
    parent: str | None = None
    """Group it is a part of."""
    min_available: Positive | None = None
    """Fewest pods it runs with; all unless given."""
    min_subgroups: Positive | None = None
    """Fewest of the groups inside it that must have their minimum; all unless given."""
    topology: Topology | None = None
    """Keeps its pods near each other."""
    replicas: Count | None = None
    """How many pods it has."""
