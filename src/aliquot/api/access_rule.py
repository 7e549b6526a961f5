"""Access rules: which subject has which role in which scope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from aliquot.api.conditions import Condition
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record
from aliquot.errors import Fault

# The nine roles of Run:ai, those for one kind of asset, and those of its early versions.
Role = Literal[
    "system-administrator",
    "department-administrator",
    "editor",
    "research-manager",
    "l1-researcher",
    "l2-researcher",
    "ml-engineer",
    "viewer",
    "department-viewer",
    "environment-administrator",
    "compute-resource-administrator",
    "data-source-administrator",
    "credentials-administrator",
    "template-administrator",
    "data-volume-administrator",
    "administrator",
    "researcher",
]


@record
class Subject:
    """The subject that gets the role."""

    kind: Literal["user", "group", "application"]
    """Kind of the subject."""
    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the user, group or application."""


@record
class Scope:
    """The scope in which the role applies, with everything below it."""

    kind: Literal["cluster", "department", "project"]
    """Kind of the scope."""
    name: Annotated[str, Field(max_length=253)] = ""
    """Name of the department or project; empty for the cluster."""


@record
class AccessRuleSpec:
    """The subject, the role and the scope of an access rule."""

    subject: Subject
    """Subject that gets the role."""
    role: Role
    """Role, which says what the subject may do."""
    scope: Scope
    """Scope in which the role applies."""
    created_by: str = ""
    """User who created the rule."""


@record
class AccessRuleStatus:
    """Observed state of an access rule."""

    conditions: tuple[Condition, ...] = ()
    """Conditions of the rule."""


@record
class AccessRule:
    """Gives a subject a role in a scope."""

    metadata: Metadata
    """Standard object metadata."""
    spec: AccessRuleSpec
    """The subject, the role and the scope."""
    status: AccessRuleStatus = AccessRuleStatus()
    """Observed state of the rule; written by the platform."""

    def faults(self) -> Iterator[Fault]:
        scope = self.spec.scope
        if scope.kind == "cluster" and scope.name:
            yield Fault("spec.scope.name", "must be empty for the cluster")
        if scope.kind != "cluster" and not scope.name:
            yield Fault("spec.scope.name", f"is required for a {scope.kind}")
