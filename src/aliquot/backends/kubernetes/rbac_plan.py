"""Who gets which rights in a namespace: a pure decision from access rules, users and what is there.

For every role that somebody holds in a project's namespace there are one Role and one RoleBinding, both called
`aliquot-<role>`. The subjects of the binding are those whom access rules name:

    user, application   the Kubernetes user of that name, and the account that `aliquot kubeconfig` made for it
    group               the Kubernetes group of that name, and such accounts of users in the group

Names that begin with `system:` are Kubernetes' own (`system:authenticated` is everybody) and get nothing. A Role or
RoleBinding of our name without our labels is somebody else's: it is left alone, and nothing is bound by that name.

Rights are taken before they are given, and a Role comes before its binding: whoever is killed between two writes leaves
nobody with a right that he neither had nor has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aliquot.api import AccessRule, Json, Namespace, Project, User
from aliquot.auth.roles import ROLE_ALIASES, ObjectScope, ScopedRole
from aliquot.backends.kubernetes.rbac_verbs import RULES
from aliquot.backends.kubernetes.service_accounts import LABELS, Account, is_ours
from aliquot.backends.kubernetes.unstructured_kinds import ROLE, ROLE_BINDING, SERVICE_ACCOUNT, UnstructuredKind
from aliquot.controllers.projects import wanted_namespace
from aliquot.labels import DEFAULT_DEPARTMENT, RESERVATION_NAMESPACE, SYSTEM_NAMESPACE, project_of

NAME_PREFIX: Final = "aliquot-"
_GROUP: Final = "rbac.authorization.k8s.io"
_RESERVED: Final = "system:"


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """All that the rights in one namespace depend on."""

    namespace: str
    # Whose it is; None: nobody's, or on its way out.
    project: Project | None
    rules: Sequence[AccessRule] = ()
    users: Mapping[str, User] = field(default_factory=dict)
    # Of this namespace.
    accounts: Sequence[Account] = ()
    # Every one that is there, ours or not.
    roles: Sequence[Json] = ()
    bindings: Sequence[Json] = ()


@dataclass(frozen=True, slots=True)
class Write:
    """Create, or replace the version that the document names."""

    kind: UnstructuredKind
    document: Json


@dataclass(frozen=True, slots=True)
class Remove:
    kind: UnstructuredKind
    name: str
    namespace: str
    uid: str


Change = Write | Remove


def decide(seen: NamespaceState) -> list[Change]:
    """What is to be written, in this order; nothing when all is as it should be."""
    roles, bindings = _by_name(seen.roles), _by_name(seen.bindings)
    subjects = _subjects(seen)
    taken = conflicting_names(seen)
    wanted = {name: found for name, found in subjects.items() if name not in taken}
    steps: list[Change] = [Remove(ROLE_BINDING, *_place(old)) for old in _superseded(bindings, wanted)]
    steps += [Remove(SERVICE_ACCOUNT, *one.place) for one in seen.accounts if not _roles_of_account(one, seen)]
    for name in sorted(wanted):
        steps += _changed(ROLE, roles.get(name), name, seen.namespace, {"rules": RULES[name.removeprefix(NAME_PREFIX)]})
    for name, found in sorted(wanted.items()):
        parts = {"roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": name}, "subjects": found}
        steps += _changed(ROLE_BINDING, bindings.get(name), name, seen.namespace, parts)
    return steps + [Remove(ROLE, *_place(old)) for old in _superseded(roles, wanted)]


def conflicting_names(seen: NamespaceState) -> set[str]:
    """Those of ours that somebody else has given to a Role or RoleBinding there."""
    others = {one["metadata"]["name"] for one in (*seen.roles, *seen.bindings) if not is_ours(one)}
    return others & {NAME_PREFIX + role for role in RULES}


def roles_of(user: str, seen: NamespaceState) -> list[str]:
    """The roles that a user of the platform has in the namespace; none for one who is disabled or not there."""
    known = seen.users.get(user)
    if known is None or known.spec.disabled:
        return []
    return [
        _role(rule)
        for rule in _in_force(seen)
        if rule.spec.subject.name in ((user,) if rule.spec.subject.kind != "group" else known.spec.groups)
    ]


def owner_of(namespace: Namespace | None, find: Callable[[str], Project | None]) -> Project | None:
    """The project that a namespace is for: its label and the project agree on it."""
    if namespace is None or namespace.metadata.deleted is not None or _is_kept(namespace.metadata.name):
        return None
    project = find(project_of(namespace.metadata.labels))
    if project is None or project.metadata.deleted is not None:
        return None
    return project if wanted_namespace(project) == namespace.metadata.name else None


def covers(rule: AccessRule, project: Project) -> bool:
    scope = rule.spec.scope
    place = ObjectScope(project.metadata.name, project.spec.department or DEFAULT_DEPARTMENT)
    return rule.metadata.deleted is None and ScopedRole(rule.spec.role, scope.kind, scope.name).covers(place)


def _is_kept(namespace: str) -> bool:
    """Where programs run that may do everything, nobody gets a role, whatever a label says."""
    return namespace in (SYSTEM_NAMESPACE, RESERVATION_NAMESPACE) or namespace.startswith("kube-")


def _in_force(seen: NamespaceState) -> list[AccessRule]:
    """The rules that hold in the namespace, and give something there."""
    if seen.project is None:
        return []
    return [rule for rule in seen.rules if covers(rule, seen.project) and RULES.get(_role(rule))]


def _role(rule: AccessRule) -> str:
    return ROLE_ALIASES.get(rule.spec.role, rule.spec.role)


def _subjects(seen: NamespaceState) -> dict[str, list[Json]]:
    """Whom each role is given to, by the name of its Role; sorted, each once."""
    found: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for rule in _in_force(seen):
        subject = rule.spec.subject
        known = seen.users.get(subject.name)
        disabled = subject.kind != "group" and known is not None and known.spec.disabled
        if not disabled and not subject.name.startswith(_RESERVED):
            found[NAME_PREFIX + _role(rule)].add(("Group" if subject.kind == "group" else "User", subject.name, ""))
    for account in seen.accounts:
        for role in _roles_of_account(account, seen):
            found[NAME_PREFIX + role].add(("ServiceAccount", account.name, SYSTEM_NAMESPACE))
    return {name: [_subject(*subject) for subject in sorted(subjects)] for name, subjects in found.items()}


def _subject(kind: str, name: str, namespace: str) -> Json:
    return {"kind": kind, "name": name, **({"namespace": namespace} if namespace else {"apiGroup": _GROUP})}


def _roles_of_account(account: Account, seen: NamespaceState) -> list[str]:
    """None either when it was made for somebody else, who had the same name."""
    known = seen.users.get(account.user)
    return roles_of(account.user, seen) if known is not None and known.metadata.uid == account.user_uid else []


def _superseded(there: Mapping[str, Json], wanted: Mapping[str, Any]) -> list[Json]:
    return [old for name, old in there.items() if is_ours(old) and name not in wanted]


def _changed(kind: UnstructuredKind, old: Json | None, name: str, namespace: str, parts: Json) -> list[Change]:
    if old is None:
        metadata = {"name": name, "namespace": namespace, "labels": LABELS}
        return [Write(kind, {"metadata": metadata, **parts})]
    if all(old.get(key) == value for key, value in parts.items()):
        return []
    if old.get("roleRef") != parts.get("roleRef"):  # which cannot be changed
        fresh = _changed(kind, None, name, namespace, parts)
        return [Remove(kind, *_place(old)), *fresh]
    return [Write(kind, {**old, **parts})]


def _by_name(objects: Iterable[Json]) -> dict[str, Json]:
    return {one["metadata"]["name"]: one for one in objects}


def _place(data: Json) -> tuple[str, str, str]:
    metadata = data["metadata"]
    return metadata["name"], metadata["namespace"], metadata["uid"]
