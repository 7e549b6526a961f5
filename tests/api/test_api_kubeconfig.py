"""Access to Kubernetes, asked of a server on one machine: refused, and in which order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.people import Office
from api.wire import Api, unique
from support.stores.process import ServerProcess


@pytest.fixture
def plain(server: ServerProcess) -> Iterator[Office]:
    admin = Api(server.url, server.token)
    yield Office(admin)
    admin.close()


def test_there_is_no_kubernetes_here(plain: Office) -> None:
    """One machine has none: the answer says so, and what to do instead."""
    project = plain.project()
    refused = plain.admin.post(f"projects/{project}/kubeconfig", {"user": "admin"}).refused(400, "Invalid")
    assert refused.message == "there is no Kubernetes here, so no kubeconfig"
    assert "aliquot token create" in refused.json["details"]["hint"]


def test_who_may_not_manage_access_learns_nothing(plain: Office) -> None:
    """A member is refused alike whether the project is there or not, and before the rest is looked at."""
    project = plain.project()
    member = plain.member(project, "editor")
    for name in (project, unique("none")):
        member.api.post(f"projects/{name}/kubeconfig", {"wrong": 1}).refused(403, "Forbidden")
    plain.bearing(None).post(f"projects/{project}/kubeconfig", {"user": "ann"}).refused(401)


@pytest.mark.parametrize(
    "sent,faults",
    [
        ({}, {"user": "is required, as text"}),
        ({"user": 7}, {"user": "is required, as text"}),
        ({"user": "ann", "duration": "1s"}, {"duration": "must be from 10m to 365d"}),
        ({"user": "ann", "duration": [1]}, {"duration": "must be a duration such as 30s, 5m, 2h or 1d, not [1]"}),
        ({"user": "ann", "role": "editor"}, {"role": "is not known here"}),
    ],
)
def test_every_fault_is_told_with_its_path(plain: Office, sent: dict[str, object], faults: dict[str, str]) -> None:
    """As for every other input."""
    project = plain.project()
    assert plain.admin.post(f"projects/{project}/kubeconfig", sent).refused(400).faults == faults
