"""Access rules, as Kubernetes' own RBAC: whoever comes with kubectl may do what our server would let them do.

grants.py says what there is to be in a namespace; here is the loop that makes it so.

Rules that hold in a department or in the whole cluster are bound namespace by namespace too, never by a
ClusterRoleBinding: the cluster has namespaces that are no project's, with secrets and pods from which every right can
be had. For the same reason Roles are made in the namespace, not once as ClusterRoles: all that a project's people may
do is in its namespace and goes with it, and there is nothing that a stray ClusterRoleBinding could turn into more.

An account (a ServiceAccount, see accounts.py) lives in the platform's own namespace, and not in the project's: whoever
may create pods in a namespace can have any account of that namespace speak through a pod.
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
    """The namespace as it is now. Accounts are read first: whoever has one was there before it."""
    store = Store(driver)
    accounts = (await driver.list(SERVICE_ACCOUNT, SYSTEM_NAMESPACE, labels=SELECTOR)).items
    roles, bindings = [await driver.list(kind, namespace) for kind in (ROLE, ROLE_BINDING)]
    users = {user.metadata.name: user for user in (await store.list(User)).items}
    projects = {project.metadata.name: project for project in (await store.list(Project)).items}
    rules = (await store.list(AccessRule)).items
    found = None
    with suppress(NotFound):
        found = await store.get(Namespace, namespace)
    return NamespaceState(
        namespace,
        owner_of(found, projects.get),
        rules,
        users,
        [account for account in map(account_of, accounts) if account.namespace == namespace],
        [document.data for document in roles.items],
        [document.data for document in bindings.items],
    )


async def apply(driver: StoreDriver, steps: Iterable[Change]) -> None:
    """`Conflict` or `Exists` when somebody was faster: look again."""
    for step in steps:
        match step:
            case Remove(kind, name, namespace, uid):
                with suppress(NotFound):
                    await driver.delete(kind, name, namespace, uid=uid)
            case Write(kind, document) if "resourceVersion" in document["metadata"]:
                await driver.update(kind, Document(document))
            case Write(kind, document):
                await driver.create(kind, Document(document))


class RbacController:
    """The loop over namespaces and the rights in them.

    What it keeps up to date only says *whether* something is to be done; what that is, is decided from a fresh look:
    the tables do not move together, and an account must not go because its user is not in one of them yet.
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
        """Until cancelled, beside the shared informers; may be run again."""
        own: list[Informer[Any]] = [self._roles, self._bindings, self._accounts]
        shared = (self._rules, self._users, self._projects, self._namespaces)
        async with asyncio.TaskGroup() as group:
            for table in own:
                group.create_task(table.run())
            # Half a picture would look like a reason to write.
            await asyncio.gather(*(table.synced.wait() for table in (*own, *shared)))
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
        if old is None or new is None or old.spec != new.spec:  # not at every login
            self._touch(*self._projects)

    def _touch_accounts(self, *accounts: Account | None) -> None:
        for account in accounts:
            if account is not None:
                self.controller.enqueue(("", account.namespace))

    def _touch_objects(self, key: Key) -> None:
        if key[1].startswith(NAME_PREFIX):
            self.controller.enqueue(("", key[0]))

    async def _reconcile(self, key: Key) -> None:
        if not decide(self._known(key[1])):
            return
        seen = await read_namespace(self._driver, key[1])
        if taken := conflicting_names(seen):
            log.warning("not bound: somebody else's objects have the names", names=sorted(taken), namespace=key[1])
        await apply(self._driver, decide(seen))

    def _known(self, namespace: str) -> NamespaceState:
        return NamespaceState(
            namespace,
            owner_of(self._namespaces.get(namespace), self._projects.get),
            list(self._rules),
            {user.metadata.name: user for user in self._users},
            [account for account in self._accounts if account.namespace == namespace],
            [role for (place, _), role in self._roles.items() if place == namespace],
            [binding for (place, _), binding in self._bindings.items() if place == namespace],
        )


def _data(document: Document) -> Json:
    return document.data
