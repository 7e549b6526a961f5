"""What a role of the platform may do with Kubernetes' own verbs, inside one namespace.

Written from the table that decides about our REST API (auth/roles.py), so that whoever may do a thing through our
server may do it with kubectl, and nothing else. Run:ai's own kinds (v2alpha1) are workloads by another name. Two things
have no counterpart, and so are not given:

    kinds of the whole cluster   Kubernetes cannot show a part of them; our server can
    deleting collections         our API deletes objects by name
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
# A terminal is opened with GET over a websocket; which of the two verbs that counts as depends on Kubernetes' version.
_TALK: Final[Verbs] = ("create", "get")
# Parts of a pod by the action that our server asks for: its log, what is typed into it, where it runs.
_POD_PARTS: Final[dict[str, dict[str, Verbs]]] = {
    VIEW: {"log": ("get",)},
    "edit": {"attach": _TALK, "exec": _TALK, "portforward": _TALK},
    REPORT: {"binding": ("create",)},
}
_STATUS: Final[dict[str, Verbs]] = {VIEW: ("get",), REPORT: ("patch", "update")}


def rules_of(role: str) -> list[Json]:
    """The rules of an RBAC Role; none when the role gives nothing inside a namespace."""
    resources_by_verbs: dict[tuple[str, Verbs], list[str]] = defaultdict(list)
    like_workloads = [(kind, KINDS.of(Workload).name) for kind in RUNAI_KINDS]
    for kind, name in [*((kind, kind.name) for kind in KINDS if kind.namespaced), *like_workloads]:
        for resource, verbs in _resources(role, kind, name).items():
            resources_by_verbs[kind.group, tuple(sorted(verbs))].append(resource)
    return [
        {"apiGroups": [group], "resources": sorted(resources), "verbs": list(verbs)}
        for (group, verbs), resources in sorted(resources_by_verbs.items())
    ]


def _resources(role: str, kind: AnyKind, name: str) -> dict[str, set[str]]:
    """Verbs of a kind and its parts, by the rights on the kind of that name."""
    found: dict[str, set[str]] = defaultdict(set)
    for action in sorted({*_VERBS, REPORT}):
        if not allowed([ScopedRole(role, "project", "p")], action, name, ObjectScope("p")):
            continue
        found[kind.plural].update(_VERBS.get(action, ()))
        if kind.has_status and action in _STATUS:
            found[f"{kind.plural}/status"].update(_STATUS[action])
        if kind.name == "Pod":
            for part, verbs in _POD_PARTS.get(action, {}).items():
                found[f"pods/{part}"].update(verbs)
    return {resource: verbs for resource, verbs in found.items() if verbs}


RULES: Final[dict[str, list[Json]]] = {role: rules_of(role) for role in ROLES}
