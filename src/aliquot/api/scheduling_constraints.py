"""Scheduling constraints of a workload: tolerations, topology, pod affinity and subgroups of a gang."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aliquot.api.field_types import EMPTY_MAP, Count, Labels, Positive
from aliquot.api.serialization import record


@record
class Toleration:
    """Allows pods on nodes with a matching taint."""

    key: str = ""
    """Key of the taint. An empty key with operator Exists matches every taint."""
    operator: Literal["Equal", "Exists"] | None = None
    """Equal compares key and value, Exists only the key; defaults to Equal."""
    value: str = ""
    """Value of the taint, for operator Equal."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty matches every effect."""
    toleration_seconds: int | None = None
    """How long the pod tolerates a NoExecute taint; forever unless set."""


@record
class NamedToleration(Toleration):
    """A toleration with a name, by which templates and policies refer to it."""

    name: str = ""
    """Name by which templates and policies refer to the toleration."""
    exclude: bool = False
    """Whether to remove the toleration of this name that a template or policy adds."""


@record
class Topology:
    """Keeps the pods of a workload close to each other."""

    name: str = ""
    """Name of the topology, for clusters that have more than one."""
    required: str | None = None
    """Node label for which all pods must run on nodes with the same value."""
    preferred: str | None = None
    """Node label for which all pods run on nodes with the same value, if possible."""


@record
class PodRule:
    """Affinity or anti-affinity to pods with given labels."""

    labels: Labels = EMPTY_MAP
    """Labels of the other pods."""
    topology_key: str = ""
    """Node label whose value says which nodes count as the same location."""
    scheduling_rule: Literal["Required", "Preferred"] | None = None
    """Whether the rule is Required or Preferred; defaults to Required."""


@record
class Subgroup:
    """A group of pods within the gang that must start together."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the subgroup."""
    parent: str | None = None
    """Name of the subgroup that contains this one."""
    min_available: Positive | None = None
    """Minimum number of pods that must run; defaults to all."""
    min_subgroups: Positive | None = None
    """Minimum number of child subgroups that must reach their own minimum; defaults to all."""
    topology: Topology | None = None
    """Keeps the pods of the subgroup close to each other."""
    replicas: Count | None = None
    """Number of pods in the subgroup."""
