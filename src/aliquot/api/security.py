"""As whom a container runs, and what it may do to its node."""

from __future__ import annotations

from typing import Literal

from aliquot.api.field_types import Count, Strings
from aliquot.api.serialization import record


@record
class Security:
    """As whom a container runs, and what it may do."""

    run_as_user: bool | None = None
    """Whether it runs as the user who submitted it, instead of the image's user."""
    uid_gid_source: Literal["fromTheImage", "fromIdpToken", "custom"] | None = None
    """Where user and group id come from."""
    run_as_uid: Count | None = None
    """User id."""
    run_as_gid: Count | None = None
    """Group id."""
    supplemental_groups: tuple[Count, ...] = ()
    """Further group ids."""
    run_as_non_root: bool | None = None
    """Whether user id 0 is refused."""
    read_only_root_filesystem: bool | None = None
    """Whether the image's files may only be read."""
    allow_privilege_escalation: bool | None = None
    """Whether a process may get more rights than its parent."""
    capabilities: Strings = ()
    """Linux capabilities to add, such as SYS_PTRACE."""
    seccomp_profile_type: Literal["RuntimeDefault", "Unconfined", "Localhost"] | None = None
    """Which system calls are allowed."""
    host_ipc: bool | None = None
    """Whether it shares the node's inter-process communication."""
    host_network: bool | None = None
    """Whether it shares the node's network."""
