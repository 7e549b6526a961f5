"""Node objects built from facts."""

from __future__ import annotations

from aliquot import labels
from aliquot.api import Device, devices_of, from_json, to_json
from aliquot.backends.local.devices.node_devices import NodeFacts, label_value, node_object

V100 = "Tesla V100-SXM2-32GB"
FACTS = NodeFacts(
    name="dgx1-1",
    labels={"run.ai/type": "dgx-1"},
    devices=tuple(Device(index=i, uuid=f"GPU-{i}", model=V100, memory_mib=32510) for i in range(8)),
    cpu=80_000,
    memory=512 << 30,
    pods=256,
    simulated=True,
)


def test_a_node_lists_what_it_has() -> None:
    """A node lists its GPUs, cores, memory and the number of pods it accepts."""
    node = node_object(FACTS)

    wanted = {"cpu": "80", "memory": "512Gi", "pods": "256", labels.GPU_RESOURCE: "8"}
    assert dict(node.status.capacity) == dict(node.status.allocatable) == wanted


def test_a_node_carries_its_devices_exactly() -> None:
    """The GPUs that are read back from a node are the ones it was built from, also through JSON."""
    assert devices_of(from_json(to_json(node_object(FACTS)), strict=True)) == FACTS.devices


def test_a_node_has_the_labels_of_gpu_feature_discovery() -> None:
    """Product, number and memory of the GPUs are labels, next to the node's own labels."""
    node_labels = node_object(FACTS).metadata.labels

    assert node_labels[labels.GPU_PRODUCT] == "Tesla-V100-SXM2-32GB"
    assert (node_labels[labels.GPU_COUNT], node_labels[labels.GPU_MEMORY]) == ("8", "32510")
    assert node_labels["run.ai/type"] == "dgx-1"


def test_a_simulated_node_says_so() -> None:
    """A simulated node has a label and a condition that say so."""
    node = node_object(FACTS)

    assert node.metadata.labels[labels.SIMULATED] == "true"
    assert "simulated" in node.status.conditions[0].message


def test_a_simulated_node_does_not_enforce_limits() -> None:
    """The condition about GPU sharing says that the GPUs are simulated."""
    (sharing,) = (condition for condition in node_object(FACTS).status.conditions if condition.type == "GPUSharing")

    assert (sharing.status, sharing.reason) == ("False", "Simulated")
    assert sharing.message.startswith("simulated: ")


def test_a_real_node_cannot_be_labelled_as_simulated() -> None:
    """The label follows from the facts, whatever labels the node is given."""
    facts = NodeFacts(name="real", labels={labels.SIMULATED: "true"})

    assert labels.SIMULATED not in node_object(facts).metadata.labels


def test_a_node_is_ready_with_a_heartbeat() -> None:
    """The condition Ready is true and carries the time it was given."""
    ready = node_object(FACTS, now=1000.0).status.conditions[0]

    assert (ready.type, ready.status, ready.last_heartbeat_time) == ("Ready", "True", 1000.0)


def test_unhealthy_gpus_are_not_allocatable() -> None:
    """An unhealthy GPU counts as capacity, but is not allocatable."""
    sick = Device(index=1, model=V100, memory_mib=32510, healthy=False)
    node = node_object(NodeFacts(name="n", devices=(FACTS.devices[0], sick)))

    assert node.status.capacity[labels.GPU_RESOURCE] == "2"
    assert node.status.allocatable[labels.GPU_RESOURCE] == "1"


def test_a_node_without_gpus() -> None:
    """A node without GPUs has none, and no GPU labels; fractions of a core are kept."""
    node = node_object(NodeFacts(name="n", cpu=1500))

    assert (node.status.capacity[labels.GPU_RESOURCE], node.status.capacity["cpu"]) == ("0", "1500m")
    assert labels.GPU_PRODUCT not in node.metadata.labels
    assert devices_of(node) == ()


def test_label_values_are_within_the_rules() -> None:
    """Any text becomes a valid label value."""
    assert label_value("NVIDIA GeForce RTX 4090 (Laptop)") == "NVIDIA-GeForce-RTX-4090-Laptop"
    assert len(label_value("x" * 100)) == 63
