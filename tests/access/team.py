"""Builders for tests of access on Kubernetes: projects with their namespaces, users, and access rules."""

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


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def in_project(name: str) -> Scope:
    return Scope(kind="project", name=name)


def rule(role: str, scope: Scope, *, user: str = "", group: str = "", name: str = "") -> AccessRule:
    subject = Subject(kind="group", name=group) if group else Subject(kind="user", name=user)
    spec = AccessRuleSpec(subject=subject, role=role, scope=scope)  # type: ignore[arg-type]  # checked by the type
    return AccessRule(metadata=Metadata(name=name or unique("rule")), spec=spec)


class Team:
    """Creates objects in the store, as an administrator would."""

    def __init__(self, driver: StoreDriver) -> None:
        self.driver = driver
        self.store = Store(driver)
        self._wide_rules: list[str] = []

    async def prepare(self) -> Team:
        """Creates the platform's own namespace, as the first start does."""
        with suppress(Exists):
            await self.store.create(Namespace(metadata=Metadata(name=SYSTEM_NAMESPACE)))
        return self

    async def project(self, department: str | None = None) -> str:
        """Creates a project that is ready, with its namespace; returns its name."""
        name = unique("team")
        created = await self.store.create(
            Project(metadata=Metadata(name=name), spec=ProjectSpec(department=department))
        )
        await self.store.create(Namespace(metadata=Metadata(name=namespace_of(name), labels={PROJECT: name})))
        status = ProjectStatus(phase="Ready", namespace=namespace_of(name))
        await self.store.update_status(replace(created, status=status), seen=created)
        return name

    async def user(self, *groups: str, disabled: bool = False) -> str:
        name = unique("ann")
        await self.store.create(User(metadata=Metadata(name=name), spec=UserSpec(groups=groups, disabled=disabled)))
        return name

    async def rule(self, role: str, scope: Scope, *, user: str = "", group: str = "") -> AccessRule:
        created = await self.store.create(rule(role, scope, user=user, group=group))
        if scope.kind != "project":
            self._wide_rules.append(created.metadata.name)
        return created

    async def delete_wide_rules(self) -> None:
        """Deletes the rules that would apply in other tests' projects too."""
        for name in self._wide_rules:
            with suppress(NotFound):
                await self.driver.delete(KINDS.of(AccessRule), name)

    async def member(self, project: str, role: str = "l1-researcher") -> str:
        """Creates a user with a role in one project; returns its name."""
        name = await self.user()
        await self.rule(role, in_project(project), user=name)
        return name
