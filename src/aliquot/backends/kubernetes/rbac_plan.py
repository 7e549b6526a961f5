"""Decides which Roles and RoleBindings a namespace needs: a pure function of access rules, users and what exists.

For every role that a subject holds in a project's namespace there are one Role and one RoleBinding, both named
`aliquot-<role>`. The subjects of the binding come from the access rules:

    user, application   the Kubernetes user of that name, and the account that `aliquot kubeconfig` created for it
    group               the Kubernetes group of that name, and such accounts of users in the group

Names that begin with `system:` belong to Kubernetes (`system:authenticated` is everyone) and are never bound. A Role or
RoleBinding with the name of a role but without the platform's labels belongs to another owner: it is left alone, and
nothing is bound under that name.

Rights are revoked before others are granted, and a Role is written before its binding: a crash between two writes
leaves no subject with a right that it neither had before nor gets afterwards.
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
_SYSTEM_PREFIX: Final = "system:"


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """Everything that the rights in one namespace depend on."""

    namespace: str
    # The project of the namespace; None if it has none, or is being deleted.
    project: Project | None
    rules: Sequence[AccessRule] = ()
    users: Mapping[str, User] = field(default_factory=dict)
    # The accounts for this namespace.
    accounts: Sequence[Account] = ()
    # All that exist, managed by the platform or not.
    roles: Sequence[Json] = ()
    bindings: Sequence[Json] = ()


@dataclass(frozen=True, slots=True)
class Write:
    """Create the object, or replace the version that the document names."""

    kind: UnstructuredKind
    document: Json


@dataclass(frozen=True, slots=True)
class Remove:
    kind: UnstructuredKind
    name: str
    namespace: str
    uid: str


Change = Write | Remove


def decide(state: NamespaceState) -> list[Change]:
    """The changes to write, in this order; empty if the namespace is as it should be."""
    roles, bindings = _by_name(state.roles), _by_name(state.bindings)
    conflicts = conflicting_names(state)
    wanted = {name: subjects for name, subjects in _subjects(state).items() if name not in conflicts}
    changes: list[Change] = [Remove(ROLE_BINDING, *_identity(old)) for old in _superseded(bindings, wanted)]
    changes += [
        Remove(SERVICE_ACCOUNT, account.name, SYSTEM_NAMESPACE, account.uid)
        for account in state.accounts
        if not _roles_of_account(account, state)
    ]
    for name in sorted(wanted):
        rules = {"rules": RULES[name.removeprefix(NAME_PREFIX)]}
        changes += _changed(ROLE, roles.get(name), name, state.namespace, rules)
    for name, subjects in sorted(wanted.items()):
        content = {"roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": name}, "subjects": subjects}
        changes += _changed(ROLE_BINDING, bindings.get(name), name, state.namespace, content)
    return changes + [Remove(ROLE, *_identity(old)) for old in _superseded(roles, wanted)]


def conflicting_names(state: NamespaceState) -> set[str]:
    """Names the platform needs that a Role or RoleBinding of another owner already has."""
    others = {item["metadata"]["name"] for item in (*state.roles, *state.bindings) if not is_ours(item)}
    return others & {NAME_PREFIX + role for role in RULES}


def roles_of(name: str, state: NamespaceState) -> list[str]:
    """The roles that a user of the platform has in the namespace; none if the user is disabled or does not exist."""
    user = state.users.get(name)
    if user is None or user.spec.disabled:
        return []
    return [
        _role(rule)
        for rule in _in_force(state)
        if rule.spec.subject.name in ((name,) if rule.spec.subject.kind != "group" else user.spec.groups)
    ]


def owner_of(namespace: Namespace | None, find: Callable[[str], Project | None]) -> Project | None:
    """The project of a namespace, if the namespace's label and the project's own namespace agree."""
    if namespace is None or namespace.metadata.deleted is not None or _is_privileged(namespace.metadata.name):
        return None
    project = find(project_of(namespace.metadata.labels))
    if project is None or project.metadata.deleted is not None:
        return None
    return project if wanted_namespace(project) == namespace.metadata.name else None


def covers(rule: AccessRule, project: Project) -> bool:
    scope = rule.spec.scope
    location = ObjectScope(project.metadata.name, project.spec.department or DEFAULT_DEPARTMENT)
    return rule.metadata.deleted is None and ScopedRole(rule.spec.role, scope.kind, scope.name).covers(location)


def _is_privileged(namespace: str) -> bool:
    """Programs with full rights run in these namespaces: no role is bound there, whatever a label says."""
    return namespace in (SYSTEM_NAMESPACE, RESERVATION_NAMESPACE) or namespace.startswith("kube-")


def _in_force(state: NamespaceState) -> list[AccessRule]:
    """The rules that apply in the namespace and grant something there."""
    if state.project is None:
        return []
    return [rule for rule in state.rules if covers(rule, state.project) and RULES.get(_role(rule))]


def _role(rule: AccessRule) -> str:
    return ROLE_ALIASES.get(rule.spec.role, rule.spec.role)


def _subjects(state: NamespaceState) -> dict[str, list[Json]]:
    """The subjects of each role, by the name of its Role; sorted and unique."""
    bound: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for rule in _in_force(state):
        subject = rule.spec.subject
        user = state.users.get(subject.name)
        disabled = subject.kind != "group" and user is not None and user.spec.disabled
        if not disabled and not subject.name.startswith(_SYSTEM_PREFIX):
            bound[NAME_PREFIX + _role(rule)].add(("Group" if subject.kind == "group" else "User", subject.name, ""))
    for account in state.accounts:
        for role in _roles_of_account(account, state):
            bound[NAME_PREFIX + role].add(("ServiceAccount", account.name, SYSTEM_NAMESPACE))
    return {name: [_subject(*subject) for subject in sorted(subjects)] for name, subjects in bound.items()}


def _subject(kind: str, name: str, namespace: str) -> Json:
    return {"kind": kind, "name": name, **({"namespace": namespace} if namespace else {"apiGroup": _GROUP})}


def _roles_of_account(account: Account, state: NamespaceState) -> list[str]:
    """Empty also if the account was created for an earlier user of the same name."""
    user = state.users.get(account.user)
    return roles_of(account.user, state) if user is not None and user.metadata.uid == account.user_uid else []


def _superseded(existing: Mapping[str, Json], wanted: Mapping[str, Any]) -> list[Json]:
    return [old for name, old in existing.items() if is_ours(old) and name not in wanted]


def _changed(kind: UnstructuredKind, old: Json | None, name: str, namespace: str, content: Json) -> list[Change]:
    if old is None:
        metadata = {"name": name, "namespace": namespace, "labels": LABELS}
        return [Write(kind, {"metadata": metadata, **content})]
    if all(old.get(key) == value for key, value in content.items()):
        return []
    if old.get("roleRef") != content.get("roleRef"):  # immutable
        return [Remove(kind, *_identity(old)), *_changed(kind, None, name, namespace, content)]
    return [Write(kind, {**old, **content})]


def _by_name(objects: Iterable[Json]) -> dict[str, Json]:
    return {item["metadata"]["name"]: item for item in objects}


def _identity(data: Json) -> tuple[str, str, str]:
    """Name, namespace and uid."""
    metadata = data["metadata"]
    return metadata["name"], metadata["namespace"], metadata["uid"]
