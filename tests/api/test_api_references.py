"""Objects that name each other: what is named must exist, and stays while it is named."""

from __future__ import annotations

import pytest

from api.people import Office
from api.wire import Api, named, unique


def test_department_must_exist(api: Api) -> None:
    """A project cannot be in a department that is not there."""
    name = unique()
    answer = api.post("projects", named(name, {"department": "nowhere"})).refused(400)
    assert "'nowhere' does not exist" in answer.faults["spec.department"]
    assert answer.json["details"]["hint"] == "create it first"


def test_user_of_a_token_must_exist(api: Api) -> None:
    """A token speaks for somebody who is there."""
    answer = api.post("tokens", named(unique(), {"user": "nobody-there"})).refused(400)
    assert "spec.user" in answer.faults


def test_department_in_use(api: Api) -> None:
    """A department with projects stays, and the answer says which ones."""
    department, project = unique("dept"), unique("proj")
    api.post("departments", named(department)).ok(201)
    api.post("projects", named(project, {"department": department})).ok(201)
    assert project in api.delete(f"departments/{department}").refused(409, "Conflict").message
    api.get(f"departments/{department}").ok()


def test_department_let_go(api: Api) -> None:
    """When its last project has left, a department can go."""
    department, project = unique("dept"), unique("proj")
    api.post("departments", named(department)).ok(201)
    api.post("projects", named(project, {"department": department})).ok(201)
    api.patch(f"projects/{project}", {"spec": {"department": None}}).ok()
    api.delete(f"departments/{department}").ok()


def test_many_users_are_counted(api: Api) -> None:
    """Of many users a few are named and the rest counted."""
    department = unique("dept")
    api.post("departments", named(department)).ok(201)
    for _ in range(7):
        api.post("projects", named(unique("proj"), {"department": department})).ok(201)
    assert "and 2 more" in api.delete(f"departments/{department}").refused(409).message


@pytest.mark.parametrize("kind", ["projects", "departments"])
def test_pool_in_use(api: Api, kind: str) -> None:
    """A pool with quotas stays."""
    pool, owner = unique("pool"), unique("owner")
    api.post("nodepools", named(pool, {"labelKey": "k", "labelValue": pool})).ok(201)
    api.post(kind, named(owner, {"pools": {pool: {"quota": {"gpu": 1}}}})).ok(201)
    assert owner in api.delete(f"nodepools/{pool}").refused(409).message


def test_pool_of_a_policy(api: Api) -> None:
    """A pool that a scheduling policy names stays."""
    pool, policy = unique("pool"), unique("policy")
    api.post("nodepools", named(pool, {"labelKey": "k", "labelValue": pool})).ok(201)
    api.post("schedulingpolicies", named(policy, {"pools": [pool]})).ok(201)
    assert policy in api.delete(f"nodepools/{pool}").refused(409).message
    api.delete(f"schedulingpolicies/{policy}").ok()


def test_user_with_tokens(office: Office) -> None:
    """A user with tokens stays until they are deleted."""
    ann = office.person()
    assert "token" in office.admin.delete(f"users/{ann.name}").refused(409).message


def test_project_with_workloads(office: Office) -> None:
    """A project with workloads stays, and the answer names them."""
    project = office.project()
    spec = {"type": "training", "image": "none"}
    office.admin.post(f"namespaces/runai-{project}/workloads", named("train-7", spec)).ok(201)
    assert "train-7" in office.admin.delete(f"projects/{project}").refused(409).message
    office.admin.get(f"projects/{project}").ok()


def test_project_without_workloads(office: Office) -> None:
    """An empty project goes; its namespace stays with what else is in it."""
    project = office.project()
    office.admin.delete(f"projects/{project}").ok()
    office.admin.get(f"projects/{project}").refused(404)
    office.admin.get(f"namespaces/runai-{project}").ok()


@pytest.mark.parametrize("path", ["nodepools/default", "departments/default"])
def test_defaults_stay(api: Api, path: str) -> None:
    """The default pool and department are always there."""
    assert "cannot be deleted" in api.delete(path).refused(409).message
    api.get(path).ok()
