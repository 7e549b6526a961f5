"""Which nodes will do for what a pod mounts, and what gangs of other projects say about themselves."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.api import Claim, Pod, decode
from aliquot.backends.kubernetes.scheduling_context import gang_minimum
from aliquot.backends.kubernetes.volume_binding import SELECTED_NODE, Storage, StorageClass, Volume, node_requirements
from aliquot.planner import NodeSelectorRequirement
from aliquot.store.driver import Document

POD = decode(
    Pod,
    {
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {
            "containers": [{"name": "main"}],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "e", "emptyDir": {}}],
        },
    },
)


def volume(name: str, node: str = "", size: str = "10Gi", phase: str = "Available", **spec: Any) -> Volume:
    terms = [{"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]}]
    place = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if node else {}
    known = {"storageClassName": "local", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}
    return Volume.of(
        Document({"metadata": {"name": name}, "spec": {**known, **place, **spec}, "status": {"phase": phase}})
    )


def kind(name: str, **more: Any) -> StorageClass:
    return StorageClass.of(Document({"metadata": {"name": name}, **more}))


WAITS = {"volumeBindingMode": "WaitForFirstConsumer"}
ZONE = {"key": "z", "values": ["a"]}
CLASSES = [
    kind("now", provisioner="x"),
    kind("later", provisioner="x", **WAITS),
    kind("zoned", provisioner="x", **WAITS, allowedTopologies=[{"matchLabelExpressions": [ZONE]}]),
    kind("local", provisioner="kubernetes.io/no-provisioner", **WAITS),
]


def claim(storage: str = "local", bound: str = "", marks: dict[str, str] | None = None, phase: str = "") -> Claim:
    spec = {
        "storageClassName": storage, "volumeName": bound, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
    }  # fmt: skip
    place = {"name": "data", "namespace": "ns", "annotations": marks or {}}
    return decode(Claim, {"metadata": place, "spec": spec, "status": {"phase": phase}})


def places(there: Claim | None, *volumes: Volume) -> Any:
    named = {one.name: one for one in volumes}
    storage = Storage(lambda name, namespace: there, named.get, lambda: iter(volumes), lambda: iter(CLASSES))
    return node_requirements(POD, storage)


def at(node: str) -> tuple[NodeSelectorRequirement, ...]:
    return (NodeSelectorRequirement("host", "In", (node,)),)


@pytest.mark.parametrize(
    ("there", "volumes", "node"),
    [
        (claim(bound="v"), [volume("v", "n1", phase="Bound")], ((at("n1"),),)),
        (claim(bound="v"), [volume("v", phase="Bound")], ()),
        (claim("later"), [], ()),
        (claim("zoned"), [], (((NodeSelectorRequirement("z", "In", ("a",)),),),)),
        (claim("later", marks={SELECTED_NODE: "n3"}), [], (((NodeSelectorRequirement("", "In", ("n3",)),),),)),
        (claim(), [volume("v", "n1"), volume("w", "n2")], ((at("n1"), at("n2")),)),
        (claim(), [volume("v", "n1"), volume("w")], ()),
    ],
    ids=["bound", "bound anywhere", "made later", "made in a zone", "being made", "one of several", "one is anywhere"],
)
def test_places_of_a_claim(there: Claim, volumes: list[Volume], node: Any) -> None:
    """The node must reach the volume, or one of those that could become the claim's."""
    found = places(there, *volumes)
    assert (found.node, found.hindrance) == (node, "")


@pytest.mark.parametrize(
    ("there", "volumes", "words"),
    [
        (None, [], "volume claim data does not exist"),
        (claim("now"), [], "has no volume yet"),
        (claim("nobody"), [], "has no volume yet"),
        (claim(bound="v"), [], "volume v of claim data does not exist"),
        (claim(bound="v", phase="Lost"), [], "is gone"),
        (claim(), [volume("v", "n1", size="1Gi")], "large enough"),
        (claim(), [volume("v", "n1", phase="Bound")], "large enough"),
        (claim(), [volume("v", "n1", accessModes=["ReadOnlyMany"])], "large enough"),
        (claim(), [volume("v", "n1", storageClassName="other")], "large enough"),
    ],
)
def test_why_a_claim_cannot_be_had(there: Claim | None, volumes: list[Volume], words: str) -> None:
    """The pod waits, and says what it waits for."""
    assert words in places(there, *volumes).hindrance


def test_pod_without_claims_goes_anywhere() -> None:
    """Volumes of other sorts say nothing about nodes."""
    bare = decode(Pod, {"metadata": {"name": "p"}, "spec": {"volumes": [{"name": "e", "emptyDir": {}}]}})
    storage = Storage(lambda name, namespace: None, lambda name: None, lambda: iter(()), lambda: iter(()))
    assert node_requirements(bare, storage).node == ()


@pytest.mark.parametrize(
    ("spec", "minimum"),
    [
        ({"minMember": 4}, 4),
        ({"schedulingPolicy": {"gang": {"minCount": 3}}}, 3),
        ({"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 7}}}, 8),
        ({"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}}, 3),
        (
            {
                "pytorchReplicaSpecs": {"Worker": {"replicas": 8}},
                "runPolicy": {"schedulingPolicy": {"minAvailable": 2}},
            },
            2,
        ),
        ({}, None),
        ({"minMember": "many"}, None),
    ],
)
def test_minimum_of_other_projects_gangs(spec: dict[str, Any], minimum: int | None) -> None:
    """Pod groups say it; of frameworks it is all replicas unless their policy says fewer."""
    assert gang_minimum({"spec": spec}) == minimum
