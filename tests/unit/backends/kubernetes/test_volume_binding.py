"""Which nodes a pod's volumes allow, and the minimum size of other projects' gangs."""

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
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if node else {}
    defaults = {"storageClassName": "local", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}
    return Volume.of(
        Document({"metadata": {"name": name}, "spec": {**defaults, **affinity, **spec}, "status": {"phase": phase}})
    )


def storage_class(name: str, **fields: Any) -> StorageClass:
    return StorageClass.of(Document({"metadata": {"name": name}, **fields}))


WAITS = {"volumeBindingMode": "WaitForFirstConsumer"}
ZONE = {"key": "z", "values": ["a"]}
CLASSES = [
    storage_class("now", provisioner="x"),
    storage_class("later", provisioner="x", **WAITS),
    storage_class("zoned", provisioner="x", **WAITS, allowedTopologies=[{"matchLabelExpressions": [ZONE]}]),
    storage_class("local", provisioner="kubernetes.io/no-provisioner", **WAITS),
]


def claim(storage: str = "local", bound: str = "", annotations: dict[str, str] | None = None, phase: str = "") -> Claim:
    spec = {
        "storageClassName": storage, "volumeName": bound, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
    }  # fmt: skip
    metadata = {"name": "data", "namespace": "ns", "annotations": annotations or {}}
    return decode(Claim, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def constraints(existing: Claim | None, *volumes: Volume) -> Any:
    by_name = {volume.name: volume for volume in volumes}
    storage = Storage(lambda name, namespace: existing, by_name.get, lambda: iter(volumes), lambda: iter(CLASSES))
    return node_requirements(POD, storage)


def at(node: str) -> tuple[NodeSelectorRequirement, ...]:
    return (NodeSelectorRequirement("host", "In", (node,)),)


@pytest.mark.parametrize(
    ("existing", "volumes", "node"),
    [
        (claim(bound="v"), [volume("v", "n1", phase="Bound")], ((at("n1"),),)),
        (claim(bound="v"), [volume("v", phase="Bound")], ()),
        (claim("later"), [], ()),
        (claim("zoned"), [], (((NodeSelectorRequirement("z", "In", ("a",)),),),)),
        (claim("later", annotations={SELECTED_NODE: "n3"}), [], (((NodeSelectorRequirement("", "In", ("n3",)),),),)),
        (claim(), [volume("v", "n1"), volume("w", "n2")], ((at("n1"), at("n2")),)),
        (claim(), [volume("v", "n1"), volume("w")], ()),
    ],
    ids=[
        "bound",
        "bound anywhere",
        "provisioned",
        "provisioned in a zone",
        "being provisioned",
        "several",
        "one anywhere",
    ],
)
def test_nodes_of_a_claim(existing: Claim, volumes: list[Volume], node: Any) -> None:
    """The node must reach the claim's volume, or one of the volumes that it could be bound to."""
    result = constraints(existing, *volumes)
    assert (result.node, result.hindrance) == (node, "")


@pytest.mark.parametrize(
    ("existing", "volumes", "message"),
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
def test_claim_without_a_volume(existing: Claim | None, volumes: list[Volume], message: str) -> None:
    """The pod waits, with the reason."""
    assert message in constraints(existing, *volumes).hindrance


def test_pod_without_claims() -> None:
    """Other kinds of volumes do not restrict nodes."""
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
def test_gang_minimum(spec: dict[str, Any], minimum: int | None) -> None:
    """Pod groups state the minimum; for frameworks it is all replicas, unless their policy states fewer."""
    assert gang_minimum({"spec": spec}) == minimum
