"""The types against a real Kubernetes API server: it accepts and refuses the same objects as we do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aliquot.api import KINDS, Json, Kind, from_json, to_json
from aliquot.api.serialization import HasCrossFieldRules
from support.kubernetes.cluster import Cluster
from unit.api.any_object import kind_objects
from unit.api.examples import EXAMPLES, WORKLOAD

pytestmark = pytest.mark.kube

# A few examples with many objects each, because every call of kubectl takes a fifth of a second.
FEW = settings(
    max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], database=None
)


def contains(wanted: Any, actual: Any) -> bool:
    """Whether `actual` has everything that is wanted. Kubernetes adds defaults to its own kinds."""
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(contains(value, actual.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(actual, list) and len(actual) >= len(wanted) and all(map(contains, wanted, actual))
    return bool(wanted == actual)


def apply(cluster: Cluster, data: Json, *verb: str) -> str:
    return cluster.kubectl(*(verb or ("apply",)), "-n", "default", "-f", "-", stdin=json.dumps(data), check=False)


def read(cluster: Cluster, kind: Kind[Any], name: str) -> Json:
    resource = f"{kind.plural}.v1.{kind.group}" if kind.group else kind.plural
    stored: Json = json.loads(cluster.kubectl("get", resource, name, "-n", "default", "-o", "json"))
    return stored


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example['kind']}-{example['metadata']['name']}")
def test_full_example_is_stored_unchanged(cluster_with_kinds: Cluster, example: Json) -> None:
    """Kubernetes stores a full object of each kind unchanged, with its status."""
    kind, name = KINDS.named(example["kind"]), example["metadata"]["name"]
    wanted = to_json(from_json(example, strict=True))

    answer = apply(cluster_with_kinds, wanted)
    back = read(cluster_with_kinds, kind, name)
    if "status" in wanted:
        resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        change = ["--subresource=status", "--type=merge", "-p", json.dumps({"status": wanted["status"]})]
        # The response of this write, because a server that another test runs may write the status too.
        back = json.loads(cluster_with_kinds.kubectl("patch", resource, name, "-n", "default", *change, "-o", "json"))

    assert "created" in answer or "configured" in answer, answer
    assert contains(wanted, to_json(from_json(back)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.is_custom_resource], ids=lambda kind: kind.name)
@FEW
@given(data=st.data())
def test_valid_objects_are_stored_unchanged(cluster_with_kinds: Cluster, kind: Kind[Any], data: st.DataObject) -> None:
    """Kubernetes stores every object that passes our validation unchanged."""
    drawn = data.draw(st.lists(kind_objects(kind.type), min_size=5, max_size=10, unique_by=lambda o: o.metadata.name))
    passing = [obj for obj in drawn if not (isinstance(obj, HasCrossFieldRules) and list(obj.faults()))]
    listed = {"apiVersion": "v1", "kind": "List", "items": [to_json(obj) for obj in passing]}

    answer = apply(cluster_with_kinds, listed, "replace", "--force") if passing else ""
    try:
        for obj in passing:
            back = from_json(read(cluster_with_kinds, kind, obj.metadata.name))
            assert back.spec == obj.spec, answer
    finally:
        for obj in passing:
            cluster_with_kinds.kubectl(
                "delete", f"{kind.plural}.{kind.group}", obj.metadata.name, "-n", "default", "--ignore-not-found"
            )


def test_explain_shows_descriptions(cluster_with_kinds: Cluster) -> None:
    """`kubectl explain` shows the descriptions of fields."""
    spec = cluster_with_kinds.kubectl("explain", "workload.spec")

    assert "training runs to completion, interactive is a session, inference serves requests." in " ".join(spec.split())
    gpu = cluster_with_kinds.kubectl("explain", "workload.spec.compute.gpu")
    assert "half" not in gpu
    assert "a fraction of one, such as 0.5" in gpu


@pytest.mark.parametrize(
    ("kind", "name", "spec", "text"),
    [
        ("Project", "team-b", {"quota": {"gpu": "many"}}, 'spec.quota.gpu: Invalid value: "string"'),
        (
            "Project",
            "team-b",
            {"quota": {"gpu": 0.3333}},
            "spec.quota.gpu: Invalid value: 0.3333: must have at most three",
        ),
        ("Project", "team-b", {"quota": {"memory": "lots"}}, 'spec.quota.memory: Invalid value: "lots"'),
        ("Project", "team-b", {"pools": {"default": {}}}, "must not name pool default"),
        ("Project", "team-b", {"qouta": {"gpu": 1}}, 'unknown field "spec.qouta"'),
        ("Project", "1team", {}, 'metadata.name: Invalid value: "1team"'),
        ("NodePool", "pool-b", {}, "spec.labelKey is required for every pool but default"),
        ("Workload", "a" * 51, {}, "metadata.name: Too long: may not be more than 50 bytes"),
        ("Workload", "w", {"type": "batch"}, 'spec.type: Unsupported value: "batch"'),
        ("Workload", "w", {"compute": {"gpu": 1.5}}, "must be a whole number of GPUs, or a fraction of one below 1"),
        (
            "Workload",
            "w",
            {"compute": {"gpu": 1, "gpuMemory": "4G"}},
            "must have only one of gpu, gpuMemory and migProfile",
        ),
        ("Workload", "w", {"serving": {}}, "serving is for type inference only"),
        ("Workload", "w", {"type": "inference", "distributed": {"framework": "mpi"}}, "is not for type inference"),
        ("Workload", "w", {"parallelism": 3, "completions": 2}, "parallelism must not be more than completions"),
        ("Workload", "w", {"environment": [{"name": "A"}, {"name": "A"}]}, 'Duplicate value: {"name":"A"}'),
        ("Token", "t", {"user": "ann", "hash": "secret"}, 'spec.hash: Invalid value: "secret"'),
        (
            "AccessRule",
            "r",
            {"subject": {"kind": "user", "name": "a"}, "role": "viewer", "scope": {"kind": "project"}},
            "must name a department or project, or have kind cluster and no name",
        ),
    ],
)
def test_invalid_object_is_refused_with_a_message(
    cluster_with_kinds: Cluster, kind: str, name: str, spec: Json, text: str
) -> None:
    """`kubectl apply` of an invalid object names the field and the rule."""
    data = {"apiVersion": "aliquot.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}

    assert text in apply(cluster_with_kinds, data)


def test_type_has_a_default(cluster_with_kinds: Cluster) -> None:
    """The default type of a workload shows in selectors and columns."""
    data = {"apiVersion": "aliquot.dev/v1", "kind": "Workload", "metadata": {"name": "bare"}}

    apply(cluster_with_kinds, data)
    listed = cluster_with_kinds.kubectl("get", "wl", "-n", "default", "--field-selector=spec.type=training")

    assert "bare" in listed
    assert listed.splitlines()[0].split() == ["NAME", "TYPE", "PHASE", "USER", "GPUS", "AGE"]


def test_every_selector_is_known_to_kubernetes(cluster_with_kinds: Cluster) -> None:
    """Kubernetes accepts every field that we declare selectable."""
    for kind in KINDS:
        resource = f"{kind.plural}.v1.{kind.group}" if kind.group else kind.plural
        for field in (*kind.selectable_fields, "metadata.name"):
            answer = cluster_with_kinds.kubectl(
                "get", resource, "-A", f"--field-selector={field}=false", "-o", "name", check=False
            )
            assert "not supported" not in answer, f"{kind.name} {field}"
            assert "not a known field" not in answer, f"{kind.name} {field}"


def test_unchanged_apply_changes_nothing(cluster_with_kinds: Cluster) -> None:
    """Applying the canonical form of an object again gives no new version."""
    data = to_json(from_json({**WORKLOAD, "metadata": {"name": "same"}, "status": {}}))
    apply(cluster_with_kinds, data)
    before = read(cluster_with_kinds, KINDS.named("Workload"), "same")

    assert "unchanged" in apply(cluster_with_kinds, data)
    assert read(cluster_with_kinds, KINDS.named("Workload"), "same") == before
