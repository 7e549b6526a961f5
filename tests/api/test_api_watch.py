"""A watch: one JSON line for each change, from a version on."""

from __future__ import annotations

import json
import threading

from api.people import Office
from api.wire import Api, named, unique, until
from support.stores.process import ServerProcess


def test_every_change(api: Api, here: str) -> None:
    """Creating, changing and deleting are seen in order."""
    path = f"{here}/templates"
    with api.watch(path) as stream:
        api.post(path, named("a", {"description": "first"})).ok(201)
        api.patch(f"{path}/a", {"spec": {"description": "second"}}).ok()
        api.delete(f"{path}/a").ok()
        assert stream.names(3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_object_is_whole(api: Api, here: str) -> None:
    """An event carries the object as a read would show it."""
    path = f"{here}/templates"
    with api.watch(path) as stream:
        api.post(path, named("a", {"description": "first"})).ok(201)
        assert stream.next()["object"] == api.get(f"{path}/a").ok()


def test_core_kind(api: Api, here: str) -> None:
    """Kinds of Kubernetes are watched like ours."""
    path = f"{here}/services"
    with api.watch(path) as stream:
        api.post(path, named("a", {"ports": [{"port": 80}]})).ok(201)
        assert stream.names(1) == [("ADDED", "a")]


def test_from_a_version(api: Api, here: str) -> None:
    """Changes since the version come first."""
    path = f"{here}/templates"
    before = api.get(path).version
    api.post(path, named("a")).ok(201)
    api.post(path, named("b")).ok(201)
    with api.watch(path, before) as stream:
        assert stream.names(2) == [("ADDED", "a"), ("ADDED", "b")]


def test_goes_on_from_an_event(api: Api, here: str) -> None:
    """A reader that lost its stream goes on from the last object it saw."""
    path = f"{here}/templates"
    first = api.post(path, named("a")).ok(201)
    api.post(path, named("b")).ok(201)
    with api.watch(path, first["metadata"]["resourceVersion"]) as stream:
        assert stream.names(1) == [("ADDED", "b")]


def test_all_namespaces(api: Api, here: str) -> None:
    """Without a namespace in the address a watch spans all of them."""
    mine = named("a", labels={"test": here.rpartition("/")[2]})
    with api.watch("templates", labelSelector=f"test={here.rpartition('/')[2]}") as stream:
        api.post(f"{here}/templates", mine).ok(201)
        assert stream.names(1) == [("ADDED", "a")]


def test_selected_by_label(api: Api, here: str) -> None:
    """An object enters and leaves a selection by its labels."""
    path = f"{here}/templates"
    with api.watch(path, labelSelector="team=a") as stream:
        api.post(path, named("a", labels={"team": "b"})).ok(201)
        api.patch(f"{path}/a", {"metadata": {"labels": {"team": "a"}}}).ok()
        api.patch(f"{path}/a", {"metadata": {"labels": {"team": "c"}}}).ok()
        assert stream.names(2) == [("ADDED", "a"), ("DELETED", "a")]


def test_selected_by_field(api: Api, here: str) -> None:
    """A watch of one object by its name sees nothing of the others."""
    path = f"{here}/templates"
    with api.watch(path, fieldSelector="metadata.name=b") as stream:
        api.post(path, named("a")).ok(201)
        api.post(path, named("b")).ok(201)
        assert stream.names(1) == [("ADDED", "b")]


def test_ends_in_time(api: Api, here: str) -> None:
    """A watch lasts no longer than was asked for, and ends without an error."""
    with api.watch(f"{here}/templates", timeoutSeconds="1") as stream:
        assert stream.line() == b""


def test_needs_a_version(api: Api, here: str) -> None:
    """A watch from nowhere is refused, and the hint says where to get a version."""
    answer = api.get(f"{here}/templates", watch="true").refused(400)
    assert "resourceVersion" in answer.faults
    assert "list first" in answer.json["details"]["hint"]


def test_bad_seconds(api: Api, here: str) -> None:
    """A length that is no number of seconds is refused, however odd its digits."""
    for text in ("soon", "-1", "1.5", "²", "9" * 30):
        answer = api.get(f"{here}/templates", watch="true", resourceVersion="1", timeoutSeconds=text)
        assert "timeoutSeconds" in answer.refused(400).faults


def test_version_out_of_reach(api: Api, here: str, out_of_reach: str) -> None:
    """A version that cannot be watched from any more is said as an event: list again."""
    with api.watch(f"{here}/templates", out_of_reach) as stream:
        event = stream.next()
        assert stream.line() == b""
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")


def test_version_of_nobody(api: Api, here: str) -> None:
    """A version that no list gave is said as an event too."""
    with api.watch(f"{here}/templates", "yesterday") as stream:
        event = stream.next()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 400)


def test_server_stops(own_server: ServerProcess) -> None:
    """When the server stops its watches end at once and cleanly, and so does the server."""
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


def test_rights_end_the_stream(office: Office) -> None:
    """A watch does not outlive the rule that allowed it."""
    project = office.project()
    ann = office.person()
    rule = office.rule("l1-researcher", {"kind": "project", "name": project}, user=ann.name)
    path = f"namespaces/runai-{project}/templates"
    until(lambda: ann.api.get(path).status == 200)
    with ann.api.watch(path) as stream:
        office.admin.post(path, named("before")).ok(201)
        assert stream.names(1) == [("ADDED", "before")]
        office.admin.delete(f"accessrules/{rule}").ok()
        until(lambda: ann.api.get(path).status == 403)
        office.admin.post(path, named("after")).ok(201)
        event = stream.next()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 403)


def test_deleted_token_ends_the_stream(office: Office, here: str) -> None:
    """A watch does not outlive its token."""
    name = unique("short")
    token = office.admin.post("tokens", named(name, {"user": "admin"})).ok(201)["token"]
    with office.bearing(token).watch(f"{here}/templates") as stream:
        office.admin.delete(f"tokens/{name}").ok()
        office.admin.post(f"{here}/templates", named("after")).ok(201)
        event = stream.next()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 401)


def test_form_of_a_line(api: Api, here: str) -> None:
    """Each event is one line of JSON with exactly a type and an object."""
    path = f"{here}/templates"
    with api.watch(path) as stream:
        api.post(path, named("a", {"description": "two\nlines"})).ok(201)
        line = stream.line()
    assert line.endswith(b"\n")
    assert json.loads(line).keys() == {"type", "object"}
