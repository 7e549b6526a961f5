"""The rules of each role's RBAC Role: what a role may do inside one namespace, in Kubernetes' verbs.

They are derived from the table that the REST API uses (auth/roles.py), so that kubectl permits exactly what the REST
API permits. Run:ai's kinds (v2alpha1) are treated as workloads. Two rights have no counterpart and are not granted:

    cluster-scoped kinds   Kubernetes cannot filter them by project; the REST API can
    deletecollection       the REST API deletes objects by name
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from aliquot.api import KINDS, Json, Workload
from aliquot.auth.roles import REPORT, ROLES, VIEW, ObjectScope, ScopedRole, allowed
from aliquot.backends.kubernetes.v2alpha1.definitions import RUNAI_KINDS
from aliquot.store.driver import AnyKind

Verbs = tuple[str, ...]

_VERBS: Final[dict[str, Verbs]] = {
    VIEW: ("get", "list", "watch"),
    "create": ("create",),
    "edit": ("patch", "update"),
    "delete": ("delete",),
}
# A websocket is opened with GET; which of the two verbs that counts as depends on the version of Kubernetes.
_CONNECT: Final[Verbs] = ("create", "get")
# Subresources of pods, by the action that the REST API requires for them.
_POD_SUBRESOURCES: Final[dict[str, dict[str, Verbs]]] = {
    VIEW: {"log": ("get",)},
    "edit": {"attach": _CONNECT, "exec": _CONNECT, "portforward": _CONNECT},
    REPORT: {"binding": ("create",)},
}
_STATUS: Final[dict[str, Verbs]] = {VIEW: ("get",), REPORT: ("patch", "update")}


def rules_of(role: str) -> list[Json]:
    """The rules of an RBAC Role; empty if the role grants nothing inside a namespace."""
    resources_by_verbs: dict[tuple[str, Verbs], list[str]] = defaultdict(list)
    runai_kinds = [(kind, KINDS.of(Workload).name) for kind in RUNAI_KINDS]
    for kind, name in [*((kind, kind.name) for kind in KINDS if kind.namespaced), *runai_kinds]:
        for resource, verbs in _resources(role, kind, name).items():
            resources_by_verbs[kind.group, tuple(sorted(verbs))].append(resource)
    return [
        {"apiGroups": [group], "resources": sorted(resources), "verbs": list(verbs)}
        for (group, verbs), resources in sorted(resources_by_verbs.items())
    ]


def _resources(role: str, kind: AnyKind, name: str) -> dict[str, set[str]]:
    """The verbs on a kind and its subresources, from the role's rights on the kind called `name`."""
    verbs_by_resource: dict[str, set[str]] = defaultdict(set)
    for action in sorted({*_VERBS, REPORT}):
        if not allowed([ScopedRole(role, "project", "p")], action, name, ObjectScope("p")):
            continue
        verbs_by_resource[kind.plural].update(_VERBS.get(action, ()))
        if kind.has_status and action in _STATUS:
            verbs_by_resource[f"{kind.plural}/status"].update(_STATUS[action])
        if kind.name == "Pod":
            for subresource, verbs in _POD_SUBRESOURCES.get(action, {}).items():
                verbs_by_resource[f"pods/{subresource}"].update(verbs)
    return {resource: verbs for resource, verbs in verbs_by_resource.items() if verbs}


RULES: Final[dict[str, list[Json]]] = {role: rules_of(role) for role in ROLES}
