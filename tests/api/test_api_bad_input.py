"""Bad input: each mistake is refused with a message of one line, and nothing changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot.api import KINDS
from api.http_client import Api, Json, named, unique
from api.samples import create, path_of, sample

DEEP = "[" * 5000 + "]" * 5000


def _nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value}
    return value


SPECS: dict[str, tuple[Json, str]] = {
    "a quota of many": ({"quota": {"gpu": "many"}}, "spec.quota.gpu"),
    "a negative quota": ({"quota": {"gpu": -1}}, "spec.quota.gpu"),
    "a fourth decimal": ({"quota": {"gpu": 0.0001}}, "spec.quota.gpu"),
    "a quota that is a list": ({"quota": [1]}, "spec.quota"),
    "a quota that is true": ({"quota": {"gpu": True}}, "spec.quota.gpu"),
    "memory that is no amount": ({"quota": {"memory": "lots"}}, "spec.quota.memory"),
    "an unknown field": ({"qouta": {"gpu": 1}}, "spec.qouta"),
    "an unknown field further in": ({"quota": {"gpus": 1}}, "spec.quota.gpus"),
    "a huge priority": ({"priority": 10**30}, "spec.priority"),
    "a priority with a fraction": ({"priority": 1.5}, "spec.priority"),
    "a department that is a number": ({"department": 5}, "spec.department"),
    "a department that cannot be one": ({"department": "No Good"}, "spec.department"),
    "a department that is not there": ({"department": "nowhere"}, "spec.department"),
    "half a character": ({"description": "\ud800"}, "spec.description"),
    "the default pool twice": ({"pools": {"default": {}}}, "spec.pools"),
}
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "a list": b"[]",
    "text": b'"x"',
    "a number": b"5",
    "null": b"null",
    "no metadata": b"{}",
    "metadata that is text": b'{"metadata": "x"}',
    "no name": b'{"metadata": {}}',
    "a name that is a number": b'{"metadata": {"name": 5}}',
    "a name that is an object": b'{"metadata": {"name": {"a": 1}}}',
    "a spec that is text": b'{"metadata": {"name": "a"}, "spec": "x"}',
    "labels that are a list": b'{"metadata": {"name": "a", "labels": []}}',
    "a label that is a number": b'{"metadata": {"name": "a", "labels": {"a": 1}}}',
    "a label that cannot be one": b'{"metadata": {"name": "a", "labels": {"a b": "c"}}}',
    "not a number": b'{"metadata": {"name": "a"}, "spec": {"quota": {"gpu": NaN}}}',
    "infinity": b'{"metadata": {"name": "a"}, "spec": {"quota": {"gpu": Infinity}}}',
    "a number beyond numbers": b'{"metadata": {"name": "a"}, "spec": {"quota": {"gpu": 1e999}}}',
    "an endless number": b'{"metadata": {"name": "a"}, "spec": {"priority": ' + b"9" * 6000 + b"}}",
    "deep nesting": b'{"metadata": {"name": "a"}, "spec": ' + DEEP.encode() + b"}",
    "less deep nesting": json.dumps({"metadata": {"name": "a"}, "spec": _nested(300)}).encode(),
    "not UTF-8": b'{"metadata": {"name": "\xff"}}',
    "UTF-16": '{"metadata": {"name": "a"}}'.encode("utf-16-le"),
    "two objects": b'{"metadata": {"name": "a"}} {"metadata": {"name": "b"}}',
    "YAML": b"metadata:\n  name: a\n",
    "another kind": b'{"kind": "Department", "metadata": {"name": "a"}}',
    "another version": b'{"apiVersion": "aliquot.dev/v2", "metadata": {"name": "a"}}',
    "a kind that is a number": b'{"kind": 5, "metadata": {"name": "a"}}',
    "a namespace where there is none": b'{"metadata": {"name": "a", "namespace": "b"}}',
}
NAMES = ["Upper", "with space", "a_b", "-a", "a-", "1st", "a.b", "a/b", "..", "ä", "a" * 64, "a\n", "a\u0000", "%2e"]


@pytest.mark.parametrize("what", SPECS)
def test_wrong_spec(api: Api, what: str) -> None:
    """A create with an invalid field is refused with its path, and creates no project."""
    spec, path = SPECS[what]
    name = unique()
    response = api.post("projects", named(name, spec)).refused(400, "Invalid")
    assert [fault for fault in response.faults if fault.startswith(path)], response.message
    api.get(f"projects/{name}").refused(404)


@pytest.mark.parametrize("what", [what for what in SPECS if what != "the default pool twice"])
def test_patch_to_wrong(api: Api, what: str) -> None:
    """A patch cannot produce an object that a create refuses."""
    spec, path = SPECS[what]
    name = unique()
    api.post("projects", named(name, {"quota": {"gpu": 2}})).ok(201)
    response = api.patch(f"projects/{name}", {"spec": spec}).refused(400, "Invalid")
    assert [fault for fault in response.faults if fault.startswith(path)], response.message
    assert api.get(f"projects/{name}").ok()["spec"] == {"quota": {"gpu": 2}}


@pytest.mark.parametrize("what", SPECS)
def test_replace_by_wrong(api: Api, what: str) -> None:
    """A replace cannot produce an object that a create refuses."""
    spec, _ = SPECS[what]
    name = unique()
    created = api.post("departments", named(name)).ok(201)
    wrong = {"limit": {"gpu": "x"}} if "department" in spec else spec
    api.put(f"departments/{name}", {**created, "spec": wrong}).refused(400, "Invalid")
    assert "spec" not in api.get(f"departments/{name}").ok()


@pytest.mark.parametrize("what", BODIES)
def test_wrong_body(api: Api, what: str) -> None:
    """A body that is not an object of the kind is refused, and creates nothing."""
    api.request("POST", "projects", raw=BODIES[what]).refused(400)
    api.get("projects/a").refused(404)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize("what", ["nothing", "a list", "null", "deep nesting", "less deep nesting", "not UTF-8"])
def test_wrong_change(api: Api, namespace_path: str, method: str, what: str) -> None:
    """A change that cannot be parsed changes nothing."""
    path, created = create(api, KINDS.named("Template"), namespace_path)
    api.request(method, path, raw=BODIES[what]).refused(400)
    assert api.get(path).version == created["metadata"]["resourceVersion"]


@pytest.mark.parametrize("levels", [50, 150, 400, 800, 950])
def test_deep_patch(api: Api, levels: int) -> None:
    """A deeply nested patch is refused with the right status and does not break the server."""
    deep = b'{"a":' * levels + b"1" + b"}" * levels
    api.request("PATCH", "projects/nobody", raw=deep).refused(400 if levels > 100 else 404)


@pytest.mark.parametrize("name", NAMES)
def test_bad_name(api: Api, name: str) -> None:
    """A name that is not a DNS label is refused under metadata.name."""
    response = api.post("projects", named(name)).refused(400)
    assert "metadata.name" in response.faults


@pytest.mark.parametrize("name", ["%00", "..", "%2e%2e", "a%2fb", "%ff", "a" * 300, "%0a", "x%20y", "%F0%9F%98%80"])
def test_odd_address(api: Api, name: str) -> None:
    """A path with a name that no object can have is not found or invalid."""
    for path in (f"projects/{name}", f"namespaces/{name}/workloads/x", f"namespaces/runai/pods/{name}"):
        assert api.get(path).status in (400, 404), path


def test_broken_json(api: Api) -> None:
    """The message about broken JSON has line and column."""
    response = api.request("POST", "projects", raw=b'{\n  "metadata": {"name": "a",}\n}').refused(400)
    assert "line 2, column" in response.message


@pytest.mark.parametrize("form", ["text/plain", "application/yaml", "multipart/form-data; boundary=x", "x", "*/*", ";"])
def test_content_type(api: Api, form: str) -> None:
    """A content type other than JSON is refused."""
    body = json.dumps(named(unique())).encode()
    assert (
        "content type" in api.request("POST", "projects", raw=body, headers={"Content-Type": form}).refused(400).message
    )


@pytest.mark.parametrize("form", ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8"])
def test_content_type_of_json(api: Api, form: str) -> None:
    """The content type of JSON is accepted in any case and with parameters."""
    api.request("POST", "departments", raw=json.dumps(named(unique())).encode(), headers={"Content-Type": form}).ok(201)


def test_content_type_twice(api: Api) -> None:
    """A request with two content types is refused."""
    body = json.dumps(named(unique())).encode()
    connection = api.connect()
    try:
        connection.putrequest("POST", "/apis/aliquot.dev/v1/projects")
        for key, value in [*api.headers.items(), ("Content-Length", str(len(body)))]:
            connection.putheader(key, value)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Type", "text/plain")
        connection.endheaders(body)
        assert connection.getresponse().status == 400
    finally:
        connection.close()


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_another_name(api: Api, method: str) -> None:
    """An object cannot be written under the path of another."""
    first, second = unique(), unique()
    created = api.post("departments", named(first)).ok(201)
    response = api.request(
        method, f"departments/{first}", {**created, "metadata": {**created["metadata"], "name": second}}
    )
    assert "metadata.name" in response.refused(400).faults
    api.get(f"departments/{second}").refused(404)


def test_another_namespace(api: Api, namespace_path: str) -> None:
    """An object cannot be created in a namespace other than that of the path."""
    wrong = named("a", namespace="runai")
    assert "metadata.namespace" in api.post(f"{namespace_path}/templates", wrong).refused(400).faults


def test_replace_without_version(api: Api) -> None:
    """A replace without a version is refused."""
    name = unique()
    api.post("departments", named(name)).ok(201)
    response = api.put(f"departments/{name}", named(name, {"description": "x"})).refused(400)
    assert "metadata.resourceVersion" in response.faults


@pytest.mark.parametrize("gpu", [-1, 1.0005, "half"])
def test_workload_gpus(api: Api, namespace_path: str, gpu: object) -> None:
    """An invalid number of GPUs is refused."""
    spec = {"type": "training", "image": "none", "compute": {"gpu": gpu}}
    response = api.post(f"{namespace_path}/workloads", named("a", spec)).refused(400)
    assert "spec.compute.gpu" in response.faults


def test_one_and_a_half_gpus(api: Api, namespace_path: str) -> None:
    """A number of GPUs above one must be whole."""
    spec = {"type": "training", "image": "none", "compute": {"gpu": 1.5}}
    assert "spec.compute.gpu" in api.post(f"{namespace_path}/workloads", named("a", spec)).refused(400).faults


@pytest.mark.parametrize(
    "options", [{"preconditions": []}, {"preconditions": "x"}, {"gracePeriodSeconds": "soon"},
                {"gracePeriodSeconds": -1}, {"gracePeriodSeconds": 1e3}, {"gracePeriodSeconds": 10**30}],
)  # fmt: skip
def test_delete_options(api: Api, namespace_path: str, options: Json) -> None:
    """A delete with invalid options deletes nothing."""
    if options.get("preconditions") == []:
        options = {"preconditions": [1]}
    path, _ = create(api, KINDS.named("Pod"), namespace_path)
    api.delete(path, options).refused(400)
    api.get(path).ok()


@pytest.mark.parametrize("seconds", ["soon", "-1", "²", "9" * 40])
def test_delete_grace(api: Api, namespace_path: str, seconds: str) -> None:
    """A delete with an invalid grace period deletes nothing."""
    path, _ = create(api, KINDS.named("Pod"), namespace_path)
    api.delete(path, gracePeriodSeconds=seconds).refused(400)
    api.get(path).ok()


@pytest.mark.parametrize("kind", ["Namespace", "Pod", "Template"])
def test_half_characters_in_a_patch(api: Api, namespace_path: str, kind: str) -> None:
    """A patch with a lone surrogate is refused for every kind."""
    path, _ = create(api, KINDS.named(kind), namespace_path)
    api.request("PATCH", path, raw=b'{"metadata": {"annotations": {"note": "\\ud800"}}}').refused(400)
    assert "note" not in api.get(path).ok()["metadata"].get("annotations", {})


@pytest.mark.parametrize("kind", ["Namespace", "Pod", "Service", "Node"])
def test_unknown_field_of_a_core_kind(api: Api, namespace_path: str, kind: str) -> None:
    """An unknown field in an object of a Kubernetes kind is refused on create."""
    wanted = KINDS.named(kind)
    wrong = {**sample(wanted, namespace_path), "spce": {}}
    assert "spce" in api.post(path_of(wanted, namespace_path), wrong).refused(400).faults
