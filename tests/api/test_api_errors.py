"""Every error has its HTTP status, its reason and a message of one line."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from aliquot.api import KINDS
from api.accounts import Accounts
from api.http_client import PREFIX, Api, named, unique
from api.samples import create
from support.stores.process import ServerProcess
from support.waiting import wait_until

GUARDED = ["projects", "whoami", "/metrics", "namespaces/runai/workloads/x"]


@pytest.mark.parametrize("path", GUARDED)
def test_no_token(api: Api, path: str) -> None:
    """A request without a token is refused, with a hint how to send one."""
    response = api.with_token(None).get(path).refused(401, "Unauthorized")
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert "Authorization: Bearer" in response.json["details"]["hint"]


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer ", "Basic YTpi", "Bearer x", "Bearer alq_", "Bearer alq__", "Bearer alq_admin_x",
     "Bearer alq_../../x_y", f"Bearer alq_{'a' * 3000}_x", "Bearer alq_a/b_x", "Bearer \u00e9\u00ff"],
)  # fmt: skip
def test_odd_token(api: Api, header: str) -> None:
    """A malformed token is refused."""
    api.with_token(None).request("GET", "projects", headers={"Authorization": header}).refused(401)


def test_wrong_secret(api: Api) -> None:
    """A token with the wrong secret is refused."""
    assert api.token is not None
    wrong = api.token[:-1] + ("a" if api.token[-1] != "a" else "b")
    assert "not known" in api.with_token(wrong).get("projects").refused(401).message


def test_expired_token(accounts: Accounts) -> None:
    """An expired token is refused."""
    ann = accounts.user()
    late = accounts.with_token(accounts.token(ann.name, expires="2020-01-01T00:00:00Z"))
    assert "expired" in late.get("whoami").refused(401).message


def test_disabled_user(accounts: Accounts) -> None:
    """The tokens of a disabled user are refused."""
    ann = accounts.user()
    accounts.admin.patch(f"users/{ann.name}", {"spec": {"disabled": True}}).ok()
    wait_until(lambda: ann.api.get("whoami").status == 401, "the token to be refused")
    assert "disabled" in ann.api.get("whoami").refused(401).message


def test_enabled_again(accounts: Accounts) -> None:
    """The tokens of a user who is enabled again work."""
    ann = accounts.user()
    accounts.admin.patch(f"users/{ann.name}", {"spec": {"disabled": True}}).ok()
    wait_until(lambda: ann.api.get("whoami").status == 401, "the user to be refused")
    accounts.admin.patch(f"users/{ann.name}", {"spec": {"disabled": None}}).ok()
    wait_until(lambda: ann.api.get("whoami").status == 200, "the user to be accepted")


def test_denied(accounts: Accounts) -> None:
    """A user without an access rule is denied, with a hint whom to ask."""
    ann = accounts.user()
    response = ann.api.post("projects", named(unique())).refused(403, "Forbidden")
    assert ann.name in response.message
    assert "administrator" in response.json["details"]["hint"]


@pytest.mark.parametrize("path", ["projects/nobody", "namespaces/runai/workloads/x", "nodes/x", "pods/x", "x", "/x"])
def test_not_found(api: Api, path: str) -> None:
    """An object or a path that does not exist is not found."""
    api.get(path).refused(404, "NotFound")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_write_of_nothing(api: Api, method: str) -> None:
    """An object that does not exist can be neither changed nor deleted."""
    body = named("nobody", {}, resourceVersion="1")
    api.request(method, "departments/nobody", None if method == "DELETE" else body).refused(404, "NotFound")


@pytest.mark.parametrize(
    "method, path, allowed",
    [
        ("DELETE", "projects", {"GET", "HEAD", "POST"}),
        ("POST", "projects/x", {"GET", "HEAD", "PUT", "PATCH", "DELETE"}),
        ("DELETE", "projects/x/status", {"GET", "HEAD", "PUT", "PATCH"}),
        ("POST", "workloads", {"GET", "HEAD"}),
        ("POST", "whoami", {"GET", "HEAD"}),
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("POST", "/metrics", {"GET", "HEAD"}),
    ],
)
def test_method_not_allowed(api: Api, method: str, path: str, allowed: set[str]) -> None:
    """A method that a path does not support is refused, and the Allow header lists those it does."""
    response = api.request(method, path).refused(405, "MethodNotAllowed")
    assert {word.strip() for word in response.headers["allow"].split(",")} == allowed


def test_exists(api: Api, namespace_path: str) -> None:
    """A second object of the same name is refused."""
    api.post(f"{namespace_path}/templates", named("a", {"description": "first"})).ok(201)
    api.post(f"{namespace_path}/templates", named("a", {"description": "second"})).refused(409, "AlreadyExists")
    assert api.get(f"{namespace_path}/templates/a").ok()["spec"] == {"description": "first"}


def test_conflict(api: Api, namespace_path: str) -> None:
    """A replace of an old version is refused and overwrites nothing."""
    path, created = create(api, KINDS.named("Template"), namespace_path)
    api.patch(path, {"spec": {"description": "second"}}).ok()
    api.put(path, {**created, "spec": {"description": "third"}}).refused(409, "Conflict")
    assert api.get(path).ok()["spec"] == {"description": "second"}


def test_conflict_on_delete(api: Api, namespace_path: str) -> None:
    """A delete with an old version as precondition is refused."""
    path, created = create(api, KINDS.named("Template"), namespace_path)
    api.patch(path, {"spec": {"description": "second"}}).ok()
    old = {"preconditions": {"resourceVersion": created["metadata"]["resourceVersion"]}}
    api.delete(path, old).refused(409, "Conflict")


def test_every_fault_with_its_path(api: Api) -> None:
    """One response lists every fault with its path."""
    wrong = named(unique(), {"quota": {"gpu": "many", "cpu": -1}, "priority": "x", "colour": "red"})
    response = api.post("projects", wrong).refused(400, "Invalid")
    assert response.faults.keys() == {"spec.quota.gpu", "spec.quota.cpu", "spec.priority", "spec.colour"}
    assert response.message.startswith("project: ")


@pytest.mark.parametrize("size", [2 << 20, 50_000_000])
def test_large_body(api: Api, namespace_path: str, size: int) -> None:
    """A body whose Content-Length is too large is refused before it is sent."""
    connection = api.connect()
    try:
        connection.putrequest("POST", f"{PREFIX}/{namespace_path}/templates")
        for key, value in {**api.headers, "Content-Type": "application/json", "Content-Length": str(size + 1)}.items():
            connection.putheader(key, value)
        connection.endheaders()
        assert connection.getresponse().status == 413
    finally:
        connection.close()


def test_large_body_of_unknown_length(api: Api, namespace_path: str) -> None:
    """A chunked body is refused as soon as it is too large, long before its end."""
    chunk = b" " * 65536
    connection = api.connect()
    try:
        connection.putrequest("POST", f"{PREFIX}/{namespace_path}/templates")
        for key, value in {**api.headers, "Content-Type": "application/json", "Transfer-Encoding": "chunked"}.items():
            connection.putheader(key, value)
        connection.endheaders()
        sent = 0
        while sent < 50_000_000 and not select.select([connection.sock], [], [], 0)[0]:
            connection.send(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            sent += len(chunk)
        assert connection.getresponse().status == 413
    finally:
        connection.close()
    assert sent < 50_000_000
    assert api.get(f"{namespace_path}/templates").names == []


def test_large_body_leaves_memory_alone(api: Api, api_server: ServerProcess, namespace_path: str) -> None:
    """Bodies of 50 MB do not fill the server's memory."""
    pid = api_server.pid
    before = _peak(pid)
    body = b'{"metadata": {"name": "a"}, "spec": {"description": "' + b"x" * 50_000_000 + b'"}}'
    for _ in range(2):
        try:
            assert api.request("POST", f"{namespace_path}/templates", raw=body).status == 413
        except OSError:
            api.close()  # the server closed the connection while we were sending
    assert _peak(pid) - before < 20_000


def _peak(pid: int) -> int:
    """Peak memory of the process, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def test_large_object(api: Api, namespace_path: str) -> None:
    """An object that is too large to store is refused."""
    annotations = {"note": "x" * 200_000}
    environment = [{"name": f"V{index}", "value": "x" * 100_000} for index in range(15)]
    wrong = named("a", {"values": {"environment": environment}}, annotations=annotations)
    response = api.post(f"{namespace_path}/templates", wrong)
    assert response.status == 413
    response.refused(413, "RequestEntityTooLarge")
    assert api.get(f"{namespace_path}/templates").names == []


def test_no_insides(api: Api) -> None:
    """An error message reveals nothing about our code."""
    response = api.post("projects", named("UPPER"))
    assert b"Traceback" not in response.raw
    assert b".py" not in response.raw
