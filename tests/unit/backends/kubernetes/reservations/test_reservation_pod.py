"""Pods that hold a shared GPU: whose claims are live, and which GPU their log names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot import labels
from aliquot.api import DeviceShare, Metadata, Node, Pod, decode, shares_text
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

CLAIM = GpuClaim("p", "a", "7")


def pod(node: str = "", version: str = "7", phase: str = "", index: int = 0, uid: str = "u1") -> Pod:
    marks = {labels.DEVICES: shares_text([DeviceShare(index=index, milli=500)])} if node else {}
    return Pod(
        metadata=Metadata(name="p", namespace="a", uid=uid, version=version, annotations=marks),
        spec=PodSpec(node_name=node),
        status=PodStatus(phase=phase),
    )


def reservation(phase: str = "Running", found: ReservedGpu | None = None, **metadata: object) -> Pod:
    place = Metadata(
        name=reservation_name("n1", 3),
        namespace=labels.RESERVATION_NAMESPACE,
        annotations={labels.DEVICES: devices_annotation(3, found)},
        **metadata,  # type: ignore[arg-type]  # as the test says
    )
    return Pod(metadata=place, spec=PodSpec(node_name="n1"), status=PodStatus(phase=phase))


@pytest.mark.parametrize(
    "now, live",
    [
        (pod(), True),  # waits as it did: the binding may come
        (pod(version="8"), False),  # has changed: a binding of version 7 fails
        (pod("n1", version="9", phase="Running"), True),
        (pod("n1", version="9"), True),  # bound, not started
        (pod("n2", version="9"), False),  # bound elsewhere
        (pod("n1", version="9", index=1), False),  # another GPU of the node
        (pod("n1", phase="Succeeded"), False),
        (pod("n1", phase="Failed"), False),
        (pod(uid="u2"), False),  # a successor of the same name
        (None, False),
    ],
)
def test_live_claims(now: Pod | None, live: bool) -> None:
    """A claim is live while its pod has a part of the GPU, or can still be bound by it."""
    assert is_claim_live(CLAIM, "u1", now, "n1", 0) is live


def test_claims_are_kept_on_the_pod() -> None:
    """What was written can be read; what cannot be read is nobody's claim."""
    marked = reservation()
    text = claims_annotation({"u1": CLAIM})
    marked = replace(marked, metadata=replace(marked.metadata, annotations={labels.GPU_CLAIMS: text}))
    assert read_claims(marked) == {"u1": CLAIM}

    for spoilt in ("", "[]", "x", '{"u1": 1}', '{"u1": {}}'):
        other = replace(marked, metadata=replace(marked.metadata, annotations={labels.GPU_CLAIMS: spoilt}))
        assert read_claims(other) == {}


@pytest.mark.parametrize(
    "lines, found",
    [
        (["aliquot-device GPU-1"], ReservedGpu("GPU-1")),
        (["aliquot-device GPU-1, 143771, 615", "aliquot-device GPU-1"], ReservedGpu("GPU-1", 143156)),
        # The variable has an index, a path or nothing; the driver shows one GPU.
        (["aliquot-device GPU-1, 1000, 10", "aliquot-device 0"], ReservedGpu("GPU-1", 990)),
        (["aliquot-device GPU-1, 1000, 10", "aliquot-device unknown"], ReservedGpu("GPU-1", 990)),
        (["aliquot-device GPU-1, [N/A], [N/A]", "aliquot-device GPU-1"], ReservedGpu("GPU-1")),
        # The driver shows all GPUs of the node, and the variable says which.
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
def test_log_names_the_gpu(lines: list[str], found: ReservedGpu | None) -> None:
    """Which GPU a reservation got is read from its log; where it is not clear, nothing is guessed."""
    assert gpu_from_log(lines) == found


def test_names() -> None:
    """A GPU of a node has one name, which is that of a pod also where the node's is very long."""
    long = "n" * 250
    assert reservation_name("n1", 3) == "gpu-3-n1"
    assert len(reservation_name(long, 3)) <= 253
    assert len({reservation_name(long, 3), reservation_name(long, 4), reservation_name(long + "x", 3)}) == 3


def test_manifest() -> None:
    """It holds one GPU of its node, is nobody's to preempt, and says which GPU it is in our count."""
    node = Node(metadata=Metadata(name="n1", uid="nu"))
    made = manifest(node, 3, {"u1": CLAIM}, GpuSharingSettings(image="i", runtime_class="nvidia"))
    spec, container = made["spec"], made["spec"]["containers"][0]

    assert (spec["nodeName"], spec["runtimeClassName"]) == ("n1", "nvidia")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "nu"
    assert "runtimeClassName" not in manifest(node, 3, {}, GpuSharingSettings())["spec"]
    seen = reservation_of(decode(Pod, made))
    assert seen is not None
    assert (seen.node, seen.index, seen.state) == ("n1", 3, ReservationState.PREPARING)


@pytest.mark.parametrize(
    "seen, state",
    [
        (reservation("Pending"), ReservationState.PREPARING),
        (reservation(), ReservationState.PREPARING),  # runs, and nobody knows its GPU yet
        (reservation(found=ReservedGpu("GPU-1")), ReservationState.HELD),
        (reservation(found=ReservedGpu("GPU-1"), deleted=1.0), ReservationState.LEAVING),
        (reservation("Failed"), ReservationState.LOST),
    ],
)
def test_states(seen: Pod, state: ReservationState) -> None:
    """How far a reservation is."""
    held = reservation_of(seen)
    assert held is not None
    assert (held.index, held.state) == (3, state)


def test_others_hold_nothing_for_anybody() -> None:
    """A pod with a part of a GPU is no reservation."""
    assert reservation_of(pod("n1")) is None
