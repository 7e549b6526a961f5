"""Reservation pods: which claims are live, and which GPU their log names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot import labels
from aliquot.api import DeviceShare, Metadata, Node, Pod, decode
from aliquot.api.pod import PodSpec, PodStatus
from aliquot.backends.kubernetes.reservations.pod import (
    GpuClaim,
    ReservedGpu,
    claims_annotation,
    devices_annotation,
    gpu_from_log,
    is_claim_live,
    manifest,
    read_claims,
    reservation_name,
)
from aliquot.backends.kubernetes.reservations.state import ReservationState, reservation_of
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from support.objects import pod

CLAIM = GpuClaim("p", "a", "7")


def sharing_pod(node: str = "", version: str = "7", phase: str = "", index: int = 0, uid: str = "u1") -> Pod:
    shares = [DeviceShare(index=index, milli=500)] if node else []
    return pod("p", namespace="a", uid=uid, version=version, node=node, phase=phase, shares=shares)


def reservation(phase: str = "Running", gpu: ReservedGpu | None = None, **metadata: object) -> Pod:
    meta = Metadata(
        name=reservation_name("n1", 3),
        namespace=labels.RESERVATION_NAMESPACE,
        annotations={labels.DEVICES: devices_annotation(3, gpu)},
        **metadata,  # type: ignore[arg-type]  # as the test says
    )
    return Pod(metadata=meta, spec=PodSpec(node_name="n1"), status=PodStatus(phase=phase))


@pytest.mark.parametrize(
    "now, live",
    [
        (sharing_pod(), True),  # pending and unchanged: the binding may still come
        (sharing_pod(version="8"), False),  # has changed: a binding of version 7 fails
        (sharing_pod("n1", version="9", phase="Running"), True),
        (sharing_pod("n1", version="9"), True),  # bound, not started
        (sharing_pod("n2", version="9"), False),  # bound elsewhere
        (sharing_pod("n1", version="9", index=1), False),  # another GPU of the node
        (sharing_pod("n1", phase="Succeeded"), False),
        (sharing_pod("n1", phase="Failed"), False),
        (sharing_pod(uid="u2"), False),  # a successor of the same name
        (None, False),
    ],
)
def test_live_claims(now: Pod | None, live: bool) -> None:
    """A claim is live while its pod has a share of the GPU, or can still be bound by the claim."""
    assert is_claim_live(CLAIM, "u1", now, "n1", 0) is live


def test_claims_annotation() -> None:
    """Claims survive a round trip; an annotation that cannot be parsed has no claims."""
    claimed = reservation()
    text = claims_annotation({"u1": CLAIM})
    claimed = replace(claimed, metadata=replace(claimed.metadata, annotations={labels.GPU_CLAIMS: text}))
    assert read_claims(claimed) == {"u1": CLAIM}

    for broken in ("", "[]", "x", '{"u1": 1}', '{"u1": {}}'):
        other = replace(claimed, metadata=replace(claimed.metadata, annotations={labels.GPU_CLAIMS: broken}))
        assert read_claims(other) == {}


@pytest.mark.parametrize(
    "lines, gpu",
    [
        (["aliquot-device GPU-1"], ReservedGpu("GPU-1")),
        (["aliquot-device GPU-1, 143771, 615", "aliquot-device GPU-1"], ReservedGpu("GPU-1", 143156)),
        # The variable has an index, a path or nothing; the driver shows one GPU.
        (["aliquot-device GPU-1, 1000, 10", "aliquot-device 0"], ReservedGpu("GPU-1", 990)),
        (["aliquot-device GPU-1, 1000, 10", "aliquot-device unknown"], ReservedGpu("GPU-1", 990)),
        (["aliquot-device GPU-1, [N/A], [N/A]", "aliquot-device GPU-1"], ReservedGpu("GPU-1")),
        # The driver shows all GPUs of the node, and the variable names one.
        (
            ["aliquot-device GPU-1, 10, 0", "aliquot-device GPU-2, 20, 0", "aliquot-device GPU-2"],
            ReservedGpu("GPU-2", 20),
        ),
        (["aliquot-device GPU-1, 10, 0", "aliquot-device GPU-2, 20, 0", "aliquot-device unknown"], None),
        (["aliquot-device unknown"], None),
        (["aliquot-device MIG-1"], None),
        (["something else"], None),
        ([], None),
    ],
)
def test_log_names_the_gpu(lines: list[str], gpu: ReservedGpu | None) -> None:
    """The GPU of a reservation is read from its log; None if the log is ambiguous."""
    assert gpu_from_log(lines) == gpu


def test_names() -> None:
    """The name is unique for a GPU of a node, and a valid pod name even for a very long node name."""
    long = "n" * 250
    assert reservation_name("n1", 3) == "gpu-3-n1"
    assert len(reservation_name(long, 3)) <= 253
    assert len({reservation_name(long, 3), reservation_name(long, 4), reservation_name(long + "x", 3)}) == 3


def test_manifest() -> None:
    """It requests one GPU of its node, tolerates all taints, and names the GPU's index."""
    node = Node(metadata=Metadata(name="n1", uid="nu"))
    pod_manifest = manifest(node, 3, {"u1": CLAIM}, GpuSharingSettings(image="i", runtime_class="nvidia"))
    spec, container = pod_manifest["spec"], pod_manifest["spec"]["containers"][0]

    assert (spec["nodeName"], spec["runtimeClassName"]) == ("n1", "nvidia")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert pod_manifest["metadata"]["ownerReferences"][0]["uid"] == "nu"
    assert "runtimeClassName" not in manifest(node, 3, {}, GpuSharingSettings())["spec"]
    held = reservation_of(decode(Pod, pod_manifest))
    assert held is not None
    assert (held.node, held.index, held.state) == ("n1", 3, ReservationState.PREPARING)


@pytest.mark.parametrize(
    "reservation_pod, state",
    [
        (reservation("Pending"), ReservationState.PREPARING),
        (reservation(), ReservationState.PREPARING),  # runs, but its GPU is not known yet
        (reservation(gpu=ReservedGpu("GPU-1")), ReservationState.HELD),
        (reservation(gpu=ReservedGpu("GPU-1"), deleted=1.0), ReservationState.LEAVING),
        (reservation("Failed"), ReservationState.LOST),
    ],
)
def test_states(reservation_pod: Pod, state: ReservationState) -> None:
    """The state follows from the pod's phase, its deletion and its UUID."""
    held = reservation_of(reservation_pod)
    assert held is not None
    assert (held.index, held.state) == (3, state)


def test_other_pods_are_no_reservations() -> None:
    """A pod with a GPU fraction is no reservation."""
    assert reservation_of(sharing_pod("n1")) is None
