"""Who may do what, where: a table of roles and a pure decision over it.

An access rule says *subject* is *role* in *scope*. A role gives actions on entities; a scope is the whole cluster, a
department or a project. Nothing is allowed that no rule allows.

    entity   what a role speaks of: workloads, projects, nodes, ... (each kind belongs to one)
    grant    one rule that applies to the caller
    place    where the object is: its project and that project's department, or neither
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

VIEW: Final = "view"
# To say how things stand (status) and where a pod runs: the platform's own work, and its administrator's.
REPORT: Final = "report"
FULL_ACCESS: Final = frozenset({"view", "create", "edit", "delete"})
_SEE: Final = frozenset({VIEW})

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
    # Loops elect their leader by leases; a person has no business there.
    "Lease": "settings",
}
# Entities that no project owns and everybody who may view them sees whole, whatever the rule's scope.
CLUSTER_WIDE: Final = frozenset({"node-pools", "nodes"})


def _role(full: str = "", view: str = "") -> dict[str, frozenset[str]]:
    return {**dict.fromkeys(view.split(), _SEE), **dict.fromkeys(full.split(), FULL_ACCESS)}


_ASSETS_VIEW: Final = "departments policies projects workloads data-sources templates"
ROLES: Final = {
    "system-administrator": dict.fromkeys(ENTITY_OF_KIND.values(), FULL_ACCESS | {REPORT}),
    # Users and access rules are the system administrator's alone: who may change them could give himself any role.
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
# Words of the earlier role set, read for ever.
ROLE_ALIASES: Final = {"administrator": "system-administrator", "researcher": "l1-researcher"}


@dataclass(frozen=True, slots=True)
class ObjectScope:
    """Where an object is. Both empty: it belongs to the cluster."""

    project: str = ""
    department: str = ""


@dataclass(frozen=True, slots=True)
class ScopedRole:
    role: str
    scope: str  # cluster, department or project
    name: str = ""  # of the department or project

    def covers(self, place: ObjectScope) -> bool:
        match self.scope:
            case "cluster":
                return True
            case "department":
                return bool(self.name) and place.department == self.name
            case "project":
                return bool(self.name) and place.project == self.name
            case _:
                return False


def allowed(grants: Iterable[ScopedRole], action: str, kind: str, place: ObjectScope) -> bool:
    """Whether any grant gives this action on this kind at this place."""
    entity = ENTITY_OF_KIND.get(kind)
    for grant in grants:
        actions = ROLES.get(ROLE_ALIASES.get(grant.role, grant.role), {}).get(entity or "", frozenset())
        if action in actions and (grant.covers(place) or (entity in CLUSTER_WIDE and action == VIEW)):
            return True
    return False


def allowed_everywhere(grants: Iterable[ScopedRole], action: str, kind: str) -> bool:
    """Whether the action is allowed on every object of the kind, so that no filter is needed."""
    whole = [grant for grant in grants if grant.scope == "cluster" or ENTITY_OF_KIND.get(kind) in CLUSTER_WIDE]
    return allowed(whole, action, kind, ObjectScope())
