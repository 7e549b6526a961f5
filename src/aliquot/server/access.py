"""Who is calling, and may they: tokens to subjects, access rules to decisions.

Reads its tables from informers, so a decision costs no look-up in the store. A token that the informer does not know
yet is looked up once, so that a fresh one works at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aliquot.api import KINDS, AccessRule, Json, Namespace, Project, Token, User, check_name, decode
from aliquot.auth import tokens
from aliquot.auth.roles import ENTITY_OF_KIND, REPORT, VIEW, Grant, Place, allowed, everywhere
from aliquot.auth.tokens import Secret
from aliquot.errors import Denied, Invalid, NotFound, Unauthenticated
from aliquot.labels import DEFAULT_DEPARTMENT, SYSTEM_NAMESPACE, project_of
from aliquot.store.driver import AnyKind, Document, StoreDriver
from aliquot.store.informer import Informers

T = TypeVar("T")

# In the system namespace these hold for every project, so everybody who may see them anywhere sees them there.
_FOR_EVERYONE = ("Template", "Policy")
_RUNNING = ("workloads", "data-sources")
_HOW_TO_SEND = (
    "send `Authorization: Bearer <token>`; `aliquot up` writes the administrator's to <data folder>/admin.token"
)


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated subject with what it was granted."""

    subject: str
    grants: tuple[Grant, ...]
    token: str = ""  # the name of the token it showed


class Access:
    """Authentication and authorisation for one server."""

    def __init__(self, driver: StoreDriver, informers: Informers, clock: Callable[[], float] = time.time) -> None:
        self._driver = driver
        self._clock = clock
        self._tokens = informers.of(Token)
        self._users = informers.of(User)
        self._rules = informers.of(AccessRule)
        self._projects = informers.of(Project)
        self._namespaces = informers.of(Namespace)
        # Deleted here a moment ago, and the informer has not heard of it yet.
        self._forgotten: set[str] = set()
        # Grows whenever somebody's rights may have changed; who holds a caller for long looks at it.
        self.turn = 0
        self._tokens.listen(lambda key, old, new: self._forgotten.discard(key[1]))
        for informer in (self._tokens, self._users, self._rules):
            informer.listen(lambda key, old, new: self._count())

    def _count(self) -> None:
        self.turn += 1

    # --- who

    async def authenticate(self, header: str | None) -> Caller:
        scheme, _, text = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthenticated("no token was sent", hint=_HOW_TO_SEND)
        name, secret = tokens.split(Secret(text.strip()))
        token = await self._token(name)
        if token is None or not tokens.matches(secret, token.spec.hash):
            raise _unknown()
        return await self._admit(name, token)

    async def again(self, caller: Caller) -> Caller:
        """The caller with the rights it has by now; `Unauthenticated` when its token or user is no longer good."""
        token = await self._token(caller.token)
        if token is None or token.spec.user != caller.subject:
            raise _unknown()
        return await self._admit(caller.token, token)

    def forget(self, token: str) -> None:
        """A token was deleted: it must not work for another moment."""
        if self._tokens.get(token) is not None:
            self._forgotten.add(token)
            self._count()

    async def _admit(self, name: str, token: Token) -> Caller:
        if token.spec.expires is not None and token.spec.expires <= self._clock():
            raise Unauthenticated("the token has expired", hint="create another with `aliquot token create`")
        subject = token.spec.user
        user = self._users.get(subject) or await self._look_up(User, subject)
        if user is None:
            raise Unauthenticated(f"user {subject!r} does not exist any more", hint="ask an administrator")
        if user.spec.disabled:
            raise Unauthenticated(f"user {subject!r} is disabled", hint="ask an administrator")
        return Caller(subject, self._grants(subject, user), name)

    async def _token(self, name: str) -> Token | None:
        known = None if name in self._forgotten else self._tokens.get(name)
        return known or await self._look_up(Token, name)

    async def _look_up(self, cls: type[T], name: str) -> T | None:
        kind: AnyKind = KINDS.of(cls)
        try:
            return decode(cls, (await self._driver.get(kind, check_name(kind, name))).data)
        except (NotFound, Invalid):
            return None

    def _grants(self, subject: str, user: User) -> tuple[Grant, ...]:
        groups = user.spec.groups
        return tuple(
            Grant(rule.spec.role, rule.spec.scope.kind, rule.spec.scope.name)
            for rule in self._rules
            if (rule.spec.subject.kind in ("user", "application") and rule.spec.subject.name == subject)
            or (rule.spec.subject.kind == "group" and rule.spec.subject.name in groups)
        )

    # --- may they

    def require(
        self, caller: Caller, action: str, kind: AnyKind, namespace: str = "", name: str = "", *, inside: bool = False
    ) -> None:
        if not self.may(caller, action, kind, namespace, name, inside=inside):
            where = f" in namespace {namespace!r}" if namespace else ""
            raise Denied(
                f"{caller.subject!r} may not {action} {kind.plural}{where}",
                hint="ask an administrator for an access rule",
            )

    def may(
        self, caller: Caller, action: str, kind: AnyKind, namespace: str = "", name: str = "", *, inside: bool = False
    ) -> bool:
        """`inside`: it is about what goes on in the object, such as a log."""
        if (inside or action != VIEW) and self._runs_in_nobodys(kind, namespace):
            action = REPORT
        # Whose a namespace is decides who sees into it, so giving one away is not its owner's to do.
        place = Place() if kind.name == "Namespace" and action != VIEW else self._place(kind, namespace, name)
        return allowed(caller.grants, action, kind.name, place) or (
            action == VIEW
            and namespace == SYSTEM_NAMESPACE
            and kind.name in _FOR_EVERYONE
            and any(allowed([grant], action, kind.name, _inside(grant)) for grant in caller.grants)
        )

    def require_department(self, caller: Caller, kind: AnyKind, department: str) -> None:
        """Projects are made in, and moved to, a department by those who may create projects all over it."""
        if not allowed(caller.grants, "create", kind.name, Place(department=department)):
            raise Denied(
                f"{caller.subject!r} may not put {kind.plural} into department {department!r}",
                hint="ask an administrator for an access rule",
            )

    def require_in_project(self, caller: Caller, action: str, kind: AnyKind, project: str) -> None:
        """For what concerns a project and is no object in it. Of a project that does not exist nobody learns more."""
        if not allowed(caller.grants, action, kind.name, self._of_project(project)):
            raise Denied(
                f"{caller.subject!r} may not {action} {kind.plural} for project {project!r}",
                hint="ask an administrator for an access rule",
            )

    def sees_all(self, caller: Caller, kind: AnyKind) -> bool:
        return everywhere(caller.grants, VIEW, kind.name)

    def sees(self, caller: Caller, kind: AnyKind, document: Document) -> bool:
        """What the document says of itself counts here: the tables may not have it yet, or not any more."""
        if owns(caller, kind, document):
            return True
        match kind.name:
            case "Project":
                return allowed(caller.grants, VIEW, kind.name, Place(document.name, department_of(document.data)))
            case "Namespace":
                place = self._of_project(project_of(document.metadata.get("labels") or {}))
                return allowed(caller.grants, VIEW, kind.name, place)
            case _:
                return self.may(caller, VIEW, kind, document.namespace, document.name)

    def _place(self, kind: AnyKind, namespace: str, name: str) -> Place:
        match kind.name:
            case "Department":
                return Place(department=name)
            case "Project":
                return self._of_project(name)
            case "Namespace":
                return self._of_project(self._project_of(name))
            case _:
                # Without a namespace it belongs to the cluster, whatever it is called.
                return self._of_project(self._project_of(namespace)) if namespace else Place()

    def _runs_in_nobodys(self, kind: AnyKind, namespace: str) -> bool:
        """Whether it is of those that run, in a namespace of no project: that of the cluster itself, or of another
        program. We could reach it, with rights that our callers do not have."""
        known = self._namespaces.get(namespace) if namespace else None
        return known is not None and ENTITY_OF_KIND[kind.name] in _RUNNING and not project_of(known.metadata.labels)

    def _of_project(self, project: str) -> Place:
        if not project:
            return Place()
        found = self._projects.get(project)
        return Place(project, (found.spec.department or DEFAULT_DEPARTMENT) if found else "")

    def _project_of(self, namespace: str) -> str:
        """Whose a namespace is. Its label decides, which only the platform and administrators write;
        what a project says of itself does not."""
        found = self._namespaces.get(namespace)
        return project_of(found.metadata.labels) if found else ""


def owns(caller: Caller, kind: AnyKind, document: Document) -> bool:
    """Everybody sees and ends the tokens that speak for him."""
    return kind.name == "Token" and bool((document.data.get("spec") or {}).get("user") == caller.subject)


def department_of(project: Json) -> str:
    spec = project.get("spec")
    return str((spec.get("department") if isinstance(spec, dict) else "") or DEFAULT_DEPARTMENT)


def _unknown() -> Unauthenticated:
    return Unauthenticated("the token is not known", hint="it may have been deleted; ask an administrator for another")


def _inside(grant: Grant) -> Place:
    """A place that the grant surely covers."""
    return Place(grant.name, grant.name)
