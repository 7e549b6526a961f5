"""Access rules become Roles and RoleBindings: the decision, and what a kill between two of its writes leaves."""

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


def seen(*rules: AccessRule, **more: Any) -> NamespaceState:
    return NamespaceState(**{"namespace": SPACE, "project": VISION, "rules": rules, **more})


def user(name: str, *groups: str, **spec: bool) -> User:
    return User(metadata=Metadata(name=name, uid=f"uid-of-{name}"), spec=UserSpec(groups=groups, **spec))


def account(of: User) -> Any:
    return replace(account_of(new_account(SPACE, of)), uid="a1")


def bound(steps: list[Change]) -> dict[str, list[tuple[str, str]]]:
    """Whom each binding that is written names."""
    return {
        step.document["metadata"]["name"]: [(one["kind"], one["name"]) for one in step.document["subjects"]]
        for step in steps
        if isinstance(step, Write) and step.kind is ROLE_BINDING
    }


def stored(step: Change, uid: str = "u1") -> dict[str, Any]:
    """What is there after a write."""
    assert isinstance(step, Write)
    metadata = {**step.document["metadata"], "uid": uid, "resourceVersion": "7"}
    return {**step.document, "metadata": metadata}


def there(*rules: AccessRule, **more: Any) -> dict[str, Any]:
    """The objects that these rules need."""
    steps = decide(seen(*rules, **more))
    kinds = {"roles": ROLE, "bindings": ROLE_BINDING}
    return {word: [stored(step) for step in steps if step.kind is kind] for word, kind in kinds.items()}


def test_a_rule_becomes_a_role_and_then_its_binding() -> None:
    """The Role comes first, so that a binding never waits for somebody else to make it."""
    steps = decide(seen(rule("viewer", in_project("vision"), user="ann")))
    assert [(step.kind.name, step.document["metadata"]["name"]) for step in steps if isinstance(step, Write)] == [
        ("Role", "aliquot-viewer"),
        ("RoleBinding", "aliquot-viewer"),
    ]
    assert bound(steps) == {"aliquot-viewer": [("User", "ann")]}


@pytest.mark.parametrize("scope", [in_project("vision"), Scope(kind="department", name="research"), CLUSTER])
def test_every_scope_above_the_project_counts(scope: Scope) -> None:
    """Rules of the project, of its department and of the cluster hold in its namespace."""
    assert bound(decide(seen(rule("viewer", scope, group="staff")))) == {"aliquot-viewer": [("Group", "staff")]}


@pytest.mark.parametrize("scope", [in_project("speech"), Scope(kind="department", name="sales")])
def test_rules_of_others_do_not_count(scope: Scope) -> None:
    """A rule for another project or department gives nothing here."""
    assert decide(seen(rule("viewer", scope, user="ann"))) == []


def test_a_department_that_is_not_named_is_the_default_one() -> None:
    """A project without a department is in the default one, here as in our API."""
    plain = replace(VISION, spec=ProjectSpec())
    one = rule("viewer", Scope(kind="department", name="default"), user="ann")
    assert bound(decide(seen(one, project=plain))) == {"aliquot-viewer": [("User", "ann")]}


def test_words_of_the_earlier_roles() -> None:
    """A role by its earlier word is the role of today."""
    steps = decide(seen(rule("researcher", in_project("vision"), user="ann")))
    assert list(bound(steps)) == ["aliquot-l1-researcher"]


def test_nothing_to_do() -> None:
    """What is as it should be is not written again."""
    rules = [
        rule("viewer", CLUSTER, user="ann"),
        rule("viewer", CLUSTER, group="staff"),
        rule("editor", CLUSTER, user="b"),
    ]
    assert decide(seen(*rules, **there(*rules))) == []


def test_another_subject_changes_the_binding_only() -> None:
    """The binding is replaced at the version that was seen."""
    one, two = rule("viewer", CLUSTER, user="ann"), rule("viewer", CLUSTER, user="ben")
    (step,) = decide(seen(one, two, **there(one)))
    assert isinstance(step, Write)
    assert step.document["metadata"]["resourceVersion"] == "7"
    assert bound([step]) == {"aliquot-viewer": [("User", "ann"), ("User", "ben")]}


def test_the_last_rule_takes_binding_and_role_along() -> None:
    """First the binding, then the Role."""
    steps = decide(seen(**there(rule("viewer", CLUSTER, user="ann"))))
    assert steps == [
        Remove(ROLE_BINDING, "aliquot-viewer", SPACE, "u1"),
        Remove(ROLE, "aliquot-viewer", SPACE, "u1"),
    ]


def test_a_role_that_somebody_widened_is_put_right() -> None:
    """Our Roles say what the table says."""
    one = rule("viewer", CLUSTER, user="ann")
    objects = there(one)
    objects["roles"][0]["rules"] = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    (step,) = decide(seen(one, **objects))
    assert step.kind is ROLE
    assert stored(step)["rules"] == there(one)["roles"][0]["rules"]


def test_a_binding_to_another_role_is_made_anew() -> None:
    """A binding under our name that points elsewhere goes, and a right one comes."""
    one = rule("viewer", CLUSTER, user="ann")
    objects = there(one)
    objects["bindings"][0]["roleRef"] = {**objects["bindings"][0]["roleRef"], "kind": "ClusterRole", "name": "admin"}
    first, second = decide(seen(one, **objects))
    assert first == Remove(ROLE_BINDING, "aliquot-viewer", SPACE, "u1")
    assert isinstance(second, Write)
    assert second.document["roleRef"]["name"] == "aliquot-viewer"


def test_somebody_elses_role_is_neither_touched_nor_bound() -> None:
    """A Role of our name without our label gives what its maker says, so nobody is bound to it."""
    one = rule("viewer", CLUSTER, user="ann")
    objects = there(one)
    objects["roles"][0]["metadata"]["labels"] = {}
    assert decide(seen(one, **objects)) == [Remove(ROLE_BINDING, "aliquot-viewer", SPACE, "u1")]


def test_somebody_elses_binding_is_left_alone() -> None:
    """A binding of our name without our label stays, and our Role is not there for it to use."""
    one = rule("viewer", CLUSTER, user="ann")
    objects = there(one)
    objects["bindings"][0]["metadata"]["labels"] = {}
    assert decide(seen(one, **objects)) == [Remove(ROLE, "aliquot-viewer", SPACE, "u1")]


def test_other_roles_of_the_platform_are_left_alone() -> None:
    """The platform's label alone is not enough: other parts of it make Roles too."""
    objects = there(rule("viewer", CLUSTER, user="ann"))
    for one in (*objects["roles"], *objects["bindings"]):
        one["metadata"] = {**one["metadata"], "name": "other", "labels": {"app.kubernetes.io/managed-by": "aliquot"}}
    assert decide(seen(**objects)) == []


def test_a_namespace_of_nobody_has_no_rights() -> None:
    """When a project lets go of its namespace, all rights and accounts there end."""
    ann = user("ann")
    one = rule("viewer", CLUSTER, user="ann")
    left = decide(seen(one, project=None, users={"ann": ann}, accounts=[account(ann)], **there(one)))
    assert [(step.kind, step.name) for step in left if isinstance(step, Remove)] == [
        (ROLE_BINDING, "aliquot-viewer"),
        (SERVICE_ACCOUNT, f"{SPACE}.ann"),
        (ROLE, "aliquot-viewer"),
    ]


@pytest.mark.parametrize("name", ["system:authenticated", "system:unauthenticated", "system:masters"])
def test_groups_of_kubernetes_itself_get_nothing(name: str) -> None:
    """A group by that name means nothing to our API, so it must not mean everybody here."""
    assert decide(seen(rule("editor", CLUSTER, group=name))) == []


def test_a_disabled_user_loses_everything() -> None:
    """Whoever is disabled is bound neither by name nor by account, and the account goes with its tokens."""
    ann = user("ann", "staff", disabled=True)
    rules = [rule("viewer", CLUSTER, user="ann"), rule("editor", CLUSTER, group="staff")]
    steps = decide(seen(*rules, users={"ann": ann}, accounts=[account(ann)]))
    assert Remove(SERVICE_ACCOUNT, f"{SPACE}.ann", "runai", "a1") in steps
    assert bound(steps) == {"aliquot-editor": [("Group", "staff")]}


def test_an_account_has_the_roles_of_its_user() -> None:
    """By name and by group, and only where the account is."""
    ann = user("ann", "staff")
    rules = [rule("viewer", CLUSTER, user="ann"), rule("editor", CLUSTER, group="staff")]
    assert bound(decide(seen(*rules, users={"ann": ann}, accounts=[account(ann)]))) == {
        "aliquot-editor": [("Group", "staff"), ("ServiceAccount", f"{SPACE}.ann")],
        "aliquot-viewer": [("ServiceAccount", f"{SPACE}.ann"), ("User", "ann")],
    }


def test_an_account_without_roles_goes() -> None:
    """The last rule's end is the end of the kubeconfig."""
    ann = user("ann")
    steps = decide(seen(rule("viewer", CLUSTER, user="ben"), users={"ann": ann}, accounts=[account(ann)]))
    assert Remove(SERVICE_ACCOUNT, f"{SPACE}.ann", "runai", "a1") in steps


def test_an_account_of_an_earlier_user_goes() -> None:
    """Whoever gets a name that was free again does not share rights with who had it."""
    before = replace(user("ann"), metadata=Metadata(name="ann", uid="another"))
    one = rule("viewer", CLUSTER, user="ann")
    steps = decide(seen(one, users={"ann": user("ann")}, accounts=[account(before)]))
    assert Remove(SERVICE_ACCOUNT, f"{SPACE}.ann", "runai", "a1") in steps
    assert bound(steps) == {"aliquot-viewer": [("User", "ann")]}


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
def test_whose_a_namespace_is(name: str, labels: dict[str, str], owned: bool) -> None:
    """Label and project must agree."""
    found = owner_of(Namespace(metadata=Metadata(name=name, labels=labels)), {"vision": VISION}.get)
    assert (found is VISION) == owned


@pytest.mark.parametrize("name", ["kube-system", "runai", "runai-reservation"])
def test_no_rights_where_powerful_programs_run(name: str) -> None:
    """Whatever label such a namespace has and whatever a project says."""
    project = replace(VISION, spec=ProjectSpec(namespace=name))
    namespace = Namespace(metadata=Metadata(name=name, labels={PROJECT: "vision"}))
    assert owner_of(namespace, {"vision": project}.get) is None


# --- killed between two writes


async def rights(driver: MemoryDriver, namespace: str) -> set[tuple[str, str]]:
    """Who really has which role: a binding without its Role gives nothing."""
    now = await read_namespace(driver, namespace)
    roles = {role["metadata"]["name"] for role in now.roles}
    return {
        (one["name"], binding["roleRef"]["name"])
        for binding in now.bindings
        for one in binding["subjects"]
        if binding["roleRef"]["name"] in roles
    }


async def changed(after: int) -> tuple[MemoryDriver, str, set[tuple[str, str]], int]:
    """A namespace whose rules were exchanged, with so many writes done; what was in force before; all writes."""
    team = await Team(driver := MemoryDriver()).prepare()
    project = await team.project()
    space = namespace_of(project)
    ann, ben = await team.user(), await team.user("staff")
    old = [await team.rule("editor", in_project(project), user=ann), await team.rule("viewer", CLUSTER, group="staff")]
    for name in (ann, ben):
        await driver.create(SERVICE_ACCOUNT, new_account(space, await team.store.get(User, name)))
    await apply(driver, decide(await read_namespace(driver, space)))
    before = await rights(driver, space)
    for one in old:
        await team.store.delete(one)
    await team.rule("viewer", in_project(project), user=ann)
    await team.rule("l2-researcher", CLUSTER, user="eve")
    steps = decide(await read_namespace(driver, space))
    await apply(driver, steps[:after])
    return driver, space, before, len(steps)


async def test_killed_after_any_write() -> None:
    """The next one comes to the same end; nobody has in between what he had neither before nor after."""
    driver, space, before, writes = await changed(999)
    end = {one.partition(".")[2] or one: role for one, role in await rights(driver, space)}
    assert writes > 5
    for after in range(writes):
        driver, space, before, _ = await changed(after)
        between = await rights(driver, space)
        await apply(driver, decide(await read_namespace(driver, space)))
        done = await rights(driver, space)
        assert between <= before | done
        assert len(done) == len(end) + 1  # ann by name and by account, and eve
        assert decide(await read_namespace(driver, space)) == []


async def test_somebody_was_faster() -> None:
    """A binding that changed since it was seen is not overwritten."""
    team = await Team(driver := MemoryDriver()).prepare()
    project = await team.project()
    space = namespace_of(project)
    await team.rule("viewer", in_project(project), user="ann")
    await apply(driver, decide(await read_namespace(driver, space)))
    await team.rule("viewer", in_project(project), user="ben")
    steps = decide(await read_namespace(driver, space))
    there = await driver.get(ROLE_BINDING, "aliquot-viewer", space)
    await driver.update(ROLE_BINDING, Document({**there.data, "subjects": []}))
    with pytest.raises(Exception, match="version"):
        await apply(driver, steps)
