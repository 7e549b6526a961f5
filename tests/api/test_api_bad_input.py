"""Bad input: each kind of mistake has its one-line answer, and nothing changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot.api import KINDS
from api.samples import create, path_of, sample
from api.wire import Api, Json, named, unique

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
    """A wrong field is refused with its path, and no project is there."""
    spec, path = SPECS[what]
    name = unique()
    answer = api.post("projects", named(name, spec)).refused(400, "Invalid")
    assert [found for found in answer.faults if found.startswith(path)], answer.message
    api.get(f"projects/{name}").refused(404)


@pytest.mark.parametrize("what", [what for what in SPECS if what != "the default pool twice"])
def test_patch_to_wrong(api: Api, what: str) -> None:
    """A patch cannot make what a create refuses."""
    spec, path = SPECS[what]
    name = unique()
    api.post("projects", named(name, {"quota": {"gpu": 2}})).ok(201)
    answer = api.patch(f"projects/{name}", {"spec": spec}).refused(400, "Invalid")
    assert [found for found in answer.faults if found.startswith(path)], answer.message
    assert api.get(f"projects/{name}").ok()["spec"] == {"quota": {"gpu": 2}}


@pytest.mark.parametrize("what", SPECS)
def test_replace_by_wrong(api: Api, what: str) -> None:
    """Nor can a replacement."""
    spec, _ = SPECS[what]
    name = unique()
    made = api.post("departments", named(name)).ok(201)
    wrong = {"limit": {"gpu": "x"}} if "department" in spec else spec
    api.put(f"departments/{name}", {**made, "spec": wrong}).refused(400, "Invalid")
    assert "spec" not in api.get(f"departments/{name}").ok()


@pytest.mark.parametrize("what", BODIES)
def test_wrong_body(api: Api, what: str) -> None:
    """A body that is no object of the kind is refused, and nothing is there afterwards."""
    api.ask("POST", "projects", raw=BODIES[what]).refused(400)
    api.get("projects/a").refused(404)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize("what", ["nothing", "a list", "null", "deep nesting", "less deep nesting", "not UTF-8"])
def test_wrong_change(api: Api, here: str, method: str, what: str) -> None:
    """A change that cannot be read changes nothing."""
    path, made = create(api, KINDS.named("Template"), here)
    api.ask(method, path, raw=BODIES[what]).refused(400)
    assert api.get(path).version == made["metadata"]["resourceVersion"]


@pytest.mark.parametrize("levels", [50, 150, 400, 800, 950])
def test_deep_patch(api: Api, levels: int) -> None:
    """However deep a patch is, it is refused for what it is and breaks nothing."""
    deep = b'{"a":' * levels + b"1" + b"}" * levels
    api.ask("PATCH", "projects/nobody", raw=deep).refused(400 if levels > 100 else 404)


@pytest.mark.parametrize("name", NAMES)
def test_bad_name(api: Api, name: str) -> None:
    """A name that is no DNS label is refused, and the answer says what a name is."""
    answer = api.post("projects", named(name)).refused(400)
    assert "metadata.name" in answer.faults


@pytest.mark.parametrize("name", ["%00", "..", "%2e%2e", "a%2fb", "%ff", "a" * 300, "%0a", "x%20y", "%F0%9F%98%80"])
def test_odd_address(api: Api, name: str) -> None:
    """An address that can be nobody's is nobody's."""
    for path in (f"projects/{name}", f"namespaces/{name}/workloads/x", f"namespaces/runai/pods/{name}"):
        assert api.get(path).status in (400, 404), path


def test_broken_json(api: Api) -> None:
    """Broken JSON is shown with line and column."""
    answer = api.ask("POST", "projects", raw=b'{\n  "metadata": {"name": "a",}\n}').refused(400)
    assert "line 2, column" in answer.message


@pytest.mark.parametrize("form", ["text/plain", "application/yaml", "multipart/form-data; boundary=x", "x", "*/*", ";"])
def test_content_type(api: Api, form: str) -> None:
    """What does not come as JSON is not guessed at."""
    body = json.dumps(named(unique())).encode()
    assert "content type" in api.ask("POST", "projects", raw=body, headers={"Content-Type": form}).refused(400).message


@pytest.mark.parametrize("form", ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8"])
def test_content_type_of_json(api: Api, form: str) -> None:
    """JSON is JSON however it is spelled."""
    api.ask("POST", "departments", raw=json.dumps(named(unique())).encode(), headers={"Content-Type": form}).ok(201)


def test_content_type_twice(api: Api) -> None:
    """Two content types contradict each other."""
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
    """An object cannot be written under another one's address."""
    one, two = unique(), unique()
    made = api.post("departments", named(one)).ok(201)
    answer = api.ask(method, f"departments/{one}", {**made, "metadata": {**made["metadata"], "name": two}})
    assert "metadata.name" in answer.refused(400).faults
    api.get(f"departments/{two}").refused(404)


def test_another_namespace(api: Api, here: str) -> None:
    """An object cannot be created in another namespace than the address says."""
    wrong = named("a", namespace="runai")
    assert "metadata.namespace" in api.post(f"{here}/templates", wrong).refused(400).faults


def test_replace_without_version(api: Api) -> None:
    """A replacement must say which version it replaces."""
    name = unique()
    api.post("departments", named(name)).ok(201)
    answer = api.put(f"departments/{name}", named(name, {"description": "x"})).refused(400)
    assert "metadata.resourceVersion" in answer.faults


@pytest.mark.parametrize("gpu", [-1, 1.0005, "half"])
def test_workload_gpus(api: Api, here: str, gpu: object) -> None:
    """A workload asks for GPUs that can exist."""
    spec = {"type": "training", "image": "none", "compute": {"gpu": gpu}}
    answer = api.post(f"{here}/workloads", named("a", spec)).refused(400)
    assert "spec.compute.gpu" in answer.faults


def test_one_and_a_half_gpus(api: Api, here: str) -> None:
    """More than one GPU comes in whole ones."""
    spec = {"type": "training", "image": "none", "compute": {"gpu": 1.5}}
    assert "spec.compute.gpu" in api.post(f"{here}/workloads", named("a", spec)).refused(400).faults


@pytest.mark.parametrize(
    "options", [{"preconditions": []}, {"preconditions": "x"}, {"gracePeriodSeconds": "soon"},
                {"gracePeriodSeconds": -1}, {"gracePeriodSeconds": 1e3}, {"gracePeriodSeconds": 10**30}],
)  # fmt: skip
def test_delete_options(api: Api, here: str, options: Json) -> None:
    """A delete whose options cannot be read deletes nothing."""
    if options.get("preconditions") == []:
        options = {"preconditions": [1]}
    path, _ = create(api, KINDS.named("Pod"), here)
    api.delete(path, options).refused(400)
    api.get(path).ok()


@pytest.mark.parametrize("seconds", ["soon", "-1", "²", "9" * 40])
def test_delete_grace(api: Api, here: str, seconds: str) -> None:
    """The same for a grace that is no number of seconds."""
    path, _ = create(api, KINDS.named("Pod"), here)
    api.delete(path, gracePeriodSeconds=seconds).refused(400)
    api.get(path).ok()


@pytest.mark.parametrize("kind", ["Namespace", "Pod", "Template"])
def test_half_characters_in_a_patch(api: Api, here: str, kind: str) -> None:
    """Text that is no text gets in by no door."""
    path, _ = create(api, KINDS.named(kind), here)
    api.ask("PATCH", path, raw=b'{"metadata": {"annotations": {"note": "\\ud800"}}}').refused(400)
    assert "note" not in api.get(path).ok()["metadata"].get("annotations", {})


@pytest.mark.parametrize("kind", ["Namespace", "Pod", "Service", "Node"])
def test_unknown_field_of_a_core_kind(api: Api, here: str, kind: str) -> None:
    """A typing mistake in an object of Kubernetes is found too."""
    wanted = KINDS.named(kind)
    wrong = {**sample(wanted, here), "spce": {}}
    assert "spce" in api.post(path_of(wanted, here), wrong).refused(400).faults
