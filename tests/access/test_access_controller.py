"""The controller that turns access rules into RBAC, on a real API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from access.team import CLUSTER, Team, in_project
from aliquot.api import Namespace, Project, User
from aliquot.backends.kubernetes.rbac import RbacController
from aliquot.backends.kubernetes.service_accounts import account_name, new_account
from aliquot.backends.kubernetes.unstructured_kinds import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from aliquot.errors import NotFound
from aliquot.labels import SYSTEM_NAMESPACE, namespace_of
from aliquot.store.driver import Document
from aliquot.store.informer import Informers
from support.kubernetes.cluster import Cluster
from support.stores.running import running
from support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("access")]


@asynccontextmanager
async def running_controller(team: Team) -> AsyncIterator[None]:
    informers = Informers(team.driver)
    rbac = RbacController(team.driver, informers)

    async def is_idle() -> bool:
        return rbac.controller.idle

    async with running(*(informer.run() for informer in informers), rbac.run()):
        yield
        # A request that is cancelled while it connects leaves its socket to the garbage collector, which warns.
        await eventually(is_idle)


async def bound(team: Team, project: str) -> dict[str, list[str]]:
    """Role -> names of its subjects, for Roles that exist."""
    space = namespace_of(project)
    roles = {role.name for role in (await team.driver.list(ROLE, space)).items}
    bindings = (await team.driver.list(ROLE_BINDING, space)).items
    return {
        binding.data["roleRef"]["name"]: [subject["name"] for subject in binding.data.get("subjects") or ()]
        for binding in bindings
        if binding.data["roleRef"]["name"] in roles
    }


async def wait_bound(team: Team, project: str, wanted: dict[str, list[str]]) -> None:
    """Waits until the bindings are these, and no other Role is left."""

    async def is_bound() -> bool:
        roles = {role.name for role in (await team.driver.list(ROLE, namespace_of(project))).items}
        return await bound(team, project) == wanted and roles == set(wanted)

    try:
        await eventually(is_bound)
    except TimeoutError:
        assert await bound(team, project) == wanted
        raise


async def test_rule_added_changed_removed(team: Team) -> None:
    """Rights are granted, changed and revoked with their rule."""
    project = await team.project()
    async with running_controller(team):
        rule = await team.rule("viewer", in_project(project), user="ann")
        await wait_bound(team, project, {"aliquot-viewer": ["ann"]})
        spec = replace(rule.spec, role="editor")
        rule = await team.store.update(replace(rule, spec=spec), seen=rule)
        await wait_bound(team, project, {"aliquot-editor": ["ann"]})
        await team.store.delete(rule)
        await wait_bound(team, project, {})


async def test_rule_for_the_cluster_reaches_every_project(team: Team) -> None:
    """It also applies to a project that is created later; no ClusterRoleBinding is made."""
    first = await team.project()
    async with running_controller(team):
        rule = await team.rule("viewer", CLUSTER, user="the-auditor")
        await wait_bound(team, first, {"aliquot-viewer": ["the-auditor"]})
        second = await team.project()
        await wait_bound(team, second, {"aliquot-viewer": ["the-auditor"]})
        await team.store.delete(rule)
        await wait_bound(team, first, {})
        await wait_bound(team, second, {})


async def test_project_moves_to_another_department(team: Team) -> None:
    """Rules of the new department apply, those of the old one no longer."""
    project = await team.project(department="old")
    rules = [
        await team.rule("viewer", replace(CLUSTER, kind="department", name=name), user=name) for name in ("old", "new")
    ]
    async with running_controller(team):
        await wait_bound(team, project, {"aliquot-viewer": ["old"]})
        seen = await team.store.get(Project, project)
        await team.store.update(replace(seen, spec=replace(seen.spec, department="new")), seen=seen)
        await wait_bound(team, project, {"aliquot-viewer": ["new"]})
        for rule in rules:
            await team.store.delete(rule)
        await wait_bound(team, project, {})


async def test_catches_up_after_a_restart(team: Team) -> None:
    """What changed while no controller ran is reconciled by the next one."""
    project = await team.project()
    rule = await team.rule("viewer", in_project(project), user="ann")
    async with running_controller(team):
        await wait_bound(team, project, {"aliquot-viewer": ["ann"]})
    await team.store.delete(rule)
    await team.rule("editor", in_project(project), user="ben")
    async with running_controller(team):
        await wait_bound(team, project, {"aliquot-editor": ["ben"]})


async def test_two_controllers_at_once(team: Team) -> None:
    """Two controllers reach the same state."""
    project = await team.project()
    async with running_controller(team), running_controller(team):
        for name in ("ann", "ben", "eve"):
            await team.rule("viewer", in_project(project), user=name)
        await wait_bound(team, project, {"aliquot-viewer": ["ann", "ben", "eve"]})


async def test_manual_changes_are_reverted(team: Team) -> None:
    """A subject without a rule is removed from our binding, and a deleted binding is created again."""
    project = await team.project()
    space = namespace_of(project)
    await team.rule("viewer", in_project(project), user="ann")
    async with running_controller(team):
        await wait_bound(team, project, {"aliquot-viewer": ["ann"]})
        eve = {"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}
        await team.driver.patch(ROLE_BINDING, "aliquot-viewer", space, {"subjects": [eve]})
        await wait_bound(team, project, {"aliquot-viewer": ["ann"]})
        await team.driver.delete(ROLE_BINDING, "aliquot-viewer", space)
        await wait_bound(team, project, {"aliquot-viewer": ["ann"]})


async def test_foreign_role_of_our_name(team: Team, cluster: Cluster) -> None:
    """It stays as it is, and no subject is bound to it; other roles are bound as usual."""
    project = await team.project()
    space = namespace_of(project)
    cluster.kubectl("-n", space, "create", "role", "aliquot-viewer", "--verb=*", "--resource=secrets")
    before = await team.driver.get(ROLE, "aliquot-viewer", space)
    await team.rule("viewer", in_project(project), user="ann")
    await team.rule("editor", in_project(project), user="ben")
    async with running_controller(team):

        async def is_bound() -> bool:
            return await bound(team, project) == {"aliquot-editor": ["ben"]}

        await eventually(is_bound)
        assert cluster.kubectl("auth", "can-i", "get", "secrets", "-n", space, "--as=ann", check=False).startswith("no")
        assert await team.driver.get(ROLE, "aliquot-viewer", space) == before


async def test_foreign_objects_are_kept(team: Team, cluster: Cluster) -> None:
    """Roles and bindings with other names are left alone, also when all rules are deleted."""
    project = await team.project()
    space = namespace_of(project)
    cluster.kubectl("-n", space, "create", "role", "theirs", "--verb=get", "--resource=pods")
    cluster.kubectl("-n", space, "create", "rolebinding", "theirs", "--role=theirs", "--user=eve")
    rule = await team.rule("viewer", in_project(project), user="ann")
    async with running_controller(team):
        both = {"aliquot-viewer": ["ann"], "theirs": ["eve"]}
        await wait_bound(team, project, both)
        await team.store.delete(rule)
        await wait_bound(team, project, {"theirs": ["eve"]})


async def test_disabled_user(team: Team) -> None:
    """The rights and the account of a disabled user are deleted at once; those of others stay."""
    project = await team.project()
    name = await team.member(project)
    await team.rule("l1-researcher", in_project(project), user="ben")
    user = await team.store.get(User, name)
    account = account_name(namespace_of(project), name)
    await team.driver.create(SERVICE_ACCOUNT, new_account(namespace_of(project), user))
    async with running_controller(team):
        await wait_bound(team, project, {"aliquot-l1-researcher": [account, name, "ben"]})
        await team.store.update(replace(user, spec=replace(user.spec, disabled=True)), seen=user)
        await wait_bound(team, project, {"aliquot-l1-researcher": ["ben"]})
        with pytest.raises(NotFound):
            await team.driver.get(SERVICE_ACCOUNT, account, SYSTEM_NAMESPACE)


async def test_namespace_deleted(team: Team) -> None:
    """The accounts for a namespace are deleted with it."""
    project = await team.project()
    name = await team.member(project)
    account = new_account(namespace_of(project), await team.store.get(User, name))
    await team.driver.create(SERVICE_ACCOUNT, account)
    async with running_controller(team):
        await wait_bound(team, project, {"aliquot-l1-researcher": [account.name, name]})
        await team.store.delete(await team.store.get(Namespace, namespace_of(project)))

        async def is_account_deleted() -> bool:
            with suppress(NotFound):
                await team.driver.get(SERVICE_ACCOUNT, account.name, SYSTEM_NAMESPACE)
                return False
            return True

        await eventually(is_account_deleted)


async def test_other_labels_are_kept(team: Team) -> None:
    """Annotations that a user added to our binding are kept when it changes."""
    project = await team.project()
    space = namespace_of(project)
    await team.rule("viewer", in_project(project), user="ann")
    async with running_controller(team):
        await wait_bound(team, project, {"aliquot-viewer": ["ann"]})
        await team.driver.patch(ROLE_BINDING, "aliquot-viewer", space, {"metadata": {"annotations": {"note": "mine"}}})
        await team.rule("viewer", in_project(project), user="ben")
        await wait_bound(team, project, {"aliquot-viewer": ["ann", "ben"]})
        binding: Document = await team.driver.get(ROLE_BINDING, "aliquot-viewer", space)
        assert json.loads(binding.raw)["metadata"]["annotations"] == {"note": "mine"}


async def test_it_may_stop_and_go_on(team: Team) -> None:
    """A process that leads, loses the lead and gets it again has one loop for all that time."""
    project = await team.project()
    informers = Informers(team.driver)
    rbac = RbacController(team.driver, informers)
    async with running(*(informer.run() for informer in informers)):
        for name in ("ann", "ben"):
            await team.rule("viewer", in_project(project), user=name)
            async with running(rbac.run()):
                await eventually(lambda name=name: _names(team, project, name))  # type: ignore[misc]


async def _names(team: Team, project: str, name: str) -> bool:
    return name in (await bound(team, project)).get("aliquot-viewer", [])
