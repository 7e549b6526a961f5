"""The pod that holds a shared GPU, as data: what it is made of, who claims its GPU, and what it says in its log.

There is at most one for each GPU that we count on a node, because its name says which: of two schedulers that want the
same GPU the second finds the pod of the first. A *claim* is written on it before a pod with a part is bound, with
the version of that pod that the binding will be tied to. So a claim is over once the pod is gone, has ended, is bound
elsewhere, or waits with another version; nobody can then still bind it by this claim.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aliquot import labels
from aliquot.api import DeviceShare, Json, Node, Pod, shares_of, shares_text
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.errors import Invalid
from aliquot.units import GPU

# Above every other pod a user can make, so that no scheduler stops it for another. Not one of Kubernetes' own critical
# classes: for those a kubelet ends other pods to make room, and a GPU that is not free must be refused instead.
PRIORITY_CLASS_NAME = "runai-reservation"
_HIGHEST = 1_000_000_000
_LONGEST_NAME = 253
_SAYS = "aliquot-device"  # begins each line of its log that names a GPU
# Which GPU it got: NVIDIA's device plugin says it in a variable; where it does not (CDI, indices), the driver does.
_SCRIPT = f"""trap 'exit 0' TERM INT
if command -v nvidia-smi >/dev/null 2>&1; then
  nvidia-smi --query-gpu=uuid,memory.total,memory.reserved --format=csv,noheader,nounits | sed 's/^/{_SAYS} /'
fi
echo "{_SAYS} ${{NVIDIA_VISIBLE_DEVICES:-unknown}}"
while :; do sleep 3600 & wait; done
"""


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """Of one pod with a part, on the GPU that a reservation pod holds."""

    name: str
    namespace: str
    # Of the pod when it was decided where it goes.
    version: str


@dataclass(frozen=True, slots=True)
class ReservedGpu:
    """The GPU that a reservation pod got."""

    uuid: str
    # 0: the driver did not say.
    memory_mib: int = 0


def reservation_name(node: str, index: int) -> str:
    name = f"gpu-{index}-{node}"
    if len(name) <= _LONGEST_NAME:
        return name
    return name[: _LONGEST_NAME - 11].rstrip("-.") + "-" + hashlib.sha256(node.encode()).hexdigest()[:10]


def devices_annotation(index: int, found: ReservedGpu | None = None) -> str:
    """The annotation that says what it holds."""
    found = found or ReservedGpu("")
    return shares_text([DeviceShare(index=index, milli=GPU, uuid=found.uuid, memory_mib=found.memory_mib)])


def claim_for(pod: Pod) -> tuple[str, GpuClaim]:
    place = pod.metadata
    return place.uid, GpuClaim(place.name, place.namespace, place.version)


def read_claims(pod: Pod) -> dict[str, GpuClaim]:
    """By the uid of the pod that claims; what cannot be read is nobody's."""
    try:
        said = json.loads(pod.metadata.annotations.get(labels.GPU_CLAIMS) or "{}")
        return {
            uid: GpuClaim(*(str(one[key]) for key in ("name", "namespace", "version"))) for uid, one in said.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def claims_annotation(claims: Mapping[str, GpuClaim]) -> str:
    said = {uid: {"name": one.name, "namespace": one.namespace, "version": one.version} for uid, one in claims.items()}
    return json.dumps(said, separators=(",", ":"))


def is_claim_live(claim: GpuClaim, uid: str, pod: Pod | None, node: str, index: int) -> bool:
    """Whether a pod has a part of this GPU, or can still get one by its claim. `pod` is as the cluster has it now."""
    if pod is None or pod.metadata.uid != uid or pod.status.phase in ("Succeeded", "Failed"):
        return False
    if not pod.spec.node_name:
        return pod.metadata.version == claim.version
    return has_share_of(pod, node, index)


def has_share_of(pod: Pod, node: str, index: int) -> bool:
    """Whether a bound pod was given something of this GPU."""
    return pod.spec.node_name == node and any(share.index == index for share in shares_held(pod))


def shares_held(pod: Pod) -> tuple[DeviceShare, ...]:
    """What a pod was given of GPUs; nothing where that cannot be read."""
    try:
        return shares_of(pod)
    except Invalid:
        return ()


def gpu_from_log(lines: Iterable[str]) -> ReservedGpu | None:
    """The GPU that its log names; None when it does not, or not clearly."""
    named: list[str] = []
    sizes: dict[str, int] = {}
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        if word != _SAYS:
            continue
        uuid, *amounts = (part.strip() for part in rest.split(","))
        if not uuid.startswith("GPU-"):
            continue
        if amounts:
            sizes[uuid] = _usable(amounts)
        else:
            named.append(uuid)
    seen = set(named) or set(sizes)
    if len(seen) != 1:
        return None
    uuid = seen.pop()
    return ReservedGpu(uuid, sizes.get(uuid, 0))


def _usable(amounts: list[str]) -> int:
    """MiB that programs can have: all, less what the driver keeps."""
    try:
        total, reserved = (int(amount) for amount in amounts)
    except ValueError:
        return 0
    return max(0, total - reserved)


def simulated_gpu(node: str, index: int) -> ReservedGpu:
    """On a node whose GPUs do not exist nobody says anything."""
    return ReservedGpu(f"simulated-{node}-{index}")


def is_simulated(node: Node) -> bool:
    return node.metadata.labels.get(labels.SIMULATED) == "true"


def failure_reason(pod: Pod) -> str:
    """Why it does not hold its GPU, as far as the node says."""
    if pod.status.message or pod.status.reason:
        return pod.status.message or pod.status.reason
    if pod.status.phase == "Running":
        return f"pod {pod.metadata.namespace}/{pod.metadata.name} does not say which GPU it has: see its log"
    waiting = (one.state.waiting for one in pod.status.container_statuses if one.state.waiting)
    said = next(waiting, None)
    return (said.message or said.reason) if said else "its pod does not run yet"


def manifest(node: Node, index: int, claims: Mapping[str, GpuClaim], settings: GpuSharingSettings) -> Json:
    place = node.metadata
    marks = {
        labels.DEVICES: devices_annotation(index),
        labels.GPU_CLAIMS: claims_annotation(claims),
        # It goes when those who share its GPU go, and nobody else is to move it.
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
    # The node as its controller: it goes with the node, and `kubectl drain` may evict it like other pods.
    owner = {"apiVersion": "v1", "kind": "Node", "name": place.name, "uid": place.uid, "controller": True}
    container = {
        "name": "hold",
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["/bin/sh", "-c", _SCRIPT],
        "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"}],
        "resources": {
            "requests": {"cpu": "1m", "memory": "16Mi"},
            "limits": {labels.GPU_RESOURCE: "1"},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: Json = {
        "nodeName": place.name,  # the GPU is on this node; there is nothing left to decide
        "schedulerName": labels.SCHEDULER_NAMES[0],
        "priorityClassName": PRIORITY_CLASS_NAME,
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 2,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
    }
    if settings.runtime_class:
        spec["runtimeClassName"] = settings.runtime_class
    metadata = {
        "name": reservation_name(place.name, index),
        "namespace": labels.RESERVATION_NAMESPACE,
        "labels": {labels.RESERVATION: "true", "app.kubernetes.io/managed-by": "aliquot"},
        "annotations": marks,
        "ownerReferences": [owner],
    }
    return {"metadata": metadata, "spec": spec}


def priority_class() -> Json:
    return {
        "metadata": {"name": PRIORITY_CLASS_NAME},
        "value": _HIGHEST,
        "preemptionPolicy": "Never",
        "description": "Pods that hold a GPU for those who share it.",
    }
