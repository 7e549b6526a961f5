"""Who may do what: users, the rules that give them roles, and the tokens they show.

Secrets never rest here as text: a password and a token are kept as hashes only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aliquot.api.base import Count, Metadata, Strings, Text, Time, record
from aliquot.api.common import Condition
from aliquot.errors import Fault


@record
class UserSpec:
    """Who it is, and as whom containers run."""

    kind: Literal["local", "sso", "application"] = "local"
    """Whether the platform checks the password, another system does, or it is a program."""
    email: str | None = None
    """The name people log in with."""
    password_hash: str | None = None
    """Salted hash of the password; of the secret for applications."""
    change_password: bool = False
    """Whether the password must be changed at the next login."""
    first_name: str = ""
    """For people."""
    last_name: str = ""
    """For people."""
    groups: Strings = ()
    """Groups of the organisation; access rules may name them."""
    uid: Count | None = None
    """User id that containers run with, where they run as their user."""
    gid: Count | None = None
    """Group id that containers run with."""
    supplemental_groups: tuple[Count, ...] = ()
    """Further group ids that containers run with."""
    owner: str | None = None
    """For an application of one user: whose permissions it has."""
    disabled: bool = False
    """Whether logins and tokens of this user are refused."""
    description: Text = ""
    """For people."""


@record
class UserStatus:
    """What is known about the user's logins."""

    last_login: Time | None = None
    """When the user last logged in."""
    conditions: tuple[Condition, ...] = ()
    """What is true about the user."""


@record
class User:
    """A person or a program that may log in."""

    ALWAYS: ClassVar = ("spec.kind",)

    metadata: Metadata
    """Name and marks."""
    spec: UserSpec = UserSpec()
    """Who it is."""
    status: UserStatus = UserStatus()
    """What is known about the user's logins; written by the platform."""


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


@record
class TokenSpec:
    """Whose token it is, and how it is recognised."""

    user: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the user it speaks for."""
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of its secret part, in hexadecimal."""
    description: Text = ""
    """What it is for."""
    expires: Time | None = None
    """When it stops working; never unless given."""
    created_by: str = ""
    """Who made it."""


@record
class TokenStatus:
    """What is known about its use."""

    last_used: Time | None = None
    """When it was last shown, to about a minute."""


@record
class Token:
    """A secret that programs show instead of a password. The secret itself is shown once and not kept."""

    metadata: Metadata
    """Name and marks."""
    spec: TokenSpec
    """Whose token it is."""
    status: TokenStatus = TokenStatus()
    """What is known about its use; written by the platform."""
