"""Create, read, list, replace, patch and delete, for every kind of object, on both stores."""

from __future__ import annotations

import pytest

from aliquot.api import KINDS
from api.http_client import Api, Json
from api.samples import EVERY_KIND, STATUSES, create, path_of, sample
from support.waiting import wait_until

every_kind = pytest.mark.parametrize("kind", EVERY_KIND)


@every_kind
def test_create(api: Api, namespace_path: str, kind: str) -> None:
    """The response to a create has uid, version and creation time."""
    _, created = create(api, KINDS.named(kind), namespace_path)
    assert (created["kind"], created["apiVersion"]) == (kind, KINDS.named(kind).api_version)
    assert {"uid", "resourceVersion", "creationTimestamp"} <= created["metadata"].keys()


@every_kind
def test_get(api: Api, namespace_path: str, kind: str) -> None:
    """A created object can be read."""
    path, created = create(api, KINDS.named(kind), namespace_path)
    assert api.get(path).ok()["metadata"]["uid"] == created["metadata"]["uid"]


@every_kind
def test_list(api: Api, namespace_path: str, kind: str) -> None:
    """A list has the object, and its own kind and version."""
    wanted = KINDS.named(kind)
    path, created = create(api, wanted, namespace_path)
    listed = api.get(path.rpartition("/")[0])
    assert listed.ok()["kind"] == f"{kind}List"
    assert listed.version
    assert created["metadata"]["name"] in listed.names


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS if kind.namespaced])
def test_list_everywhere(api: Api, namespace_path: str, kind: str) -> None:
    """Without a namespace in the path a list spans all namespaces."""
    wanted = KINDS.named(kind)
    _, created = create(api, wanted, namespace_path)
    namespaces = {
        item["metadata"]["uid"]: item["metadata"]["namespace"] for item in api.get(wanted.plural).ok()["items"]
    }
    assert namespaces[created["metadata"]["uid"]] == namespace_path.rpartition("/")[2]


@every_kind
def test_replace(api: Api, namespace_path: str, kind: str) -> None:
    """Replacing an object that was read and changed gives a new version with the change."""
    path, created = create(api, KINDS.named(kind), namespace_path)
    created.pop("token", None)
    # Controllers of Kubernetes change some objects right after their creation, so read the object again.
    after = wait_until(lambda: _labelled(api, path), "a write without a conflict")
    assert after["metadata"]["labels"]["team"] == "a"
    assert after["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]


def _labelled(api: Api, path: str) -> Json | None:
    seen = api.get(path).ok()
    seen["metadata"]["labels"] = {**seen["metadata"].get("labels", {}), "team": "a"}
    response = api.put(path, seen)
    return None if response.status == 409 else response.ok()


@every_kind
def test_patch(api: Api, namespace_path: str, kind: str) -> None:
    """A patch changes only the fields that it has."""
    path, created = create(api, KINDS.named(kind), namespace_path)
    after = api.patch(path, {"metadata": {"annotations": {"note": "x y"}}}).ok()
    assert after["metadata"]["annotations"]["note"] == "x y"
    if "image" in created.get("spec", {}):
        assert after["spec"]["image"] == created["spec"]["image"]


@every_kind
def test_delete(api: Api, namespace_path: str, kind: str) -> None:
    """A deleted object is gone, or has a deletion timestamp."""
    path, _ = create(api, KINDS.named(kind), namespace_path)
    response = api.delete(path)
    assert response.status in (200, 202)
    left = api.get(path)
    assert left.status == 404 or "deletionTimestamp" in left.ok()["metadata"]


@pytest.mark.parametrize("kind", list(STATUSES))
def test_status_is_written_separately(api: Api, namespace_path: str, kind: str) -> None:
    """Writing the status does not change the spec."""
    path, created = create(api, KINDS.named(kind), namespace_path)
    other = {"createdBy": "other"} if kind == "AccessRule" else {"description": "other"}
    after = api.patch(f"{path}/status", {"status": STATUSES[kind], "spec": other}).ok()
    assert after["spec"] == created["spec"]
    assert STATUSES[kind].items() <= after["status"].items()


@pytest.mark.parametrize("kind", list(STATUSES))
def test_spec_is_written_separately(api: Api, namespace_path: str, kind: str) -> None:
    """Writing the object does not change its status."""
    path, _ = create(api, KINDS.named(kind), namespace_path)
    api.patch(f"{path}/status", {"status": STATUSES[kind]}).ok()
    after = api.patch(path, {"status": None, "metadata": {"labels": {"a": "b"}}}).ok()
    assert STATUSES[kind].items() <= after["status"].items()


def test_status_is_replaced(api: Api, namespace_path: str) -> None:
    """PUT of the status replaces the whole status."""
    path, _ = create(api, KINDS.named("Workload"), namespace_path)
    seen = api.patch(f"{path}/status", {"status": {"phase": "Running", "reason": "x"}}).ok()
    seen["status"] = {"phase": "Failed"}
    assert api.put(f"{path}/status", seen).ok()["status"] == {"phase": "Failed"}


def test_status_subresource_can_be_read(api: Api, namespace_path: str) -> None:
    """The status subresource returns the whole object."""
    path, created = create(api, KINDS.named("Workload"), namespace_path)
    assert api.get(f"{path}/status").ok()["metadata"]["uid"] == created["metadata"]["uid"]


@pytest.mark.parametrize("kind", list(STATUSES))
def test_status_of_create_is_ignored(api: Api, namespace_path: str, kind: str) -> None:
    """A status in a create is dropped: only the platform writes it."""
    wanted = KINDS.named(kind)
    created = api.post(
        path_of(wanted, namespace_path), {**sample(wanted, namespace_path), "status": STATUSES[kind]}
    ).ok(201)
    assert created.get("status", {}).get("phase") != "Running"
    assert not {"lastUsed", "lastLogin", "conditions", "pools"} & created.get("status", {}).keys()


def test_selected_by_label(api: Api, namespace_path: str) -> None:
    """A label selector filters a list."""
    for name, team in (("one", "a"), ("two", "b"), ("three", "a")):
        api.post(f"{namespace_path}/templates", {"metadata": {"name": name, "labels": {"team": team}}}).ok(201)
    assert sorted(api.get(f"{namespace_path}/templates", labelSelector="team=a").names) == ["one", "three"]
    assert api.get(f"{namespace_path}/templates", labelSelector="team notin (a)").names == ["two"]


def test_selected_by_field(api: Api, namespace_path: str) -> None:
    """A field selector filters a list."""
    for name, form in (("one", "training"), ("two", "interactive")):
        spec = {"type": form, "image": "none"}
        api.post(f"{namespace_path}/workloads", {"metadata": {"name": name}, "spec": spec}).ok(201)
    assert api.get(f"{namespace_path}/workloads", fieldSelector="spec.type=interactive").names == ["two"]
    assert api.get(f"{namespace_path}/workloads", fieldSelector="metadata.name=one").names == ["one"]


@pytest.mark.parametrize("query", [{"labelSelector": "team in"}, {"fieldSelector": "spec.image=x"}])
def test_selector_refused(api: Api, namespace_path: str, query: dict[str, str]) -> None:
    """A malformed selector or an unsupported field is an error, not an empty list."""
    api.get(f"{namespace_path}/workloads", **query).refused(400)


def test_nothing_changes_no_version(api: Api, namespace_path: str) -> None:
    """A write that changes nothing gives no new version."""
    path, created = create(api, KINDS.named("Template"), namespace_path)
    assert api.put(path, created).version == created["metadata"]["resourceVersion"]


def test_generation_counts_spec(api: Api, namespace_path: str) -> None:
    """The generation counts changes of the spec."""
    path, created = create(api, KINDS.named("Template"), namespace_path)
    after = api.patch(path, {"spec": {"description": "second"}}).ok()
    assert (created["metadata"]["generation"], after["metadata"]["generation"]) == (1, 2)


def test_patch_tied_to_version(api: Api, namespace_path: str) -> None:
    """A patch with a version applies only to that version."""
    path, created = create(api, KINDS.named("Template"), namespace_path)
    first = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "spec": {"description": "second"}}
    api.patch(path, first).ok()
    api.patch(path, {**first, "spec": {"description": "third"}}).refused(409, "Conflict")
    assert api.get(path).ok()["spec"]["description"] == "second"


def test_delete_of_that_very_object(api: Api, namespace_path: str) -> None:
    """A delete with a uid as precondition does not delete another object of the same name."""
    path, _ = create(api, KINDS.named("Template"), namespace_path)
    api.delete(path, {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}).refused(409, "Conflict")
    api.get(path).ok()


def test_delete_waits_for_finalizers(api: Api, namespace_path: str) -> None:
    """An object with finalizers is removed when the last finalizer is removed."""
    created = {"metadata": {"name": "kept", "finalizers": ["example.com/x"]}}
    api.post(f"{namespace_path}/templates", created).ok(201)
    assert "deletionTimestamp" in api.delete(f"{namespace_path}/templates/kept").ok(202)["metadata"]
    api.patch(f"{namespace_path}/templates/kept", {"metadata": {"finalizers": None}}).ok()
    api.get(f"{namespace_path}/templates/kept").refused(404, "NotFound")


def test_preconditions_in_a_chunked_body(api: Api, namespace_path: str) -> None:
    """Preconditions in a chunked body are respected."""
    path, _ = create(api, KINDS.named("Template"), namespace_path)
    api.close()
    connection = api.connect()
    try:
        body = iter([b'{"preconditions":', b'{"uid": "other"}}'])
        headers = {**api.headers, "Content-Type": "application/json"}
        connection.request("DELETE", f"/apis/aliquot.dev/v1/{path}", body, headers, encode_chunked=True)
        assert connection.getresponse().status == 409
    finally:
        connection.close()
    api.get(path).ok()
