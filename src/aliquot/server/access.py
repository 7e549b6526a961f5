"""Who is calling, and may they: tokens to subjects, access rules to decisions.

Reads its tables from informers, so a decision costs no look-up in the store. A token that the informer does not know
yet is looked up once, so that a fresh one works at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aliquot.auth import tokens
from aliquot.auth.roles import VIEW, Grant, Place, allowed, everywhere
from aliquot.auth.tokens import Secret
from aliquot.errors import Denied, NotFound, Unauthenticated
from aliquot.labels import DEFAULT_DEPARTMENT, SYSTEM_NAMESPACE, project_of
from aliquot.store.base import AnyKind, Body, Document
from aliquot.store.informer import Informer, typed
from aliquot.types import KINDS, AccessRule, Namespace, Project, Token, User, decode

# In the system namespace these hold for every project, so everybody who may see them anywhere sees them there.
_FOR_EVERYONE = ("Template", "Policy")
_HOW_TO_SEND = (
    "send `Authorization: Bearer <token>`; `aliquot up` writes the administrator's to <data folder>/admin.token"
)


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated subject with what it was granted."""

    subject: str
    grants: tuple[Grant, ...]


class Access:
    """Authentication and authorisation for one server."""

    def __init__(self, body: Body, clock: Callable[[], float] = time.time) -> None:
        self._body = body
        self._clock = clock
        self._tokens: Informer[Token] = typed(body, Token)
        self._users: Informer[User] = typed(body, User)
        self._rules: Informer[AccessRule] = typed(body, AccessRule)
        self._projects: Informer[Project] = typed(body, Project)
        self._namespaces: Informer[Namespace] = typed(body, Namespace)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return self._tokens, self._users, self._rules, self._projects, self._namespaces

    # --- who

    async def authenticate(self, header: str | None) -> Caller:
        scheme, _, text = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthenticated("no token was sent", hint=_HOW_TO_SEND)
        name, secret = tokens.split(Secret(text.strip()))
        token = self._tokens.get(name) or await self._look_up(name)
        if token is None or not tokens.matches(secret, token.spec.hash):
            raise Unauthenticated(
                "the token is not known", hint="it may have been deleted; ask an administrator for another"
            )
        if token.spec.expires is not None and token.spec.expires <= self._clock():
            raise Unauthenticated("the token has expired", hint="create another with `aliquot token create`")
        user = self._users.get(token.spec.user)
        if user is not None and user.spec.disabled:
            raise Unauthenticated(f"user {token.spec.user!r} is disabled", hint="ask an administrator")
        return Caller(token.spec.user, self._grants(token.spec.user))

    async def _look_up(self, name: str) -> Token | None:
        try:
            return decode(Token, (await self._body.get(KINDS.of(Token), name)).data)
        except NotFound:
            return None

    def _grants(self, subject: str) -> tuple[Grant, ...]:
        user = self._users.get(subject)
        groups = user.spec.groups if user else ()
        return tuple(
            Grant(rule.spec.role, rule.spec.scope.kind, rule.spec.scope.name)
            for rule in self._rules
            if (rule.spec.subject.kind in ("user", "application") and rule.spec.subject.name == subject)
            or (rule.spec.subject.kind == "group" and rule.spec.subject.name in groups)
        )

    # --- may they

    def require(self, caller: Caller, action: str, kind: AnyKind, namespace: str = "", name: str = "") -> None:
        if not self.may(caller, action, kind, namespace, name):
            where = f" in namespace {namespace!r}" if namespace else ""
            raise Denied(
                f"{caller.subject!r} may not {action} {kind.plural}{where}",
                hint="ask an administrator for an access rule",
            )

    def may(self, caller: Caller, action: str, kind: AnyKind, namespace: str = "", name: str = "") -> bool:
        return allowed(caller.grants, action, kind.name, self._place(kind, namespace, name)) or (
            action == VIEW
            and namespace == SYSTEM_NAMESPACE
            and kind.name in _FOR_EVERYONE
            and any(allowed([grant], action, kind.name, _inside(grant)) for grant in caller.grants)
        )

    def sees_all(self, caller: Caller, kind: AnyKind) -> bool:
        return everywhere(caller.grants, VIEW, kind.name)

    def sees(self, caller: Caller, kind: AnyKind, document: Document) -> bool:
        return self.may(caller, VIEW, kind, document.namespace, document.name)

    def _place(self, kind: AnyKind, namespace: str, name: str) -> Place:
        if kind.name == "Department":
            return Place(department=name)
        project = name if kind.name == "Project" else self._project_of(namespace or name)
        if not project:
            return Place()
        found = self._projects.get(project)
        return Place(project, (found.spec.department or DEFAULT_DEPARTMENT) if found else "")

    def _project_of(self, namespace: str) -> str:
        """Whose a namespace is. Its label decides, which only the platform and administrators write;
        what a project says of itself does not."""
        found = self._namespaces.get(namespace)
        return project_of(found.metadata.labels) if found else ""


def _inside(grant: Grant) -> Place:
    """A place that the grant surely covers."""
    return Place(grant.name, grant.name)
