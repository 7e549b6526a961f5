"""Validation lists every fault of an object with its path."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.api import from_json
from aliquot.errors import Invalid


def faults(kind: str, spec: Any, *, api_version: str = "aliquot.dev/v1", name: str = "x") -> dict[str, str]:
    """Path -> message of every fault that strict validation reports."""
    data = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
    try:
        from_json(data, strict=True)
    except Invalid as exc:
        return {fault.path: fault.text for fault in exc.faults}
    return {}


def test_every_fault_is_named_at_once() -> None:
    """One error lists every fault, so that one correction is enough."""
    spec = {"quota": {"gpu": "many", "memory": "lots"}, "priority": "high", "overQuota": 7}

    assert faults("Project", spec) == {
        "spec.quota.gpu": "must be a number such as 4 or 0.5, not 'many'",
        "spec.quota.memory": "must be an amount such as 512Mi or 4G, not 'lots'",
        "spec.priority": "must be a whole number, not 'high'",
        "spec.overQuota": "must be true or false, not 7",
    }


def test_message_is_one_line() -> None:
    """The error message is one line with kind, path and rule."""
    data = {
        "apiVersion": "aliquot.dev/v1",
        "kind": "Project",
        "metadata": {"name": "a"},
        "spec": {"quota": {"gpu": -1}},
    }

    with pytest.raises(Invalid, match=r"^project: spec\.quota\.gpu: must not be negative, not -1$"):
        from_json(data, strict=True)


@pytest.mark.parametrize(
    ("spec", "path", "text"),
    [
        ({"type": "batch"}, "spec.type", "must be one of training, interactive, inference, not batch"),
        ({"command": "python"}, "spec.command", "must be a list, not 'python'"),
        ({"compute": 1}, "spec.compute", "must be an object, not 1"),
        ({"image": 7}, "spec.image", "must be text, not 7"),
        ({"image": "\ud800"}, "spec.image", "must be text without half characters (lone surrogates)"),
        ({"environment": [{"value": "x"}]}, "spec.environment[0].name", "is required"),
        ({"labels": {"a/b": 1}}, "spec.labels['a/b']", "must be text, not 1"),
        ({"backoffLimit": 101}, "spec.backoffLimit", "must be at most 100, not 101"),
        ({"parallelism": 0}, "spec.parallelism", "must be at least 1, not 0"),
        ({"ports": [{"container": 70000}]}, "spec.ports[0].container", "must be at most 65535, not 70000"),
        ({"description": "x" * 5000}, "spec.description", "must have at most 4096 characters"),
    ],
)
def test_path_leads_to_the_fault(spec: dict[str, Any], path: str, text: str) -> None:
    """A fault inside an object has the path of its field and the rule that it breaks."""
    assert faults("Workload", spec) == {path: text}


def test_unknown_field_is_refused_in_strict_mode() -> None:
    """A misspelt field is an error and is not dropped silently."""
    assert faults("Workload", {"imgae": "python", "compute": {"gpus": 1}}) == {
        "spec.imgae": "unknown field",
        "spec.compute.gpus": "unknown field",
    }


def test_unknown_field_from_a_store_is_ignored() -> None:
    """An object with fields of a newer version can be read."""
    data = {
        "apiVersion": "aliquot.dev/v1",
        "kind": "Workload",
        "metadata": {"name": "x", "managedFields": []},
        "spec": {"image": "python", "invented": {"later": True}},
    }

    assert from_json(data).spec.image == "python"


def test_name_is_required() -> None:
    """An object without metadata, or without a name, is refused."""
    with pytest.raises(Invalid, match="metadata: is required"):
        from_json({"apiVersion": "aliquot.dev/v1", "kind": "Project"})
    with pytest.raises(Invalid, match=r"metadata\.name: is required"):
        from_json({"apiVersion": "aliquot.dev/v1", "kind": "Project", "metadata": {}})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "must be an object"),
        ({}, "apiVersion: is required; kind: is required"),
        ({"apiVersion": "v2", "kind": "Pod"}, "no kind 'Pod' in apiVersion 'v2'"),
        ({"apiVersion": "aliquot.dev/v1", "kind": "project"}, "no kind 'project'"),
        ({"apiVersion": "v1", "kind": "Claim"}, "no kind 'Claim'"),
        ({"apiVersion": ["v1"], "kind": {"a": 1}}, "no kind"),
    ],
)
def test_manifest_needs_a_known_kind(data: Any, text: str) -> None:
    """A manifest without a kind, or with an unknown one, is refused."""
    with pytest.raises(Invalid, match=text.replace("[", r"\[")):
        from_json(data)


def test_nan_is_refused() -> None:
    """NaN is refused, because JSON does not have it."""
    assert faults("SchedulingPolicy", {"disruptionBound": float("nan")}) == {
        "spec.disruptionBound": "must be a finite number, not nan"
    }


def test_service_port_may_be_a_number_or_a_name() -> None:
    """A field that accepts two types has one message for both."""
    spec = {"ports": [{"port": 80, "targetPort": 1.5}, {"port": 81, "targetPort": "web"}]}

    assert faults("Service", spec, api_version="v1") == {"spec.ports[0].targetPort": "must be a number or a name"}


def test_lone_surrogates_are_refused_in_untyped_fields() -> None:
    """Lone surrogates are refused in untyped fields too, including their keys."""
    spec = {"defaults": {"a": ["\ud800"], "b\udfff": 1}}

    assert set(faults("Policy", spec)) == {"spec.defaults.a[0]", r"spec.defaults['b\udfff']"}


def test_deeply_nested_objects_are_refused() -> None:
    """An untyped field that is nested too deeply is refused."""
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"a": deep}

    assert faults("Policy", {"defaults": deep}) == {
        "spec.defaults.a.a.a": "must not be nested deeper than 100 levels",
    }
