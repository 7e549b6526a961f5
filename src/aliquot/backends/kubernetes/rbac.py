"""Turns access rules into Kubernetes RBAC, so that kubectl permits what the REST API permits.

rbac_plan.py decides which Roles and RoleBindings a namespace needs; this module has the controller that writes them.

Rules for a department or for the whole cluster are also bound namespace by namespace, never by a ClusterRoleBinding:
the cluster has namespaces that belong to no project, with secrets and pods from which every right could be had. For the
same reason there are Roles in each namespace instead of shared ClusterRoles. Everything that a project's members may do
is in its namespace and is deleted with it, and a stray ClusterRoleBinding cannot turn it into more.

A user's ServiceAccount (service_accounts.py) is in the platform's own namespace, not in the project's: a user who may
create pods in a namespace can run a pod as any account of that namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import structlog

from aliquot.api import AccessRule, Json, Namespace, Project, User
from aliquot.backends.kubernetes.rbac_plan import (
    NAME_PREFIX,
    Change,
    NamespaceState,
    Remove,
    Write,
    conflicting_names,
    covers,
    decide,
    owner_of,
)
from aliquot.backends.kubernetes.service_accounts import SELECTOR, Account, account_of
from aliquot.backends.kubernetes.unstructured_kinds import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from aliquot.controllers.projects import wanted_namespace
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import NotFound
from aliquot.labels import SYSTEM_NAMESPACE
from aliquot.store.driver import Document, StoreDriver
from aliquot.store.informer import Informer, Informers, Key
from aliquot.store.typed_store import Store

log = structlog.get_logger()


async def read_namespace(driver: StoreDriver, namespace: str) -> NamespaceState:
    """Reads the namespace now. Accounts are read first: the user of an account existed before the account did."""
    store = Store(driver)
    accounts = (await driver.list(SERVICE_ACCOUNT, SYSTEM_NAMESPACE, labels=SELECTOR)).items
    roles, bindings = [await driver.list(kind, namespace) for kind in (ROLE, ROLE_BINDING)]
    users = {user.metadata.name: user for user in (await store.list(User)).items}
    projects = {project.metadata.name: project for project in (await store.list(Project)).items}
    rules = (await store.list(AccessRule)).items
    existing = None
    with suppress(NotFound):
        existing = await store.get(Namespace, namespace)
    return NamespaceState(
        namespace,
        owner_of(existing, projects.get),
        rules,
        users,
        [account for account in map(account_of, accounts) if account.namespace == namespace],
        [document.data for document in roles.items],
        [document.data for document in bindings.items],
    )


async def apply(driver: StoreDriver, changes: Iterable[Change]) -> None:
    """Raises `Conflict` or `Exists` if another writer was faster: read the namespace again."""
    for change in changes:
        match change:
            case Remove(kind, name, namespace, uid):
                with suppress(NotFound):
                    await driver.delete(kind, name, namespace, uid=uid)
            case Write(kind, document) if "resourceVersion" in document["metadata"]:
                await driver.update(kind, Document(document))
            case Write(kind, document):
                await driver.create(kind, Document(document))


class RbacController:
    """Reconciles the Roles, RoleBindings and accounts of each namespace.

    The informers only decide *whether* there is work. What to write is decided from a fresh read: informers are not in
    step with each other, and an account must not be deleted because its user has not reached one of them yet.
    """

    def __init__(self, driver: StoreDriver, informers: Informers) -> None:
        self._driver = driver
        self._rules, self._users = informers.of(AccessRule), informers.of(User)
        self._projects, self._namespaces = informers.of(Project), informers.of(Namespace)
        self._roles = Informer(driver, ROLE, _data)
        self._bindings = Informer(driver, ROLE_BINDING, _data)
        self._accounts = Informer(driver, SERVICE_ACCOUNT, account_of, labels=SELECTOR)
        self.controller = Controller("rbac", self._reconcile)
        self._namespaces.listen(lambda key, old, new: self.controller.enqueue(key))
        self._projects.listen(lambda key, old, new: self._touch(old, new))
        self._rules.listen(lambda key, old, new: self._touch_scopes(old, new))
        self._users.listen(lambda key, old, new: self._touch_all(old, new))
        self._accounts.listen(lambda key, old, new: self._touch_accounts(old, new))
        for informer in (self._roles, self._bindings):
            informer.listen(lambda key, old, new: self._touch_objects(key))

    async def run(self) -> None:
        """Runs until cancelled; the shared informers run elsewhere. May be run again."""
        own: list[Informer[Any]] = [self._roles, self._bindings, self._accounts]
        shared = (self._rules, self._users, self._projects, self._namespaces)
        async with asyncio.TaskGroup() as group:
            for informer in own:
                group.create_task(informer.run())
            # An incomplete state would look like a reason to write.
            await asyncio.gather(*(informer.synced.wait() for informer in (*own, *shared)))
            await self.controller.run()

    def _touch(self, *projects: Project | None) -> None:
        for project in projects:
            if project is not None:
                self.controller.enqueue(("", wanted_namespace(project)))

    def _touch_scopes(self, *rules: AccessRule | None) -> None:
        for project in self._projects:
            if any(rule is not None and covers(rule, project) for rule in rules):
                self._touch(project)

    def _touch_all(self, old: User | None, new: User | None) -> None:
        if old is None or new is None or old.spec != new.spec:  # not for the status, which changes at every login
            self._touch(*self._projects)

    def _touch_accounts(self, *accounts: Account | None) -> None:
        for account in accounts:
            if account is not None:
                self.controller.enqueue(("", account.namespace))

    def _touch_objects(self, key: Key) -> None:
        if key[1].startswith(NAME_PREFIX):
            self.controller.enqueue(("", key[0]))

    async def _reconcile(self, key: Key) -> None:
        if not decide(self._cached_state(key[1])):
            return
        state = await read_namespace(self._driver, key[1])
        if conflicts := conflicting_names(state):
            log.warning("roles not bound: other objects have their names", names=sorted(conflicts), namespace=key[1])
        await apply(self._driver, decide(state))

    def _cached_state(self, namespace: str) -> NamespaceState:
        return NamespaceState(
            namespace,
            owner_of(self._namespaces.get(namespace), self._projects.get),
            list(self._rules),
            {user.metadata.name: user for user in self._users},
            [account for account in self._accounts if account.namespace == namespace],
            [role for key, role in self._roles.items() if key[0] == namespace],
            [binding for key, binding in self._bindings.items() if key[0] == namespace],
        )


def _data(document: Document) -> Json:
    return document.data
