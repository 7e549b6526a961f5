"""The devices annotation: GPUs of nodes, and the shares that pods hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot import labels
from aliquot.api import Device, DeviceShare, Metadata, Mig, Node, Pod, devices_of, devices_text, shares_of, shares_text
from aliquot.api.node import NodeStatus
from aliquot.errors import Invalid
from support.objects import pod
from unit.api.any_object import records


def node_with_devices(text: str) -> Node:
    return Node(metadata=Metadata(name="n1", annotations={labels.DEVICES: text}))


def pod_with_devices(text: str) -> Pod:
    return pod("p1", annotations={labels.DEVICES: text})


@given(st.lists(records(Device), max_size=4, unique_by=lambda device: device.index))
def test_devices_come_back_equal(devices: list[Device]) -> None:
    """The devices of a node are read as they were written."""
    assert devices_of(node_with_devices(devices_text(devices))) == tuple(devices)


@given(st.lists(records(DeviceShare), max_size=4, unique_by=lambda share: share.index))
def test_shares_come_back_equal(shares: list[DeviceShare]) -> None:
    """The GPU shares of a pod are read as they were written."""
    assert shares_of(pod_with_devices(shares_text(shares))) == tuple(shares)


def test_annotation_has_the_documented_fields() -> None:
    """The annotation is an interface: index, uuid, model, memoryMiB, mig, healthy; index, milli, memoryMiB."""
    device = Device(
        index=1,
        uuid="GPU-1",
        model="A100",
        memory_mib=40960,
        mig=Mig(profiles={"1g.5gb": 2}, dynamic=True),
        healthy=False,
    )

    assert devices_text([device]) == (
        '[{"index":1,"uuid":"GPU-1","model":"A100","memoryMiB":40960,'
        '"mig":{"profiles":{"1g.5gb":2},"dynamic":true},"healthy":false}]'
    )
    assert shares_text([DeviceShare(index=0, milli=500, memory_mib=16255)]) == (
        '[{"index":0,"milli":500,"memoryMiB":16255}]'
    )


def test_devices_come_from_capacity_without_the_annotation() -> None:
    """A node with NVIDIA's device plugin alone gets its GPUs from its capacity and the discovery labels."""
    node_labels = {labels.GPU_PRODUCT: "Tesla-V100", labels.GPU_MEMORY: "32510"}
    status = NodeStatus(capacity={labels.GPU_RESOURCE: "2"}, allocatable={labels.GPU_RESOURCE: "1"})

    assert devices_of(Node(metadata=Metadata(name="n1", labels=node_labels), status=status)) == (
        Device(index=0, model="Tesla-V100", memory_mib=32510),
        Device(index=1, model="Tesla-V100", memory_mib=32510, healthy=False),
    )


@pytest.mark.parametrize(
    ("capacity", "count"), [({}, 0), ({labels.GPU_RESOURCE: "?"}, 0), ({labels.GPU_RESOURCE: "9G"}, 1024)]
)
def test_odd_capacity_does_no_harm(capacity: dict[str, str], count: int) -> None:
    """A capacity that is absent, malformed or absurd neither fails nor fills the memory."""
    assert len(devices_of(Node(metadata=Metadata(name="n1"), status=NodeStatus(capacity=capacity)))) == count


def test_pod_without_annotation_has_no_devices() -> None:
    """A pod that is not bound yet holds no GPUs."""
    assert shares_of(Pod(metadata=Metadata(name="p"))) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", "]: must be JSON: Expecting property name"),
        ("{}", "]: must be a list"),
        ("null", "]: must be a list, not None"),
        ("[1]", "][0]: must be an object, not 1"),
        ('[{"index": 0}]', "][0].milli: is required"),
        ('[{"index": -1, "milli": 5}]', "][0].index: must be at least 0, not -1"),
        ('[{"index": 0, "milli": 5}, {"index": 0, "milli": 6}]', "]: has GPU 0 twice"),
        ("[" * 100_000, "]: must be JSON: "),
        ("9" * 5000, "]: must be JSON: "),
    ],
)
def test_malformed_annotation_is_named(text: str, message: str) -> None:
    """The error about a malformed annotation names the pod, the annotation and the position in it."""
    with pytest.raises(Invalid) as caught:
        shares_of(pod_with_devices(text))

    assert str(caught.value).startswith(f"pod runai-a/p1: metadata.annotations['{labels.DEVICES}'{message}")
