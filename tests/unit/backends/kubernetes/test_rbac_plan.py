"""Access rules become Roles and RoleBindings: the decision, and what a crash between two writes leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from access.team import CLUSTER, Team, in_project, rule
from aliquot.api import AccessRule, Metadata, Namespace, Project, Scope, User
from aliquot.api.project import ProjectSpec
from aliquot.api.user import UserSpec
from aliquot.backends.kubernetes.rbac import apply, read_namespace
from aliquot.backends.kubernetes.rbac_plan import Change, NamespaceState, Remove, Write, decide, owner_of
from aliquot.backends.kubernetes.service_accounts import account_of, new_account
from aliquot.backends.kubernetes.unstructured_kinds import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from aliquot.labels import PROJECT, namespace_of
from aliquot.store.driver import Document
from aliquot.store.drivers.memory import MemoryDriver

VISION = Project(metadata=Metadata(name="vision"), spec=ProjectSpec(department="research"))
SPACE = "runai-vision"


def state(*rules: AccessRule, **fields: Any) -> NamespaceState:
    return NamespaceState(**{"namespace": SPACE, "project": VISION, "rules": rules, **fields})


def user(name: str, *groups: str, disabled: bool = False) -> User:
    return User(metadata=Metadata(name=name, uid=f"uid-of-{name}"), spec=UserSpec(groups=groups, disabled=disabled))


def account(owner: User) -> Any:
    return replace(account_of(new_account(SPACE, owner)), uid="a1")


def bound(changes: list[Change]) -> dict[str, list[tuple[str, str]]]:
    """The subjects of each binding that is written."""
    return {
        change.document["metadata"]["name"]: [
            (subject["kind"], subject["name"]) for subject in change.document["subjects"]
        ]
        for change in changes
        if isinstance(change, Write) and change.kind is ROLE_BINDING
    }


def stored(change: Change, uid: str = "u1") -> dict[str, Any]:
    """The object after a write."""
    assert isinstance(change, Write)
    metadata = {**change.document["metadata"], "uid": uid, "resourceVersion": "7"}
    return {**change.document, "metadata": metadata}


def objects_for(*rules: AccessRule, **fields: Any) -> dict[str, Any]:
    """The objects that these rules need."""
    changes = decide(state(*rules, **fields))
    kinds = {"roles": ROLE, "bindings": ROLE_BINDING}
    return {name: [stored(change) for change in changes if change.kind is kind] for name, kind in kinds.items()}


def test_role_comes_before_its_binding() -> None:
    """The Role is written first, so that a binding never refers to a missing Role."""
    changes = decide(state(rule("viewer", in_project("vision"), user="ann")))
    assert [
        (change.kind.name, change.document["metadata"]["name"]) for change in changes if isinstance(change, Write)
    ] == [
        ("Role", "aliquot-viewer"),
        ("RoleBinding", "aliquot-viewer"),
    ]
    assert bound(changes) == {"aliquot-viewer": [("User", "ann")]}


@pytest.mark.parametrize("scope", [in_project("vision"), Scope(kind="department", name="research"), CLUSTER])
def test_every_scope_above_the_project_counts(scope: Scope) -> None:
    """Rules of the project, of its department and of the cluster apply in its namespace."""
    assert bound(decide(state(rule("viewer", scope, group="staff")))) == {"aliquot-viewer": [("Group", "staff")]}


@pytest.mark.parametrize("scope", [in_project("speech"), Scope(kind="department", name="sales")])
def test_rules_of_other_scopes(scope: Scope) -> None:
    """A rule for another project or department grants nothing here."""
    assert decide(state(rule("viewer", scope, user="ann"))) == []


def test_default_department() -> None:
    """A project without a department is in the default one, as in the REST API."""
    plain = replace(VISION, spec=ProjectSpec())
    viewer = rule("viewer", Scope(kind="department", name="default"), user="ann")
    assert bound(decide(state(viewer, project=plain))) == {"aliquot-viewer": [("User", "ann")]}


def test_role_aliases() -> None:
    """An earlier name of a role means the current role."""
    changes = decide(state(rule("researcher", in_project("vision"), user="ann")))
    assert list(bound(changes)) == ["aliquot-l1-researcher"]


def test_nothing_to_do() -> None:
    """Objects that are as they should be are not written again."""
    rules = [
        rule("viewer", CLUSTER, user="ann"),
        rule("viewer", CLUSTER, group="staff"),
        rule("editor", CLUSTER, user="b"),
    ]
    assert decide(state(*rules, **objects_for(*rules))) == []


def test_new_subject_changes_only_the_binding() -> None:
    """The binding is replaced in the version that was read."""
    first, second = rule("viewer", CLUSTER, user="ann"), rule("viewer", CLUSTER, user="ben")
    (change,) = decide(state(first, second, **objects_for(first)))
    assert isinstance(change, Write)
    assert change.document["metadata"]["resourceVersion"] == "7"
    assert bound([change]) == {"aliquot-viewer": [("User", "ann"), ("User", "ben")]}


def test_binding_and_role_end_with_the_last_rule() -> None:
    """The binding is deleted first, then the Role."""
    changes = decide(state(**objects_for(rule("viewer", CLUSTER, user="ann"))))
    assert changes == [
        Remove(ROLE_BINDING, "aliquot-viewer", SPACE, "u1"),
        Remove(ROLE, "aliquot-viewer", SPACE, "u1"),
    ]


def test_changed_role_is_restored() -> None:
    """A Role that a user widened gets its rules back."""
    viewer = rule("viewer", CLUSTER, user="ann")
    objects = objects_for(viewer)
    objects["roles"][0]["rules"] = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    (change,) = decide(state(viewer, **objects))
    assert change.kind is ROLE
    assert stored(change)["rules"] == objects_for(viewer)["roles"][0]["rules"]


def test_binding_to_another_role_is_replaced() -> None:
    """A binding with our name that refers to another role is deleted and created again."""
    viewer = rule("viewer", CLUSTER, user="ann")
    objects = objects_for(viewer)
    objects["bindings"][0]["roleRef"] = {**objects["bindings"][0]["roleRef"], "kind": "ClusterRole", "name": "admin"}
    first, second = decide(state(viewer, **objects))
    assert first == Remove(ROLE_BINDING, "aliquot-viewer", SPACE, "u1")
    assert isinstance(second, Write)
    assert second.document["roleRef"]["name"] == "aliquot-viewer"


def test_foreign_role_is_neither_changed_nor_bound() -> None:
    """A Role with our name but without our labels may grant anything, so no subject is bound to it."""
    viewer = rule("viewer", CLUSTER, user="ann")
    objects = objects_for(viewer)
    objects["roles"][0]["metadata"]["labels"] = {}
    assert decide(state(viewer, **objects)) == [Remove(ROLE_BINDING, "aliquot-viewer", SPACE, "u1")]


def test_foreign_binding_is_left_alone() -> None:
    """A binding with our name but without our labels stays, and our Role is deleted so that it cannot use it."""
    viewer = rule("viewer", CLUSTER, user="ann")
    objects = objects_for(viewer)
    objects["bindings"][0]["metadata"]["labels"] = {}
    assert decide(state(viewer, **objects)) == [Remove(ROLE, "aliquot-viewer", SPACE, "u1")]


def test_other_roles_of_the_platform_are_left_alone() -> None:
    """The platform's label alone is not enough: its other components create Roles too."""
    objects = objects_for(rule("viewer", CLUSTER, user="ann"))
    for item in (*objects["roles"], *objects["bindings"]):
        item["metadata"] = {**item["metadata"], "name": "other", "labels": {"app.kubernetes.io/managed-by": "aliquot"}}
    assert decide(state(**objects)) == []


def test_namespace_without_a_project() -> None:
    """When a namespace no longer belongs to a project, its roles and accounts are deleted."""
    ann = user("ann")
    viewer = rule("viewer", CLUSTER, user="ann")
    changes = decide(state(viewer, project=None, users={"ann": ann}, accounts=[account(ann)], **objects_for(viewer)))
    assert [(change.kind, change.name) for change in changes if isinstance(change, Remove)] == [
        (ROLE_BINDING, "aliquot-viewer"),
        (SERVICE_ACCOUNT, f"{SPACE}.ann"),
        (ROLE, "aliquot-viewer"),
    ]


@pytest.mark.parametrize("name", ["system:authenticated", "system:unauthenticated", "system:masters"])
def test_system_groups_are_never_bound(name: str) -> None:
    """A group of that name has no meaning in the REST API, so it must not mean everyone here."""
    assert decide(state(rule("editor", CLUSTER, group=name))) == []


def test_disabled_user() -> None:
    """A disabled user is bound neither by name nor by account, and the account is deleted with its tokens."""
    ann = user("ann", "staff", disabled=True)
    rules = [rule("viewer", CLUSTER, user="ann"), rule("editor", CLUSTER, group="staff")]
    changes = decide(state(*rules, users={"ann": ann}, accounts=[account(ann)]))
    assert Remove(SERVICE_ACCOUNT, f"{SPACE}.ann", "runai", "a1") in changes
    assert bound(changes) == {"aliquot-editor": [("Group", "staff")]}


def test_an_account_has_the_roles_of_its_user() -> None:
    """By name and by group, and only in the account's namespace."""
    ann = user("ann", "staff")
    rules = [rule("viewer", CLUSTER, user="ann"), rule("editor", CLUSTER, group="staff")]
    assert bound(decide(state(*rules, users={"ann": ann}, accounts=[account(ann)]))) == {
        "aliquot-editor": [("Group", "staff"), ("ServiceAccount", f"{SPACE}.ann")],
        "aliquot-viewer": [("ServiceAccount", f"{SPACE}.ann"), ("User", "ann")],
    }


def test_account_without_roles_is_deleted() -> None:
    """A kubeconfig ends with the user's last rule."""
    ann = user("ann")
    changes = decide(state(rule("viewer", CLUSTER, user="ben"), users={"ann": ann}, accounts=[account(ann)]))
    assert Remove(SERVICE_ACCOUNT, f"{SPACE}.ann", "runai", "a1") in changes


def test_account_of_an_earlier_user_is_deleted() -> None:
    """A new user with the name of an earlier one does not share rights with its account."""
    before = replace(user("ann"), metadata=Metadata(name="ann", uid="another"))
    viewer = rule("viewer", CLUSTER, user="ann")
    changes = decide(state(viewer, users={"ann": user("ann")}, accounts=[account(before)]))
    assert Remove(SERVICE_ACCOUNT, f"{SPACE}.ann", "runai", "a1") in changes
    assert bound(changes) == {"aliquot-viewer": [("User", "ann")]}


@pytest.mark.parametrize(
    "name,labels,owned",
    [
        (SPACE, {PROJECT: "vision"}, True),
        (SPACE, {"runai/queue": "vision"}, True),
        (SPACE, {}, False),
        (SPACE, {PROJECT: "speech"}, False),
        ("elsewhere", {PROJECT: "vision"}, False),
    ],
)
def test_owner_of_a_namespace(name: str, labels: dict[str, str], owned: bool) -> None:
    """The namespace's label and the project's namespace must agree."""
    project = owner_of(Namespace(metadata=Metadata(name=name, labels=labels)), {"vision": VISION}.get)
    assert (project is VISION) == owned


@pytest.mark.parametrize("name", ["kube-system", "runai", "runai-reservation"])
def test_privileged_namespaces(name: str) -> None:
    """No role is bound in such a namespace, whatever its label or a project says."""
    project = replace(VISION, spec=ProjectSpec(namespace=name))
    namespace = Namespace(metadata=Metadata(name=name, labels={PROJECT: "vision"}))
    assert owner_of(namespace, {"vision": project}.get) is None


# --- killed between two writes


async def rights(driver: MemoryDriver, namespace: str) -> set[tuple[str, str]]:
    """(subject, role) pairs that are in force: a binding without its Role grants nothing."""
    current = await read_namespace(driver, namespace)
    roles = {role["metadata"]["name"] for role in current.roles}
    return {
        (subject["name"], binding["roleRef"]["name"])
        for binding in current.bindings
        for subject in binding["subjects"]
        if binding["roleRef"]["name"] in roles
    }


async def crash_after(writes: int) -> tuple[MemoryDriver, str, set[tuple[str, str]], int]:
    """A namespace whose rules were replaced, after so many writes; the rights before; the number of all writes."""
    team = await Team(driver := MemoryDriver()).prepare()
    project = await team.project()
    space = namespace_of(project)
    ann, ben = await team.user(), await team.user("staff")
    old = [await team.rule("editor", in_project(project), user=ann), await team.rule("viewer", CLUSTER, group="staff")]
    for name in (ann, ben):
        await driver.create(SERVICE_ACCOUNT, new_account(space, await team.store.get(User, name)))
    await apply(driver, decide(await read_namespace(driver, space)))
    before = await rights(driver, space)
    for access_rule in old:
        await team.store.delete(access_rule)
    await team.rule("viewer", in_project(project), user=ann)
    await team.rule("l2-researcher", CLUSTER, user="eve")
    changes = decide(await read_namespace(driver, space))
    await apply(driver, changes[:writes])
    return driver, space, before, len(changes)


async def test_killed_after_any_write() -> None:
    """The next process reaches the same state; in between no subject has a right of neither state."""
    driver, space, before, writes = await crash_after(999)
    end = {name.partition(".")[2] or name: role for name, role in await rights(driver, space)}
    assert writes > 5
    for after in range(writes):
        driver, space, before, _ = await crash_after(after)
        between = await rights(driver, space)
        await apply(driver, decide(await read_namespace(driver, space)))
        done = await rights(driver, space)
        assert between <= before | done
        assert len(done) == len(end) + 1  # ann by name and by account, and eve
        assert decide(await read_namespace(driver, space)) == []


async def test_conflict() -> None:
    """A binding that changed since it was read is not overwritten."""
    team = await Team(driver := MemoryDriver()).prepare()
    project = await team.project()
    space = namespace_of(project)
    await team.rule("viewer", in_project(project), user="ann")
    await apply(driver, decide(await read_namespace(driver, space)))
    await team.rule("viewer", in_project(project), user="ben")
    changes = decide(await read_namespace(driver, space))
    existing = await driver.get(ROLE_BINDING, "aliquot-viewer", space)
    await driver.update(ROLE_BINDING, Document({**existing.data, "subjects": []}))
    with pytest.raises(Exception, match="version"):
        await apply(driver, changes)
