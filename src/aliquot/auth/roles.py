"""Roles and the permission check.

An access rule gives a *subject* a *role* in a *scope*. A role allows actions on entities. A scope is the cluster, a
department or a project. What no rule allows is denied.

    entity        group of kinds that roles name: workloads, projects, nodes, ... Every kind belongs to one.
    ScopedRole    role and scope of one access rule that applies to the caller
    ObjectScope   project and department of an object; both empty for an object of the cluster
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

VIEW: Final = "view"
# Writing an object's status and its protected fields, such as the node of a pod. For the platform and administrators.
REPORT: Final = "report"
FULL_ACCESS: Final = frozenset({"view", "create", "edit", "delete"})
_VIEW_ONLY: Final = frozenset({VIEW})

ENTITY_OF_KIND: Final = {
    "Department": "departments",
    "Project": "projects",
    "Namespace": "projects",
    "NodePool": "node-pools",
    "SchedulingPolicy": "settings",
    "Node": "nodes",
    "Workload": "workloads",
    "Pod": "workloads",
    "Service": "workloads",
    "Event": "workloads",
    "PersistentVolumeClaim": "data-sources",
    "Template": "templates",
    "Policy": "policies",
    "User": "users",
    "AccessRule": "access-rules",
    "Token": "applications",
    # Controllers elect their leader with leases; users do not need them.
    "Lease": "settings",
}
# Entities that no project owns. A role that may view them sees all of them, whatever its scope.
CLUSTER_WIDE: Final = frozenset({"node-pools", "nodes"})


def _role(full: str = "", view: str = "") -> dict[str, frozenset[str]]:
    return {**dict.fromkeys(view.split(), _VIEW_ONLY), **dict.fromkeys(full.split(), FULL_ACCESS)}


_ASSETS_VIEW: Final = "departments policies projects workloads data-sources templates"
ROLES: Final = {
    "system-administrator": dict.fromkeys(ENTITY_OF_KIND.values(), FULL_ACCESS | {REPORT}),
    # Only the system administrator may change users and access rules: anyone else could get any role that way.
    "department-administrator": _role(
        "policies projects workloads data-sources templates", "departments node-pools nodes users access-rules"
    ),
    "editor": _role(
        "departments policies projects workloads data-sources templates", "node-pools nodes users access-rules"
    ),
    "research-manager": _role(
        "projects data-sources templates", "departments policies node-pools users workloads access-rules"
    ),
    "l1-researcher": _role("workloads data-sources templates", "policies projects node-pools"),
    "l2-researcher": _role("workloads", "policies projects node-pools data-sources templates"),
    "ml-engineer": _role("", "departments policies projects node-pools nodes workloads"),
    "viewer": _role("", "departments policies projects node-pools nodes workloads data-sources templates"),
    "department-viewer": _role("", "departments policies projects workloads data-sources templates"),
    "template-administrator": _role("templates", _ASSETS_VIEW),
    "data-source-administrator": _role("data-sources", _ASSETS_VIEW),
    "environment-administrator": _role("", _ASSETS_VIEW),
    "compute-resource-administrator": _role("", _ASSETS_VIEW),
    "credentials-administrator": _role("", _ASSETS_VIEW),
    "data-volume-administrator": _role("", _ASSETS_VIEW),
}
# Names of the earlier role set. They stay valid.
ROLE_ALIASES: Final = {"administrator": "system-administrator", "researcher": "l1-researcher"}


@dataclass(frozen=True, slots=True)
class ObjectScope:
    """Project and department of an object. Both are empty for an object of the cluster."""

    project: str = ""
    department: str = ""


@dataclass(frozen=True, slots=True)
class ScopedRole:
    """A role within a scope: what one access rule gives a caller."""

    role: str
    scope: str  # cluster, department or project
    name: str = ""  # of the department or project

    def covers(self, object_scope: ObjectScope) -> bool:
        match self.scope:
            case "cluster":
                return True
            case "department":
                return bool(self.name) and object_scope.department == self.name
            case "project":
                return bool(self.name) and object_scope.project == self.name
            case _:
                return False


def allowed(roles: Iterable[ScopedRole], action: str, kind: str, object_scope: ObjectScope) -> bool:
    """Whether one of the roles allows the action on an object of the kind in the given scope."""
    entity = ENTITY_OF_KIND.get(kind)
    for role in roles:
        actions = ROLES.get(ROLE_ALIASES.get(role.role, role.role), {}).get(entity or "", frozenset())
        if action in actions and (role.covers(object_scope) or (entity in CLUSTER_WIDE and action == VIEW)):
            return True
    return False


def allowed_everywhere(roles: Iterable[ScopedRole], action: str, kind: str) -> bool:
    """Whether the action is allowed on every object of the kind, so that lists need no filter."""
    cluster_roles = [role for role in roles if role.scope == "cluster" or ENTITY_OF_KIND.get(kind) in CLUSTER_WIDE]
    return allowed(cluster_roles, action, kind, ObjectScope())
