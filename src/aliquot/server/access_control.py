"""Access control of one server: tokens authenticate callers, access rules authorize them.

All decisions use what the informers show, so they need no read from the store. Only a token, or its user, that the
informer does not show yet is read from the store, so that a new token works at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aliquot.api import KINDS, AccessRule, Json, Namespace, Project, Token, User, check_name, decode
from aliquot.auth import tokens
from aliquot.auth.roles import (
    ENTITY_OF_KIND,
    REPORT,
    VIEW,
    ObjectScope,
    ScopedRole,
    allowed,
    allowed_everywhere,
)
from aliquot.auth.tokens import Secret
from aliquot.errors import Denied, Invalid, NotFound, Unauthenticated
from aliquot.labels import DEFAULT_DEPARTMENT, SYSTEM_NAMESPACE, project_of
from aliquot.store.driver import AnyKind, Document, StoreDriver
from aliquot.store.informer import Informers

T = TypeVar("T")

# Entities whose objects run programs or hold their data.
_RUNTIME_ENTITIES = ("workloads", "data-sources")
_HOW_TO_SEND = (
    "send `Authorization: Bearer <token>`; `aliquot up` writes the administrator's to <data folder>/admin.token"
)
_ASK_FOR_RULE = "ask an administrator for an access rule"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated user and the roles it has."""

    subject: str
    roles: tuple[ScopedRole, ...]
    token: str = ""  # name of the Token object


class AccessControl:
    """Authenticates and authorizes the callers of one server."""

    def __init__(self, driver: StoreDriver, informers: Informers, clock: Callable[[], float] = time.time) -> None:
        self._driver = driver
        self._clock = clock
        self._tokens = informers.of(Token)
        self._users = informers.of(User)
        self._rules = informers.of(AccessRule)
        self._projects = informers.of(Project)
        self._namespaces = informers.of(Namespace)
        # Tokens that this server deleted and that the informer still shows.
        self._revoked: set[str] = set()
        # Grows whenever the permissions of any caller may have changed. Long-lived streams compare it.
        self.generation = 0
        self._tokens.listen(lambda key, old, new: self._revoked.discard(key[1]))
        for informer in (self._tokens, self._users, self._rules):
            informer.listen(lambda key, old, new: self._permissions_changed())

    def _permissions_changed(self) -> None:
        self.generation += 1

    # --- authentication

    async def authenticate(self, header: str | None) -> Caller:
        """The caller that an `Authorization` header identifies; `Unauthenticated` otherwise."""
        scheme, _, text = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthenticated("no token was sent", hint=_HOW_TO_SEND)
        name, secret = tokens.parse_token(Secret(text.strip()))
        token = await self._token(name)
        if token is None or not tokens.secret_matches(secret, token.spec.hash):
            raise _unknown_token()
        return await self._caller(name, token)

    async def refresh(self, caller: Caller) -> Caller:
        """The caller with its present roles; `Unauthenticated` when its token or user is no longer valid."""
        token = await self._token(caller.token)
        if token is None or token.spec.user != caller.subject:
            raise _unknown_token()
        return await self._caller(caller.token, token)

    def revoke(self, token: str) -> None:
        """Refuses a token that was just deleted, although the informer may still show it."""
        if self._tokens.get(token) is not None:
            self._revoked.add(token)
            self._permissions_changed()

    async def _caller(self, name: str, token: Token) -> Caller:
        if token.spec.expires is not None and token.spec.expires <= self._clock():
            raise Unauthenticated("the token has expired", hint="create another with `aliquot token create`")
        subject = token.spec.user
        user = self._users.get(subject) or await self._read(User, subject)
        if user is None:
            raise Unauthenticated(f"user {subject!r} does not exist any more", hint="ask an administrator")
        if user.spec.disabled:
            raise Unauthenticated(f"user {subject!r} is disabled", hint="ask an administrator")
        return Caller(subject, self._roles(subject, user), name)

    async def _token(self, name: str) -> Token | None:
        token = None if name in self._revoked else self._tokens.get(name)
        return token or await self._read(Token, name)

    async def _read(self, cls: type[T], name: str) -> T | None:
        """An object from the store; None when it does not exist."""
        kind: AnyKind = KINDS.of(cls)
        try:
            return decode(cls, (await self._driver.get(kind, check_name(kind, name))).data)
        except (NotFound, Invalid):
            return None

    def _roles(self, subject: str, user: User) -> tuple[ScopedRole, ...]:
        groups = user.spec.groups
        return tuple(
            ScopedRole(rule.spec.role, rule.spec.scope.kind, rule.spec.scope.name)
            for rule in self._rules
            if (rule.spec.subject.kind in ("user", "application") and rule.spec.subject.name == subject)
            or (rule.spec.subject.kind == "group" and rule.spec.subject.name in groups)
        )

    # --- authorization

    def require(
        self, caller: Caller, action: str, kind: AnyKind, namespace: str = "", name: str = "", *, inside: bool = False
    ) -> None:
        """`Denied` unless `may`."""
        if not self.may(caller, action, kind, namespace, name, inside=inside):
            where = f" in namespace {namespace!r}" if namespace else ""
            raise Denied(f"{caller.subject!r} may not {action} {kind.plural}{where}", hint=_ASK_FOR_RULE)

    def may(
        self, caller: Caller, action: str, kind: AnyKind, namespace: str = "", name: str = "", *, inside: bool = False
    ) -> bool:
        """Whether a role allows the action. `inside`: it reads data of the running program, as a log does."""
        if (inside or action != VIEW) and self._runs_outside_projects(kind, namespace):
            action = REPORT
        scope = self._scope(kind, namespace, name)
        if kind.authorization_scope == "project-namespace" and action != VIEW:
            # Its owner decides who sees into a namespace, so the owner may not hand it to another project.
            scope = ObjectScope()
        return allowed(caller.roles, action, kind.name, scope) or (
            action == VIEW
            and namespace == SYSTEM_NAMESPACE
            and kind.shared_from_system_namespace
            and any(allowed([role], action, kind.name, _scope_inside(role)) for role in caller.roles)
        )

    def require_create(self, caller: Caller, kind: AnyKind, namespace: str, name: str, data: Json) -> None:
        """`Denied` unless the caller may create the object that `data` describes."""
        if kind.authorization_scope == "project":
            self._require_department(caller, kind, department_of(data))
        else:
            self.require(caller, "create", kind, namespace, name)

    def require_move(self, caller: Caller, kind: AnyKind, new: Document, old: Document) -> None:
        """`Denied` when an update moves a project to a department in which the caller may not create projects.

        A role in the project itself is not enough."""
        if kind.authorization_scope == "project" and department_of(new.data) != department_of(old.data):
            self._require_department(caller, kind, department_of(new.data))

    def _require_department(self, caller: Caller, kind: AnyKind, department: str) -> None:
        if not allowed(caller.roles, "create", kind.name, ObjectScope(department=department)):
            raise Denied(
                f"{caller.subject!r} may not put {kind.plural} into department {department!r}", hint=_ASK_FOR_RULE
            )

    def require_in_project(self, caller: Caller, action: str, kind: AnyKind, project: str) -> None:
        """`Denied` unless the caller may act on a kind for a project. It does not reveal whether the project exists."""
        if not allowed(caller.roles, action, kind.name, self._project_scope(project)):
            raise Denied(
                f"{caller.subject!r} may not {action} {kind.plural} for project {project!r}", hint=_ASK_FOR_RULE
            )

    def sees_all(self, caller: Caller, kind: AnyKind) -> bool:
        """Whether the caller may view every object of the kind."""
        return allowed_everywhere(caller.roles, VIEW, kind.name)

    def sees(self, caller: Caller, kind: AnyKind, document: Document) -> bool:
        """Whether the caller may view the document.

        The document's own department or label decides, because the informers may not show it yet, or not any more."""
        if owns(caller, kind, document):
            return True
        match kind.authorization_scope:
            case "project":
                scope = ObjectScope(document.name, department_of(document.data))
                return allowed(caller.roles, VIEW, kind.name, scope)
            case "project-namespace":
                scope = self._project_scope(project_of(document.metadata.get("labels") or {}))
                return allowed(caller.roles, VIEW, kind.name, scope)
            case _:
                return self.may(caller, VIEW, kind, document.namespace, document.name)

    def _scope(self, kind: AnyKind, namespace: str, name: str) -> ObjectScope:
        match kind.authorization_scope:
            case "department":
                return ObjectScope(department=name)
            case "project":
                return self._project_scope(name)
            case "project-namespace":
                return self._project_scope(self._owner_of(name))
            case "namespace":
                return self._project_scope(self._owner_of(namespace)) if namespace else ObjectScope()

    def _runs_outside_projects(self, kind: AnyKind, namespace: str) -> bool:
        """Whether the object runs in a namespace that no project owns: of the cluster itself, or of another program.

        The platform's own permissions reach such objects; those of its callers must not."""
        known = self._namespaces.get(namespace) if namespace else None
        if known is None or ENTITY_OF_KIND[kind.name] not in _RUNTIME_ENTITIES:
            return False
        return not project_of(known.metadata.labels)

    def _project_scope(self, name: str) -> ObjectScope:
        if not name:
            return ObjectScope()
        project = self._projects.get(name)
        return ObjectScope(name, (project.spec.department or DEFAULT_DEPARTMENT) if project else "")

    def _owner_of(self, namespace: str) -> str:
        """The project that owns a namespace; "" for none.

        The namespace's label decides, which only the platform and administrators write. A project's spec does not."""
        known = self._namespaces.get(namespace)
        return project_of(known.metadata.labels) if known else ""


def owns(caller: Caller, kind: AnyKind, document: Document) -> bool:
    """Whether the kind has an owner field and it names the caller."""
    if not kind.owner_field:
        return False
    return bool((document.data.get("spec") or {}).get(kind.owner_field) == caller.subject)


def department_of(project: Json) -> str:
    spec = project.get("spec")
    return str((spec.get("department") if isinstance(spec, dict) else "") or DEFAULT_DEPARTMENT)


def _unknown_token() -> Unauthenticated:
    return Unauthenticated("the token is not known", hint="it may have been deleted; ask an administrator for another")


def _scope_inside(role: ScopedRole) -> ObjectScope:
    """A scope that the role covers."""
    return ObjectScope(role.name, role.name)
