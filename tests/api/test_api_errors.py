"""Every refusal has its HTTP status, its reason word, and one line that a person understands."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from aliquot.api import KINDS
from api.people import Office
from api.samples import create
from api.wire import PREFIX, Api, named, unique, until
from support.stores.process import ServerProcess

GUARDED = ["projects", "whoami", "/metrics", "namespaces/runai/workloads/x"]


@pytest.mark.parametrize("path", GUARDED)
def test_no_token(api: Api, path: str) -> None:
    """Nothing is shown to those who do not say who they are."""
    answer = api.bearing(None).get(path).refused(401, "Unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "Authorization: Bearer" in answer.json["details"]["hint"]


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer ", "Basic YTpi", "Bearer x", "Bearer alq_", "Bearer alq__", "Bearer alq_admin_x",
     "Bearer alq_../../x_y", f"Bearer alq_{'a' * 3000}_x", "Bearer alq_a/b_x", "Bearer \u00e9\u00ff"],
)  # fmt: skip
def test_odd_token(api: Api, header: str) -> None:
    """What is no token of ours is refused, whatever it looks like."""
    api.bearing(None).ask("GET", "projects", headers={"Authorization": header}).refused(401)


def test_wrong_secret(api: Api) -> None:
    """The name of a token without its secret is worth nothing."""
    assert api.token is not None
    wrong = api.token[:-1] + ("a" if api.token[-1] != "a" else "b")
    assert "not known" in api.bearing(wrong).get("projects").refused(401).message


def test_expired_token(office: Office) -> None:
    """A token stops working at its time."""
    ann = office.person()
    late = office.bearing(office.token(ann.name, expires="2020-01-01T00:00:00Z"))
    assert "expired" in late.get("whoami").refused(401).message


def test_disabled_user(office: Office) -> None:
    """Who is disabled is locked out with every token."""
    ann = office.person()
    office.admin.patch(f"users/{ann.name}", {"spec": {"disabled": True}}).ok()
    until(lambda: ann.api.get("whoami").status == 401)
    assert "disabled" in ann.api.get("whoami").refused(401).message


def test_enabled_again(office: Office) -> None:
    """Who is enabled again comes in with the same token."""
    ann = office.person()
    office.admin.patch(f"users/{ann.name}", {"spec": {"disabled": True}}).ok()
    until(lambda: ann.api.get("whoami").status == 401)
    office.admin.patch(f"users/{ann.name}", {"spec": {"disabled": None}}).ok()
    until(lambda: ann.api.get("whoami").status == 200)


def test_denied(office: Office) -> None:
    """Who has no rule may do nothing, and is told whom to ask."""
    ann = office.person()
    answer = ann.api.post("projects", named(unique())).refused(403, "Forbidden")
    assert ann.name in answer.message
    assert "administrator" in answer.json["details"]["hint"]


@pytest.mark.parametrize("path", ["projects/nobody", "namespaces/runai/workloads/x", "nodes/x", "pods/x", "x", "/x"])
def test_not_found(api: Api, path: str) -> None:
    """What is not there is not there, be it an object or an address."""
    api.get(path).refused(404, "NotFound")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_write_of_nothing(api: Api, method: str) -> None:
    """What does not exist can be neither changed nor deleted."""
    body = named("nobody", {}, resourceVersion="1")
    api.ask(method, "departments/nobody", None if method == "DELETE" else body).refused(404, "NotFound")


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
    """A verb that an address does not have is refused, and the answer names those it has."""
    answer = api.ask(method, path).refused(405, "MethodNotAllowed")
    assert {word.strip() for word in answer.headers["allow"].split(",")} == allowed


def test_exists(api: Api, here: str) -> None:
    """A name is given once."""
    api.post(f"{here}/templates", named("a", {"description": "first"})).ok(201)
    api.post(f"{here}/templates", named("a", {"description": "second"})).refused(409, "AlreadyExists")
    assert api.get(f"{here}/templates/a").ok()["spec"] == {"description": "first"}


def test_conflict(api: Api, here: str) -> None:
    """Who decided from an old version is refused and nothing is overwritten."""
    path, made = create(api, KINDS.named("Template"), here)
    api.patch(path, {"spec": {"description": "second"}}).ok()
    api.put(path, {**made, "spec": {"description": "third"}}).refused(409, "Conflict")
    assert api.get(path).ok()["spec"] == {"description": "second"}


def test_conflict_on_delete(api: Api, here: str) -> None:
    """A delete tied to an old version is refused."""
    path, made = create(api, KINDS.named("Template"), here)
    api.patch(path, {"spec": {"description": "second"}}).ok()
    old = {"preconditions": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    api.delete(path, old).refused(409, "Conflict")


def test_every_fault_with_its_path(api: Api) -> None:
    """All that is wrong is said at once, each with its place."""
    wrong = named(unique(), {"quota": {"gpu": "many", "cpu": -1}, "priority": "x", "colour": "red"})
    answer = api.post("projects", wrong).refused(400, "Invalid")
    assert answer.faults.keys() == {"spec.quota.gpu", "spec.quota.cpu", "spec.priority", "spec.colour"}
    assert answer.message.startswith("project: ")


@pytest.mark.parametrize("size", [2 << 20, 50_000_000])
def test_large_body(api: Api, here: str, size: int) -> None:
    """A body that says it is too large is refused before it is sent."""
    connection = api.connect()
    try:
        connection.putrequest("POST", f"{PREFIX}/{here}/templates")
        for key, value in {**api.headers, "Content-Type": "application/json", "Content-Length": str(size + 1)}.items():
            connection.putheader(key, value)
        connection.endheaders()
        assert connection.getresponse().status == 413
    finally:
        connection.close()


def test_large_body_of_unknown_length(api: Api, here: str) -> None:
    """A body that does not say how large it is is answered as soon as it is too large, long before its end."""
    piece = b" " * 65536
    connection = api.connect()
    try:
        connection.putrequest("POST", f"{PREFIX}/{here}/templates")
        for key, value in {**api.headers, "Content-Type": "application/json", "Transfer-Encoding": "chunked"}.items():
            connection.putheader(key, value)
        connection.endheaders()
        sent = 0
        while sent < 50_000_000 and not select.select([connection.sock], [], [], 0)[0]:
            connection.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            sent += len(piece)
        assert connection.getresponse().status == 413
    finally:
        connection.close()
    assert sent < 50_000_000
    assert api.get(f"{here}/templates").names == []


def test_large_body_leaves_memory_alone(api: Api, api_server: ServerProcess, here: str) -> None:
    """Bodies of 50 MB do not fill the server's memory."""
    pid = api_server.pid
    before = _peak(pid)
    body = b'{"metadata": {"name": "a"}, "spec": {"description": "' + b"x" * 50_000_000 + b'"}}'
    for _ in range(2):
        try:
            assert api.ask("POST", f"{here}/templates", raw=body).status == 413
        except OSError:
            api.close()  # it hung up while we were still sending
    assert _peak(pid) - before < 20_000


def _peak(pid: int) -> int:
    """The most memory the process ever had, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def test_large_object(api: Api, here: str) -> None:
    """An object that is too large to keep is refused with the limit."""
    notes = {"note": "x" * 200_000}
    environment = [{"name": f"V{index}", "value": "x" * 100_000} for index in range(15)]
    wrong = named("a", {"values": {"environment": environment}}, annotations=notes)
    answer = api.post(f"{here}/templates", wrong)
    assert answer.status == 413
    answer.refused(413, "RequestEntityTooLarge")
    assert api.get(f"{here}/templates").names == []


def test_no_insides(api: Api) -> None:
    """A refusal tells nothing of our code."""
    answer = api.post("projects", named("UPPER"))
    assert b"Traceback" not in answer.raw
    assert b".py" not in answer.raw
