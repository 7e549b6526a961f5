"""The types against a real Kubernetes API server: it takes what we write, and refuses what we refuse."""

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

# A few objects per kind, many at once: each call of kubectl costs a fifth of a second.
FEW = settings(
    max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], database=None
)


def holds(wanted: Any, found: Any) -> bool:
    """Whether everything wanted is found; Kubernetes adds defaults of its own to its own kinds."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(holds(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) >= len(wanted) and all(map(holds, wanted, found))
    return bool(wanted == found)


def sent(cluster: Cluster, data: Json, *verb: str) -> str:
    return cluster.kubectl(*(verb or ("apply",)), "-n", "default", "-f", "-", stdin=json.dumps(data), check=False)


def read(cluster: Cluster, kind: Kind[Any], name: str) -> Json:
    resource = f"{kind.plural}.v1.{kind.group}" if kind.group else kind.plural
    found: Json = json.loads(cluster.kubectl("get", resource, name, "-n", "default", "-o", "json"))
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example['kind']}-{example['metadata']['name']}")
def test_full_example_is_taken_and_comes_back(cluster_with_kinds: Cluster, example: Json) -> None:
    """A full object of each kind is stored by Kubernetes and read back as it was, with its status."""
    kind, name = KINDS.named(example["kind"]), example["metadata"]["name"]
    wanted = to_json(from_json(example, strict=True))

    answer = sent(cluster_with_kinds, wanted)
    back = read(cluster_with_kinds, kind, name)
    if "status" in wanted:
        resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        change = ["--subresource=status", "--type=merge", "-p", json.dumps({"status": wanted["status"]})]
        # The answer of this very write: a server that another test runs may write the status too.
        back = json.loads(cluster_with_kinds.kubectl("patch", resource, name, "-n", "default", *change, "-o", "json"))

    assert "created" in answer or "configured" in answer, answer
    assert holds(wanted, to_json(from_json(back)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.is_custom_resource], ids=lambda kind: kind.name)
@FEW
@given(data=st.data())
def test_whatever_we_write_is_taken(cluster_with_kinds: Cluster, kind: Kind[Any], data: st.DataObject) -> None:
    """Any object that passes our own checks is stored by Kubernetes unchanged."""
    drawn = data.draw(st.lists(kind_objects(kind.type), min_size=5, max_size=10, unique_by=lambda o: o.metadata.name))
    passing = [made for made in drawn if not (isinstance(made, HasCrossFieldRules) and list(made.faults()))]
    listed = {"apiVersion": "v1", "kind": "List", "items": [to_json(made) for made in passing]}

    answer = sent(cluster_with_kinds, listed, "replace", "--force") if passing else ""
    try:
        for made in passing:
            back = from_json(read(cluster_with_kinds, kind, made.metadata.name))
            assert back.spec == made.spec, answer
    finally:
        for made in passing:
            cluster_with_kinds.kubectl(
                "delete", f"{kind.plural}.{kind.group}", made.metadata.name, "-n", "default", "--ignore-not-found"
            )


def test_explain_reads_well(cluster_with_kinds: Cluster) -> None:
    """`kubectl explain` shows each field with our words."""
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
def test_wrong_object_is_refused_readably(
    cluster_with_kinds: Cluster, kind: str, name: str, spec: Json, text: str
) -> None:
    """`kubectl apply` of a wrong object says which field is wrong and what must hold there."""
    data = {"apiVersion": "aliquot.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}

    assert text in sent(cluster_with_kinds, data)


def test_type_is_filled_in(cluster_with_kinds: Cluster) -> None:
    """A workload without a type is training for selectors and columns too."""
    data = {"apiVersion": "aliquot.dev/v1", "kind": "Workload", "metadata": {"name": "bare"}}

    sent(cluster_with_kinds, data)
    listed = cluster_with_kinds.kubectl("get", "wl", "-n", "default", "--field-selector=spec.type=training")

    assert "bare" in listed
    assert listed.splitlines()[0].split() == ["NAME", "TYPE", "PHASE", "USER", "GPUS", "AGE"]


def test_every_selector_is_known_to_kubernetes(cluster_with_kinds: Cluster) -> None:
    """What we say can be selected by, Kubernetes selects by."""
    for kind in KINDS:
        resource = f"{kind.plural}.v1.{kind.group}" if kind.group else kind.plural
        for field in (*kind.selectable_fields, "metadata.name"):
            answer = cluster_with_kinds.kubectl(
                "get", resource, "-A", f"--field-selector={field}=false", "-o", "name", check=False
            )
            assert "not supported" not in answer, f"{kind.name} {field}"
            assert "not a known field" not in answer, f"{kind.name} {field}"


def test_unchanged_apply_changes_nothing(cluster_with_kinds: Cluster) -> None:
    """Sending the canonical form of an object again gives no new version."""
    data = to_json(from_json({**WORKLOAD, "metadata": {"name": "same"}, "status": {}}))
    sent(cluster_with_kinds, data)
    before = read(cluster_with_kinds, KINDS.named("Workload"), "same")

    assert "unchanged" in sent(cluster_with_kinds, data)
    assert read(cluster_with_kinds, KINDS.named("Workload"), "same") == before
