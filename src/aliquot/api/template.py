"""What fills in and bounds workloads: templates and policies.

A template gives values for fields that a submission leaves out. A policy also says which values are allowed. Both
are written against the JSON of a workload's spec, so that every field of a workload, present and future, can be
named. Those in namespace `runai` hold for everyone; those in a project's namespace for that project.
"""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.api.conditions import Condition
from aliquot.api.field_types import Text
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record
from aliquot.api.workload import WorkloadSpec, WorkloadType
from aliquot.errors import Fault


@record
class TemplateSpec:
    """Values for workloads that name the template."""

    values: WorkloadSpec = WorkloadSpec()
    """Fields of a workload's spec; those that a submission gives itself win."""
    default: bool = False
    """Whether it is applied to every submission that names no other."""
    types: tuple[WorkloadType, ...] = ()
    """Types of workload it is for; all when empty."""
    description: Text = ""
    """For people."""
    created_by: str = ""
    """Who made it."""


@record
class TemplateStatus:
    """Whether the template can be used."""

    conditions: tuple[Condition, ...] = ()
    """What is true about it."""


@record
class Template:
    """Named values that shorten a submission."""

    metadata: Metadata
    """Name and marks."""
    spec: TemplateSpec = TemplateSpec()
    """Values for workloads that name it."""
    status: TemplateStatus = TemplateStatus()
    """Whether it can be used; written by the platform."""

    def faults(self) -> Iterator[Fault]:
        return self.spec.values.compute.faults("spec.values.compute")
