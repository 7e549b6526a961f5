"""Watches: one JSON line for each change after a version."""

from __future__ import annotations

import json
import threading

from api.accounts import Accounts
from api.http_client import Api, named, unique
from support.stores.process import ServerProcess
from support.waiting import wait_until


def test_every_change(api: Api, namespace_path: str) -> None:
    """Create, update and delete arrive in order."""
    path = f"{namespace_path}/templates"
    with api.watch(path) as stream:
        api.post(path, named("a", {"description": "first"})).ok(201)
        api.patch(f"{path}/a", {"spec": {"description": "second"}}).ok()
        api.delete(f"{path}/a").ok()
        assert stream.names(3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_object_is_whole(api: Api, namespace_path: str) -> None:
    """The object of an event equals the one that a read returns."""
    path = f"{namespace_path}/templates"
    with api.watch(path) as stream:
        api.post(path, named("a", {"description": "first"})).ok(201)
        assert stream.next()["object"] == api.get(f"{path}/a").ok()


def test_core_kind(api: Api, namespace_path: str) -> None:
    """Kubernetes' own kinds can be watched too."""
    path = f"{namespace_path}/services"
    with api.watch(path) as stream:
        api.post(path, named("a", {"ports": [{"port": 80}]})).ok(201)
        assert stream.names(1) == [("ADDED", "a")]


def test_from_a_version(api: Api, namespace_path: str) -> None:
    """A watch begins with the changes since its version."""
    path = f"{namespace_path}/templates"
    before = api.get(path).version
    api.post(path, named("a")).ok(201)
    api.post(path, named("b")).ok(201)
    with api.watch(path, before) as stream:
        assert stream.names(2) == [("ADDED", "a"), ("ADDED", "b")]


def test_goes_on_from_an_event(api: Api, namespace_path: str) -> None:
    """A watch can resume from the version of the last object."""
    path = f"{namespace_path}/templates"
    first = api.post(path, named("a")).ok(201)
    api.post(path, named("b")).ok(201)
    with api.watch(path, first["metadata"]["resourceVersion"]) as stream:
        assert stream.names(1) == [("ADDED", "b")]


def test_all_namespaces(api: Api, namespace_path: str) -> None:
    """Without a namespace in the path a watch spans all namespaces."""
    own = named("a", labels={"test": namespace_path.rpartition("/")[2]})
    with api.watch("templates", labelSelector=f"test={namespace_path.rpartition('/')[2]}") as stream:
        api.post(f"{namespace_path}/templates", own).ok(201)
        assert stream.names(1) == [("ADDED", "a")]


def test_selected_by_label(api: Api, namespace_path: str) -> None:
    """An object that starts or stops matching a label selector is added or deleted."""
    path = f"{namespace_path}/templates"
    with api.watch(path, labelSelector="team=a") as stream:
        api.post(path, named("a", labels={"team": "b"})).ok(201)
        api.patch(f"{path}/a", {"metadata": {"labels": {"team": "a"}}}).ok()
        api.patch(f"{path}/a", {"metadata": {"labels": {"team": "c"}}}).ok()
        assert stream.names(2) == [("ADDED", "a"), ("DELETED", "a")]


def test_selected_by_field(api: Api, namespace_path: str) -> None:
    """A watch of one object by name does not see others."""
    path = f"{namespace_path}/templates"
    with api.watch(path, fieldSelector="metadata.name=b") as stream:
        api.post(path, named("a")).ok(201)
        api.post(path, named("b")).ok(201)
        assert stream.names(1) == [("ADDED", "b")]


def test_timeout(api: Api, namespace_path: str) -> None:
    """A watch ends after its timeout, without an error."""
    with api.watch(f"{namespace_path}/templates", timeoutSeconds="1") as stream:
        assert stream.line() == b""


def test_needs_a_version(api: Api, namespace_path: str) -> None:
    """A watch without a version is refused, with a hint where to get one."""
    response = api.get(f"{namespace_path}/templates", watch="true").refused(400)
    assert "resourceVersion" in response.faults
    assert "list first" in response.json["details"]["hint"]


def test_bad_seconds(api: Api, namespace_path: str) -> None:
    """A timeout that is not a number of seconds is refused."""
    for text in ("soon", "-1", "1.5", "²", "9" * 30):
        response = api.get(f"{namespace_path}/templates", watch="true", resourceVersion="1", timeoutSeconds=text)
        assert "timeoutSeconds" in response.refused(400).faults


def test_version_too_old(api: Api, namespace_path: str, out_of_reach: str) -> None:
    """A version that is too old gives an error event with code 410, so that the client lists again."""
    with api.watch(f"{namespace_path}/templates", out_of_reach) as stream:
        event = stream.next()
        assert stream.line() == b""
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")


def test_malformed_version(api: Api, namespace_path: str) -> None:
    """A malformed version gives an error event."""
    with api.watch(f"{namespace_path}/templates", "yesterday") as stream:
        event = stream.next()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 400)


def test_server_stops(own_server: ServerProcess) -> None:
    """When the server stops, its watches end at once and without errors."""
    api = Api(own_server.url, own_server.token)
    with api.watch("templates") as stream:
        api.post("namespaces/runai/templates", named(unique())).ok(201)
        assert stream.next()["type"] == "ADDED"
        api.close()
        ended = threading.Thread(target=own_server.stop)
        ended.start()
        while stream.line():
            pass
        ended.join()
    assert "Traceback" not in own_server.log


def test_deleted_rule_ends_the_stream(accounts: Accounts) -> None:
    """A watch ends when the access rule that allowed it is deleted."""
    project = accounts.project()
    ann = accounts.user()
    rule = accounts.rule("l1-researcher", {"kind": "project", "name": project}, user=ann.name)
    path = f"namespaces/runai-{project}/templates"
    wait_until(lambda: ann.api.get(path).status == 200, "the role to allow the list")
    with ann.api.watch(path) as stream:
        accounts.admin.post(path, named("before")).ok(201)
        assert stream.names(1) == [("ADDED", "before")]
        accounts.admin.delete(f"accessrules/{rule}").ok()
        wait_until(lambda: ann.api.get(path).status == 403, "the role to be revoked")
        accounts.admin.post(path, named("after")).ok(201)
        event = stream.next()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 403)


def test_deleted_token_ends_the_stream(accounts: Accounts, namespace_path: str) -> None:
    """A watch ends when its token is deleted."""
    name = unique("short")
    token = accounts.admin.post("tokens", named(name, {"user": "admin"})).ok(201)["token"]
    with accounts.with_token(token).watch(f"{namespace_path}/templates") as stream:
        accounts.admin.delete(f"tokens/{name}").ok()
        accounts.admin.post(f"{namespace_path}/templates", named("after")).ok(201)
        event = stream.next()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 401)


def test_form_of_a_line(api: Api, namespace_path: str) -> None:
    """Each event is one line of JSON with a type and an object."""
    path = f"{namespace_path}/templates"
    with api.watch(path) as stream:
        api.post(path, named("a", {"description": "two\nlines"})).ok(201)
        line = stream.line()
    assert line.endswith(b"\n")
    assert json.loads(line).keys() == {"type", "object"}
