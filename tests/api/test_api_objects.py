"""Create, read, list, replace, patch and delete, for every kind of object, on both stores."""

from __future__ import annotations

import pytest

from aliquot.api import KINDS
from api.samples import EVERY_KIND, STATUSES, create, path_of, sample
from api.wire import Api, Json, until

every_kind = pytest.mark.parametrize("kind", EVERY_KIND)


@every_kind
def test_create(api: Api, here: str, kind: str) -> None:
    """A new object comes back with its identity."""
    _, made = create(api, KINDS.named(kind), here)
    assert (made["kind"], made["apiVersion"]) == (kind, KINDS.named(kind).api_version)
    assert {"uid", "resourceVersion", "creationTimestamp"} <= made["metadata"].keys()


@every_kind
def test_get(api: Api, here: str, kind: str) -> None:
    """What was created can be read."""
    path, made = create(api, KINDS.named(kind), here)
    assert api.get(path).ok()["metadata"]["uid"] == made["metadata"]["uid"]


@every_kind
def test_list(api: Api, here: str, kind: str) -> None:
    """A list has the object, and says its own kind and version."""
    wanted = KINDS.named(kind)
    path, made = create(api, wanted, here)
    listed = api.get(path.rpartition("/")[0])
    assert listed.ok()["kind"] == f"{kind}List"
    assert listed.version
    assert made["metadata"]["name"] in listed.names


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS if kind.namespaced])
def test_list_everywhere(api: Api, here: str, kind: str) -> None:
    """Without a namespace in the address a list spans all of them."""
    wanted = KINDS.named(kind)
    _, made = create(api, wanted, here)
    found = {item["metadata"]["uid"]: item["metadata"]["namespace"] for item in api.get(wanted.plural).ok()["items"]}
    assert found[made["metadata"]["uid"]] == here.rpartition("/")[2]


@every_kind
def test_replace(api: Api, here: str, kind: str) -> None:
    """Read, change, write back gives a new version with the change."""
    path, made = create(api, KINDS.named(kind), here)
    made.pop("token", None)
    # Controllers of Kubernetes touch some objects right after birth, so what is written back is read here.
    after = until(lambda: _labelled(api, path), "a write without a conflict")
    assert after["metadata"]["labels"]["team"] == "a"
    assert after["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]


def _labelled(api: Api, path: str) -> Json | None:
    seen = api.get(path).ok()
    seen["metadata"]["labels"] = {**seen["metadata"].get("labels", {}), "team": "a"}
    answer = api.put(path, seen)
    return None if answer.status == 409 else answer.ok()


@every_kind
def test_patch(api: Api, here: str, kind: str) -> None:
    """A patch changes what it names and nothing else."""
    path, made = create(api, KINDS.named(kind), here)
    after = api.patch(path, {"metadata": {"annotations": {"note": "x y"}}}).ok()
    assert after["metadata"]["annotations"]["note"] == "x y"
    if "image" in made.get("spec", {}):
        assert after["spec"]["image"] == made["spec"]["image"]


@every_kind
def test_delete(api: Api, here: str, kind: str) -> None:
    """A deleted object is gone, or marked until what keeps it lets go."""
    path, _ = create(api, KINDS.named(kind), here)
    answer = api.delete(path)
    assert answer.status in (200, 202)
    left = api.get(path)
    assert left.status == 404 or "deletionTimestamp" in left.ok()["metadata"]


@pytest.mark.parametrize("kind", list(STATUSES))
def test_status_is_apart(api: Api, here: str, kind: str) -> None:
    """Writing the status leaves the spec alone."""
    path, made = create(api, KINDS.named(kind), here)
    other = {"createdBy": "other"} if kind == "AccessRule" else {"description": "other"}
    after = api.patch(f"{path}/status", {"status": STATUSES[kind], "spec": other}).ok()
    assert after["spec"] == made["spec"]
    assert STATUSES[kind].items() <= after["status"].items()


@pytest.mark.parametrize("kind", list(STATUSES))
def test_spec_is_apart(api: Api, here: str, kind: str) -> None:
    """Writing the object leaves its status alone."""
    path, _ = create(api, KINDS.named(kind), here)
    api.patch(f"{path}/status", {"status": STATUSES[kind]}).ok()
    after = api.patch(path, {"status": None, "metadata": {"labels": {"a": "b"}}}).ok()
    assert STATUSES[kind].items() <= after["status"].items()


def test_status_is_replaced(api: Api, here: str) -> None:
    """PUT of the status replaces the whole of it."""
    path, _ = create(api, KINDS.named("Workload"), here)
    seen = api.patch(f"{path}/status", {"status": {"phase": "Running", "reason": "x"}}).ok()
    seen["status"] = {"phase": "Failed"}
    assert api.put(f"{path}/status", seen).ok()["status"] == {"phase": "Failed"}


def test_status_is_read_apart(api: Api, here: str) -> None:
    """The status has an address; it shows the object."""
    path, made = create(api, KINDS.named("Workload"), here)
    assert api.get(f"{path}/status").ok()["metadata"]["uid"] == made["metadata"]["uid"]


@pytest.mark.parametrize("kind", list(STATUSES))
def test_status_of_create_is_ignored(api: Api, here: str, kind: str) -> None:
    """Only the platform says how something stands: a status that comes with a create is dropped."""
    wanted = KINDS.named(kind)
    made = api.post(path_of(wanted, here), {**sample(wanted, here), "status": STATUSES[kind]}).ok(201)
    assert made.get("status", {}).get("phase") != "Running"
    assert not {"lastUsed", "lastLogin", "conditions", "pools"} & made.get("status", {}).keys()


def test_selected_by_label(api: Api, here: str) -> None:
    """A list can be narrowed by labels."""
    for name, team in (("one", "a"), ("two", "b"), ("three", "a")):
        api.post(f"{here}/templates", {"metadata": {"name": name, "labels": {"team": team}}}).ok(201)
    assert sorted(api.get(f"{here}/templates", labelSelector="team=a").names) == ["one", "three"]
    assert api.get(f"{here}/templates", labelSelector="team notin (a)").names == ["two"]


def test_selected_by_field(api: Api, here: str) -> None:
    """A list can be narrowed by fields."""
    for name, form in (("one", "training"), ("two", "interactive")):
        spec = {"type": form, "image": "none"}
        api.post(f"{here}/workloads", {"metadata": {"name": name}, "spec": spec}).ok(201)
    assert api.get(f"{here}/workloads", fieldSelector="spec.type=interactive").names == ["two"]
    assert api.get(f"{here}/workloads", fieldSelector="metadata.name=one").names == ["one"]


@pytest.mark.parametrize("query", [{"labelSelector": "team in"}, {"fieldSelector": "spec.image=x"}])
def test_selector_refused(api: Api, here: str, query: dict[str, str]) -> None:
    """A selector that cannot be read, or a field that cannot be selected, is an error and not an empty list."""
    api.get(f"{here}/workloads", **query).refused(400)


def test_nothing_changes_no_version(api: Api, here: str) -> None:
    """A write that changes nothing gives no new version."""
    path, made = create(api, KINDS.named("Template"), here)
    assert api.put(path, made).version == made["metadata"]["resourceVersion"]


def test_generation_counts_spec(api: Api, here: str) -> None:
    """The generation counts changes of the spec."""
    path, made = create(api, KINDS.named("Template"), here)
    after = api.patch(path, {"spec": {"description": "second"}}).ok()
    assert (made["metadata"]["generation"], after["metadata"]["generation"]) == (1, 2)


def test_patch_tied_to_version(api: Api, here: str) -> None:
    """A patch with a version holds only for that version."""
    path, made = create(api, KINDS.named("Template"), here)
    first = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"description": "second"}}
    api.patch(path, first).ok()
    api.patch(path, {**first, "spec": {"description": "third"}}).refused(409, "Conflict")
    assert api.get(path).ok()["spec"]["description"] == "second"


def test_delete_of_that_very_object(api: Api, here: str) -> None:
    """A delete can be tied to a uid, so that a namesake is spared."""
    path, _ = create(api, KINDS.named("Template"), here)
    api.delete(path, {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}).refused(409, "Conflict")
    api.get(path).ok()


def test_delete_waits_for_finalizers(api: Api, here: str) -> None:
    """An object that somebody must finish with first is marked, and goes with the last finalizer."""
    made = {"metadata": {"name": "kept", "finalizers": ["example.com/x"]}}
    api.post(f"{here}/templates", made).ok(201)
    assert "deletionTimestamp" in api.delete(f"{here}/templates/kept").ok(202)["metadata"]
    api.patch(f"{here}/templates/kept", {"metadata": {"finalizers": None}}).ok()
    api.get(f"{here}/templates/kept").refused(404, "NotFound")


def test_conditions_sent_in_pieces(api: Api, here: str) -> None:
    """A delete's conditions count also when its body comes in chunks of unknown length."""
    path, _ = create(api, KINDS.named("Template"), here)
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
