"""Kubeconfig requests to a server without Kubernetes are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.accounts import Accounts
from api.http_client import Api, unique
from support.stores.process import ServerProcess


@pytest.fixture
def plain(server: ServerProcess) -> Iterator[Accounts]:
    admin = Api(server.url, server.token)
    yield Accounts(admin)
    admin.close()


def test_no_kubernetes(plain: Accounts) -> None:
    """Without Kubernetes the message says so, and the hint says what to do instead."""
    project = plain.project()
    refused = plain.admin.post(f"projects/{project}/kubeconfig", {"user": "admin"}).refused(400, "Invalid")
    assert refused.message == "there is no Kubernetes here, so no kubeconfig"
    assert "aliquot token create" in refused.json["details"]["hint"]


def test_denied_without_permission_to_manage_access(plain: Accounts) -> None:
    """A member gets the same error whether or not the project exists, before the body is checked."""
    project = plain.project()
    member = plain.member(project, "editor")
    for name in (project, unique("none")):
        member.api.post(f"projects/{name}/kubeconfig", {"wrong": 1}).refused(403, "Forbidden")
    plain.with_token(None).post(f"projects/{project}/kubeconfig", {"user": "ann"}).refused(401)


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
def test_every_fault_is_listed_with_its_path(plain: Accounts, sent: dict[str, object], faults: dict[str, str]) -> None:
    """Every fault of the request is listed with its path."""
    project = plain.project()
    assert plain.admin.post(f"projects/{project}/kubeconfig", sent).refused(400).faults == faults
