"""Workload policies: defaults, rules and imposed values for workloads.

They are written against the JSON of a workload's spec, so that they can name every present and future field. A policy
in namespace `runai` applies to every project, one in a project's namespace only to that project.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema

from aliquot import units
from aliquot.api.conditions import Condition
from aliquot.api.field_types import EMPTY_MAP, Int64, Strings, Text
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import UNKNOWN_FIELD, decode, record
from aliquot.api.workload import WorkloadSpec, WorkloadType
from aliquot.errors import Fault, Invalid


def _as_bound(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    units.exact(value)
    return str(value).strip()


# A number or an amount. A fraction is written as text, because custom resources have integers or text here.
Bound = Annotated[
    int | str,
    BeforeValidator(_as_bound),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": r"^-?([0-9]+(\.[0-9]+)?|\.[0-9]+)(k|[KMGTPE]i?)?B?$",
        }
    ),
]


@record
class DefaultFrom:
    """A default that is computed from another field."""

    field: str
    """Path of the other field, such as compute.cpu."""
    factor: float = 1
    """Factor by which the other field is multiplied."""


@record
class Option:
    """An allowed value of a field."""

    value: str
    """The value."""
    displayed: str = ""
    """Text that forms show for the value."""


@record
class FieldRule:
    """Rules for one field of a workload."""

    required: bool | None = None
    """Whether the field must be set."""
    can_edit: bool | None = None
    """Whether a submission may set a value other than the default."""
    can_add: bool | None = None
    """Whether a submission may add items to a list."""
    locked: Strings = ()
    """Names of items that a submission may neither change nor remove."""
    min: Bound | None = None
    """Minimum value."""
    max: Bound | None = None
    """Maximum value."""
    step: Bound | None = None
    """Step between allowed values, counted from the minimum."""
    options: tuple[Option, ...] = ()
    """The only allowed values."""
    default_from: DefaultFrom | None = None
    """Default that is computed from another field."""


@record
class PolicySpec:
    """Defaults, rules and imposed values for workloads."""

    types: tuple[WorkloadType, ...] = ()
    """Workload types to which the policy applies; all if empty."""
    department: str | None = None
    """Department to whose projects a policy in namespace runai applies; all projects unless set."""
    distributed: bool | None = None
    """Whether the policy applies only to distributed training (true) or only to other workloads (false)."""
    defaults: Mapping[str, Any] = EMPTY_MAP
    """Values for fields that a submission leaves out, in the shape of a workload's spec."""
    rules: Mapping[str, FieldRule] = EMPTY_MAP
    """Rules by the path of their field, such as compute.gpu."""
    imposed: Mapping[str, Any] = EMPTY_MAP
    """Values that override the submission, in the shape of a workload's spec."""
    description: Text = ""
    """Description of the policy, for display."""
    created_by: str = ""
    """User who created the policy."""


PolicyPhase = Literal["Creating", "Updating", "Deleting", "Ready", "Failed"]


@record
class PolicyStatus:
    """Observed state of a policy."""

    phase: PolicyPhase | None = None
    """Lifecycle phase of the policy."""
    message: str = ""
    """Why the policy is not in force."""
    observed_generation: Int64 | None = None
    """Generation of the spec that is in force."""
    conditions: tuple[Condition, ...] = ()
    """Conditions of the policy."""


@record
class Policy:
    """Defaults and rules for the workloads of the cluster, a department or a project."""

    metadata: Metadata
    """Standard object metadata."""
    spec: PolicySpec = PolicySpec()
    """Defaults, rules and imposed values."""
    status: PolicyStatus = PolicyStatus()
    """Observed state of the policy; written by the platform."""

    def faults(self) -> Iterator[Fault]:
        """Checks the values and paths against the workload's type: a mistake here would break every submission."""
        for part, values in (("defaults", self.spec.defaults), ("imposed", self.spec.imposed)):
            yield from (Fault(f"spec.{part}.{fault.path}", fault.text) for fault in _workload_faults(values))
        for path in self.spec.rules:
            if any(fault.text == UNKNOWN_FIELD for fault in _workload_faults(_nested(path))):
                yield Fault(f"spec.rules[{path!r}]", "workloads have no such field")


def _workload_faults(values: Mapping[str, Any]) -> Sequence[Fault]:
    try:
        decode(WorkloadSpec, values, strict=True)
    except Invalid as exc:
        return exc.faults
    return ()


def _nested(path: str) -> Mapping[str, Any]:
    value: Any = None
    for key in reversed(path.split(".")):
        value = {key: value}
    return value  # type: ignore[no-any-return]  # a path has at least one key
