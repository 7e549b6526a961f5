"""Users: people and applications that can log in. The password is stored only as a hash."""

from __future__ import annotations

from typing import ClassVar, Literal

from aliquot.api.conditions import Condition
from aliquot.api.field_types import Count, Strings, Text, Time
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class UserSpec:
    """Identity of a user, and the user and group ids of its containers."""

    kind: Literal["local", "sso", "application"] = "local"
    """local if the platform checks the password, sso if another system does, application for a program."""
    email: str | None = None
    """Email address with which the user logs in."""
    password_hash: str | None = None
    """Salted hash of the password, or of an application's secret."""
    change_password: bool = False
    """Whether the user must change the password at the next login."""
    first_name: str = ""
    """First name, for display."""
    last_name: str = ""
    """Last name, for display."""
    groups: Strings = ()
    """Groups of the organization to which the user belongs. Access rules may name them."""
    uid: Count | None = None
    """User id of containers that run as the user."""
    gid: Count | None = None
    """Group id of containers that run as the user."""
    supplemental_groups: tuple[Count, ...] = ()
    """Supplemental group ids of containers that run as the user."""
    owner: str | None = None
    """User whose permissions an application has, if it belongs to one user."""
    disabled: bool = False
    """Whether the platform refuses logins and tokens of the user."""
    description: Text = ""
    """Description of the user, for display."""


@record
class UserStatus:
    """Observed state of a user."""

    last_login: Time | None = None
    """Time of the user's last login."""
    conditions: tuple[Condition, ...] = ()
    """Conditions of the user."""


@record
class User:
    """A person or an application that can log in."""

    ALWAYS: ClassVar = ("spec.kind",)

    metadata: Metadata
    """Standard object metadata."""
    spec: UserSpec = UserSpec()
    """Identity of the user."""
    status: UserStatus = UserStatus()
    """Observed state of the user; written by the platform."""
