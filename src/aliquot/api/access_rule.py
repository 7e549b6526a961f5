"""Who may do what: users, the rules that give them roles, and the tokens they show.

Secrets never rest here as text: a password and a token are kept as hashes only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from aliquot.api.conditions import Condition
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record
from aliquot.errors import Fault

# The nine roles of the platform, those for one kind of asset, and the four of its early versions.
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
    """Who gets the role."""

    kind: Literal["user", "group", "application"]
    """What the name is a name of."""
    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the user, group or application."""


@record
class Scope:
    """Where the role holds, with everything below it."""

    kind: Literal["cluster", "department", "project"]
    """What the name is a name of."""
    name: Annotated[str, Field(max_length=253)] = ""
    """Name of the department or project; empty for the cluster."""


@record
class AccessRuleSpec:
    """One subject, one role, one scope."""

    subject: Subject
    """Who gets the role."""
    role: Role
    """What may be done."""
    scope: Scope
    """Where it may be done."""
    created_by: str = ""
    """Who made the rule."""


@record
class AccessRuleStatus:
    """Whether the rule is in force."""

    conditions: tuple[Condition, ...] = ()
    """What is true about the rule."""


@record
class AccessRule:
    """Says that a subject has a role in a scope."""

    metadata: Metadata
    """Name and marks."""
    spec: AccessRuleSpec
    """Who may do what, and where."""
    status: AccessRuleStatus = AccessRuleStatus()
    """Whether the rule is in force; written by the platform."""

    def faults(self) -> Iterator[Fault]:
        scope = self.spec.scope
        if scope.kind == "cluster" and scope.name:
            yield Fault("spec.scope.name", "must be empty for the cluster")
        if scope.kind != "cluster" and not scope.name:
            yield Fault("spec.scope.name", f"is required for a {scope.kind}")
