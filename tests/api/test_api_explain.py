"""The HTTP routes of explanations: without a scheduler, and for callers with limited permissions."""

from __future__ import annotations

from api.people import CLUSTER, Office, space
from api.wire import Api, named

WORK = {"type": "training", "image": "none"}


def test_no_scheduler(office: Office) -> None:
    """A server without a scheduler answers 404 and says so."""
    project = office.project()
    office.admin.post(f"{space(project)}/workloads", named("w", WORK)).ok(201)
    for path in (f"{space(project)}/workloads/w/explanation", "scenario"):
        error = office.admin.get(path).refused(404, "NotFound")
        assert error.message == "no scheduler runs in this process"


def test_another_teams_job(office: Office) -> None:
    """A caller learns nothing about jobs of another project, not even whether they exist."""
    mine, theirs = office.project(), office.project()
    ann = office.member(mine)
    office.admin.post(f"{space(theirs)}/workloads", named("w", WORK)).ok(201)
    there = ann.api.get(f"{space(theirs)}/workloads/w/explanation").refused(403)
    gone = ann.api.get(f"{space(theirs)}/workloads/x/explanation").refused(403)
    assert there.message == gone.message


def test_unknown_job(office: Office) -> None:
    """A job that does not exist is not found."""
    project = office.project()
    office.admin.get(f"{space(project)}/workloads/x/explanation").refused(404, "NotFound")


def test_whole_cluster(office: Office) -> None:
    """Only callers who may see everything get the scenario: no member, and no viewer who may not see policies."""
    ann = office.member(office.project())
    ann.api.get("scenario").refused(403)
    viewer = office.grant(office.person("bob"), "viewer", CLUSTER)
    viewer.api.get("scenario").refused(403)


def test_no_token(api: Api) -> None:
    """A request without a token is refused."""
    stranger = api.bearing(None)
    stranger.get("scenario").refused(401)
    stranger.get("namespaces/default/workloads/x/explanation").refused(401)


def test_bad_flag(office: Office) -> None:
    """An invalid parameter is refused, and the error names it."""
    project = office.project()
    error = office.admin.get(f"{space(project)}/workloads/x/explanation", whatIf="maybe").refused(400)
    assert error.faults == {"whatIf": "must be true or false, not 'maybe'"}
