"""Who may do what: users, the rules that give them roles, and the tokens they show.

Secrets never rest here as text: a password and a token are kept as hashes only.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from aliquot.api.conditions import Condition
from aliquot.api.field_types import Count, Strings, Text, Time
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


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
