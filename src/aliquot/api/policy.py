"""What fills in and bounds workloads: templates and policies.

A template gives values for fields that a submission leaves out. A policy also says which values are allowed. Both
are written against the JSON of a workload's spec, so that every field of a workload, present and future, can be
named. Those in namespace `runai` hold for everyone; those in a project's namespace for that project.
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
    """What it is multiplied by."""


@record
class Option:
    """One value that a field may have."""

    value: str
    """The value."""
    displayed: str = ""
    """How forms show it."""


@record
class FieldRule:
    """What must hold for one field of a workload."""

    required: bool | None = None
    """Whether it must be given."""
    can_edit: bool | None = None
    """Whether a submission may give another value than the default."""
    can_add: bool | None = None
    """Whether a submission may add items to a list."""
    locked: Strings = ()
    """Names of items that may neither be changed nor left out."""
    min: Bound | None = None
    """Least value."""
    max: Bound | None = None
    """Greatest value."""
    step: Bound | None = None
    """Values are the least plus a multiple of this."""
    options: tuple[Option, ...] = ()
    """The only values allowed."""
    default_from: DefaultFrom | None = None
    """Default computed from another field."""


@record
class PolicySpec:
    """Defaults and rules for workloads."""

    types: tuple[WorkloadType, ...] = ()
    """Types of workload it is for; all when empty."""
    department: str | None = None
    """Only for projects of this department, for a policy in namespace runai."""
    distributed: bool | None = None
    """Only for distributed training (true), or for all but that (false)."""
    defaults: Mapping[str, Any] = EMPTY_MAP
    """Values for fields that a submission leaves out, in the shape of a workload's spec."""
    rules: Mapping[str, FieldRule] = EMPTY_MAP
    """Path of a field, such as compute.gpu, and what must hold for it."""
    imposed: Mapping[str, Any] = EMPTY_MAP
    """Values that every workload gets, whatever the submission says, in the shape of a workload's spec."""
    description: Text = ""
    """For people."""
    created_by: str = ""
    """Who made it."""


PolicyPhase = Literal["Creating", "Updating", "Deleting", "Ready", "Failed"]


@record
class PolicyStatus:
    """Whether the policy is in force."""

    phase: PolicyPhase | None = None
    """Whether it is in force."""
    message: str = ""
    """Why it is not, when it is not."""
    observed_generation: Int64 | None = None
    """The generation of the spec that is in force."""
    conditions: tuple[Condition, ...] = ()
    """What is true about it."""


@record
class Policy:
    """What workloads get and may ask for."""

    metadata: Metadata
    """Name and marks."""
    spec: PolicySpec = PolicySpec()
    """Defaults and rules."""
    status: PolicyStatus = PolicyStatus()
    """Whether it is in force; written by the platform."""

    def faults(self) -> Iterator[Fault]:
        """A slip here would surface in everybody's submissions, so what it says must fit a workload."""
        for part, values in (("defaults", self.spec.defaults), ("imposed", self.spec.imposed)):
            yield from (Fault(f"spec.{part}.{fault.path}", fault.text) for fault in _misfits(values))
        for path in self.spec.rules:
            if any(fault.text == UNKNOWN_FIELD for fault in _misfits(_nested(path))):
                yield Fault(f"spec.rules[{path!r}]", "workloads have no such field")


def _misfits(values: Mapping[str, Any]) -> Sequence[Fault]:
    try:
        decode(WorkloadSpec, values, strict=True)
    except Invalid as exc:
        return exc.faults
    return ()


def _nested(path: str) -> Mapping[str, Any]:
    value: Any = None
    for key in reversed(path.split(".")):
        value = {key: value}
    return value  # type: ignore[no-any-return]  # a path has at least one step
