"""The HTTP routes of explanations: without a scheduler, and for callers with limited permissions."""

from __future__ import annotations

from api.accounts import CLUSTER, Accounts, project_path
from api.http_client import Api, named

WORK = {"type": "training", "image": "none"}


def test_no_scheduler(accounts: Accounts) -> None:
    """A server without a scheduler answers 404 and says so."""
    project = accounts.project()
    accounts.admin.post(f"{project_path(project)}/workloads", named("w", WORK)).ok(201)
    for path in (f"{project_path(project)}/workloads/w/explanation", "scenario"):
        error = accounts.admin.get(path).refused(404, "NotFound")
        assert error.message == "no scheduler runs in this process"


def test_another_teams_job(accounts: Accounts) -> None:
    """A caller learns nothing about jobs of another project, not even whether they exist."""
    own, other = accounts.project(), accounts.project()
    ann = accounts.member(own)
    accounts.admin.post(f"{project_path(other)}/workloads", named("w", WORK)).ok(201)
    there = ann.api.get(f"{project_path(other)}/workloads/w/explanation").refused(403)
    gone = ann.api.get(f"{project_path(other)}/workloads/x/explanation").refused(403)
    assert there.message == gone.message


def test_unknown_job(accounts: Accounts) -> None:
    """A job that does not exist is not found."""
    project = accounts.project()
    accounts.admin.get(f"{project_path(project)}/workloads/x/explanation").refused(404, "NotFound")


def test_whole_cluster(accounts: Accounts) -> None:
    """Only callers who may see everything get the scenario: no member, and no viewer who may not see policies."""
    ann = accounts.member(accounts.project())
    ann.api.get("scenario").refused(403)
    viewer = accounts.grant(accounts.user("bob"), "viewer", CLUSTER)
    viewer.api.get("scenario").refused(403)


def test_no_token(api: Api) -> None:
    """A request without a token is refused."""
    stranger = api.with_token(None)
    stranger.get("scenario").refused(401)
    stranger.get("namespaces/default/workloads/x/explanation").refused(401)


def test_bad_flag(accounts: Accounts) -> None:
    """An invalid parameter is refused, and the error names it."""
    project = accounts.project()
    error = accounts.admin.get(f"{project_path(project)}/workloads/x/explanation", whatIf="maybe").refused(400)
    assert error.faults == {"whatIf": "must be true or false, not 'maybe'"}
