"""Templates: values for the fields that a workload submission leaves out.

A template in namespace `runai` applies to every project, one in a project's namespace only to that project.
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
    """Values for workloads that use the template."""

    values: WorkloadSpec = WorkloadSpec()
    """Fields of a workload's spec. Values that the submission gives override them."""
    default: bool = False
    """Whether the template applies to every submission that does not name another."""
    types: tuple[WorkloadType, ...] = ()
    """Workload types to which the template applies; all if empty."""
    description: Text = ""
    """Description of the template, for display."""
    created_by: str = ""
    """User who created the template."""


@record
class TemplateStatus:
    """Observed state of a template."""

    conditions: tuple[Condition, ...] = ()
    """Conditions of the template."""


@record
class Template:
    """A named set of values for workload submissions."""

    metadata: Metadata
    """Standard object metadata."""
    spec: TemplateSpec = TemplateSpec()
    """Values for workloads that use the template."""
    status: TemplateStatus = TemplateStatus()
    """Observed state of the template; written by the platform."""

    def faults(self) -> Iterator[Fault]:
        return self.spec.values.compute.faults("spec.values.compute")
