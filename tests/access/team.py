"""Words for tests of access on Kubernetes: projects with their namespaces, people, and rules about them."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace

from aliquot.api import KINDS, AccessRule, Metadata, Namespace, Project, Scope, Subject, User
from aliquot.api.access_rule import AccessRuleSpec
from aliquot.api.project import ProjectSpec, ProjectStatus
from aliquot.api.user import UserSpec
from aliquot.errors import Exists, NotFound
from aliquot.labels import PROJECT, SYSTEM_NAMESPACE, namespace_of
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store

CLUSTER = Scope(kind="cluster")


def unique(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


def in_project(name: str) -> Scope:
    return Scope(kind="project", name=name)


def rule(role: str, scope: Scope, *, user: str = "", group: str = "", name: str = "") -> AccessRule:
    subject = Subject(kind="group", name=group) if group else Subject(kind="user", name=user)
    spec = AccessRuleSpec(subject=subject, role=role, scope=scope)  # type: ignore[arg-type]  # checked by the type
    return AccessRule(metadata=Metadata(name=name or unique("rule")), spec=spec)


class Team:
    """What an administrator does, straight in the store."""

    def __init__(self, driver: StoreDriver) -> None:
        self.driver = driver
        self.store = Store(driver)
        self._wide: list[str] = []

    async def prepare(self) -> Team:
        """The platform's own namespace, as the first start makes it."""
        with suppress(Exists):
            await self.store.create(Namespace(metadata=Metadata(name=SYSTEM_NAMESPACE)))
        return self

    async def project(self, **spec: str) -> str:
        """A project that is ready, with its namespace."""
        name = unique("team")
        made = await self.store.create(Project(metadata=Metadata(name=name), spec=ProjectSpec(**spec)))
        await self.store.create(Namespace(metadata=Metadata(name=namespace_of(name), labels={PROJECT: name})))
        status = ProjectStatus(phase="Ready", namespace=namespace_of(name))
        await self.store.update_status(replace(made, status=status), seen=made)
        return name

    async def user(self, *groups: str, **spec: bool) -> str:
        name = unique("ann")
        await self.store.create(User(metadata=Metadata(name=name), spec=UserSpec(groups=groups, **spec)))
        return name

    async def rule(self, role: str, scope: Scope, *, user: str = "", group: str = "") -> AccessRule:
        made = await self.store.create(rule(role, scope, user=user, group=group))
        if scope.kind != "project":
            self._wide.append(made.metadata.name)
        return made

    async def leave(self) -> None:
        """Takes rules along that would hold in other tests' projects too."""
        for name in self._wide:
            with suppress(NotFound):
                await self.driver.delete(KINDS.of(AccessRule), name)

    async def member(self, project: str, role: str = "l1-researcher") -> str:
        """Somebody with a role in one project."""
        name = await self.user()
        await self.rule(role, in_project(project), user=name)
        return name
