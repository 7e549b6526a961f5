"""Where no scheduler runs, nobody can say why a job waits; and nobody learns what he may not see."""

from __future__ import annotations

from api.people import CLUSTER, Office, space
from api.wire import Api, named

WORK = {"type": "training", "image": "none"}


def test_no_scheduler(office: Office) -> None:
    """A server that schedules nothing says so."""
    project = office.project()
    office.admin.post(f"{space(project)}/workloads", named("w", WORK)).ok(201)
    for path in (f"{space(project)}/workloads/w/explanation", "scenario"):
        said = office.admin.get(path).refused(404, "NotFound")
        assert said.message == "no scheduler runs in this process"


def test_another_teams_job(office: Office) -> None:
    """Of a job of another project one learns nothing, not even whether it exists."""
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
    """The scenario is for those who may see everything: not for a member, and not for one who sees all but policies."""
    ann = office.member(office.project())
    ann.api.get("scenario").refused(403)
    viewer = office.grant(office.person("bob"), "viewer", CLUSTER)
    viewer.api.get("scenario").refused(403)


def test_no_token(api: Api) -> None:
    """Without a token there is no answer."""
    stranger = api.bearing(None)
    stranger.get("scenario").refused(401)
    stranger.get("namespaces/default/workloads/x/explanation").refused(401)


def test_bad_flag(office: Office) -> None:
    """A question that cannot be read is refused with its field."""
    project = office.project()
    said = office.admin.get(f"{space(project)}/workloads/x/explanation", whatIf="maybe").refused(400)
    assert said.faults == {"whatIf": "must be true or false, not 'maybe'"}
