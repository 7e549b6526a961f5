"""References by name: a named object must exist, and cannot be deleted while it is named."""

from __future__ import annotations

import pytest

from api.accounts import Accounts
from api.http_client import Api, named, unique


def test_department_must_exist(api: Api) -> None:
    """A project cannot be in a department that does not exist."""
    name = unique()
    response = api.post("projects", named(name, {"department": "nowhere"})).refused(400)
    assert "'nowhere' does not exist" in response.faults["spec.department"]
    assert response.json["details"]["hint"] == "create it first"


def test_user_of_a_token_must_exist(api: Api) -> None:
    """A token needs a user that exists."""
    response = api.post("tokens", named(unique(), {"user": "nobody-there"})).refused(400)
    assert "spec.user" in response.faults


def test_department_in_use(api: Api) -> None:
    """A department with projects cannot be deleted, and the message names them."""
    department, project = unique("dept"), unique("proj")
    api.post("departments", named(department)).ok(201)
    api.post("projects", named(project, {"department": department})).ok(201)
    assert project in api.delete(f"departments/{department}").refused(409, "Conflict").message
    api.get(f"departments/{department}").ok()


def test_department_no_longer_in_use(api: Api) -> None:
    """A department without projects can be deleted."""
    department, project = unique("dept"), unique("proj")
    api.post("departments", named(department)).ok(201)
    api.post("projects", named(project, {"department": department})).ok(201)
    api.patch(f"projects/{project}", {"spec": {"department": None}}).ok()
    api.delete(f"departments/{department}").ok()


def test_many_users_are_counted(api: Api) -> None:
    """The message names a few of many referring objects and counts the rest."""
    department = unique("dept")
    api.post("departments", named(department)).ok(201)
    for _ in range(7):
        api.post("projects", named(unique("proj"), {"department": department})).ok(201)
    assert "and 2 more" in api.delete(f"departments/{department}").refused(409).message


@pytest.mark.parametrize("kind", ["projects", "departments"])
def test_pool_in_use(api: Api, kind: str) -> None:
    """A node pool with quotas cannot be deleted."""
    pool, owner = unique("pool"), unique("owner")
    api.post("nodepools", named(pool, {"labelKey": "k", "labelValue": pool})).ok(201)
    api.post(kind, named(owner, {"pools": {pool: {"quota": {"gpu": 1}}}})).ok(201)
    assert owner in api.delete(f"nodepools/{pool}").refused(409).message


def test_pool_of_a_policy(api: Api) -> None:
    """A node pool that a scheduling policy names cannot be deleted."""
    pool, policy = unique("pool"), unique("policy")
    api.post("nodepools", named(pool, {"labelKey": "k", "labelValue": pool})).ok(201)
    api.post("schedulingpolicies", named(policy, {"pools": [pool]})).ok(201)
    assert policy in api.delete(f"nodepools/{pool}").refused(409).message
    api.delete(f"schedulingpolicies/{policy}").ok()


def test_user_with_tokens(accounts: Accounts) -> None:
    """A user with tokens cannot be deleted."""
    ann = accounts.user()
    assert "token" in accounts.admin.delete(f"users/{ann.name}").refused(409).message


def test_project_with_workloads(accounts: Accounts) -> None:
    """A project with workloads cannot be deleted, and the message names them."""
    project = accounts.project()
    spec = {"type": "training", "image": "none"}
    accounts.admin.post(f"namespaces/runai-{project}/workloads", named("train-7", spec)).ok(201)
    assert "train-7" in accounts.admin.delete(f"projects/{project}").refused(409).message
    accounts.admin.get(f"projects/{project}").ok()


def test_project_without_workloads(accounts: Accounts) -> None:
    """A project without workloads can be deleted; its namespace stays."""
    project = accounts.project()
    accounts.admin.delete(f"projects/{project}").ok()
    accounts.admin.get(f"projects/{project}").refused(404)
    accounts.admin.get(f"namespaces/runai-{project}").ok()


@pytest.mark.parametrize("path", ["nodepools/default", "departments/default"])
def test_defaults_cannot_be_deleted(api: Api, path: str) -> None:
    """The default node pool and department cannot be deleted."""
    assert "cannot be deleted" in api.delete(path).refused(409).message
    api.get(path).ok()
