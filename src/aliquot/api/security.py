"""Security settings of a workload: user and group ids, capabilities and access to the host."""

from __future__ import annotations

from typing import Literal

from aliquot.api.field_types import Count, Strings
from aliquot.api.serialization import record


@record
class Security:
    """User and group ids of the containers, and what they are allowed to do."""

    run_as_user: bool | None = None
    """Whether containers run as the user who submitted the workload instead of the image's user."""
    uid_gid_source: Literal["fromTheImage", "fromIdpToken", "custom"] | None = None
    """Source of the user and group ids."""
    run_as_uid: Count | None = None
    """User id of the containers."""
    run_as_gid: Count | None = None
    """Group id of the containers."""
    supplemental_groups: tuple[Count, ...] = ()
    """Supplemental group ids of the containers."""
    run_as_non_root: bool | None = None
    """Whether containers with user id 0 are refused."""
    read_only_root_filesystem: bool | None = None
    """Whether the root filesystem of the containers is read-only."""
    allow_privilege_escalation: bool | None = None
    """Whether a process may gain more privileges than its parent."""
    capabilities: Strings = ()
    """Linux capabilities to add, such as SYS_PTRACE."""
    seccomp_profile_type: Literal["RuntimeDefault", "Unconfined", "Localhost"] | None = None
    """Seccomp profile, which restricts system calls."""
    host_ipc: bool | None = None
    """Whether containers share the node's IPC namespace."""
    host_network: bool | None = None
    """Whether containers share the node's network namespace."""
