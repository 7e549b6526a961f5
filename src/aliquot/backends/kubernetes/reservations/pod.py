"""The reservation pod as data: its manifest, the claims on its GPU, and the GPU that its log reports.

There is at most one per GPU of a node, because its name says which: if two schedulers want the same GPU, the second
finds the pod of the first. A *claim* is written on it before a pod with a fraction is bound, with the version of that
pod that the binding will name. So a claim is over once the pod is deleted, has ended, is bound elsewhere, or is pending
with another version: no binding can use the claim any more.
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

# Above every priority that a user's pod can have, so that no scheduler preempts it. It is not one of Kubernetes' own
# critical classes: for those a kubelet evicts other pods, but a GPU that is not free must be refused.
PRIORITY_CLASS_NAME = "runai-reservation"
_MAX_PRIORITY = 1_000_000_000
_MAX_NAME_LENGTH = 253
_LOG_PREFIX = "aliquot-device"  # of each log line that names a GPU
# NVIDIA's device plugin names the assigned GPU in a variable; where it does not (CDI, indices), the driver lists it.
_SCRIPT = f"""trap 'exit 0' TERM INT
if command -v nvidia-smi >/dev/null 2>&1; then
  nvidia-smi --query-gpu=uuid,memory.total,memory.reserved --format=csv,noheader,nounits | sed 's/^/{_LOG_PREFIX} /'
fi
echo "{_LOG_PREFIX} ${{NVIDIA_VISIBLE_DEVICES:-unknown}}"
while :; do sleep 3600 & wait; done
"""


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """The claim of one pod with a fraction on the GPU of a reservation pod."""

    name: str
    namespace: str
    # The pod's version when the scheduler chose its node.
    version: str


@dataclass(frozen=True, slots=True)
class ReservedGpu:
    """The GPU that a node assigned to a reservation pod."""

    uuid: str
    # 0 if the driver did not report it.
    memory_mib: int = 0


def reservation_name(node: str, index: int) -> str:
    name = f"gpu-{index}-{node}"
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    return name[: _MAX_NAME_LENGTH - 11].rstrip("-.") + "-" + hashlib.sha256(node.encode()).hexdigest()[:10]


def devices_annotation(index: int, gpu: ReservedGpu | None = None) -> str:
    """The value of the annotation that names the GPU it holds."""
    gpu = gpu or ReservedGpu("")
    return shares_text([DeviceShare(index=index, milli=GPU, uuid=gpu.uuid, memory_mib=gpu.memory_mib)])


def claim_for(pod: Pod) -> tuple[str, GpuClaim]:
    """The uid of the pod, and the claim it makes."""
    meta = pod.metadata
    return meta.uid, GpuClaim(meta.name, meta.namespace, meta.version)


def read_claims(pod: Pod) -> dict[str, GpuClaim]:
    """The claims on a reservation pod, by the uid of the claimant; empty if they cannot be parsed."""
    try:
        data = json.loads(pod.metadata.annotations.get(labels.GPU_CLAIMS) or "{}")
        return {
            uid: GpuClaim(str(claim["name"]), str(claim["namespace"]), str(claim["version"]))
            for uid, claim in data.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def claims_annotation(claims: Mapping[str, GpuClaim]) -> str:
    data = {
        uid: {"name": claim.name, "namespace": claim.namespace, "version": claim.version}
        for uid, claim in claims.items()
    }
    return json.dumps(data, separators=(",", ":"))


def is_claim_live(claim: GpuClaim, uid: str, pod: Pod | None, node: str, index: int) -> bool:
    """Whether a pod has a share of this GPU, or can still be bound by its claim. `pod` is the current version."""
    if pod is None or pod.metadata.uid != uid or pod.status.phase in ("Succeeded", "Failed"):
        return False
    if not pod.spec.node_name:
        return pod.metadata.version == claim.version
    return has_share_of(pod, node, index)


def has_share_of(pod: Pod, node: str, index: int) -> bool:
    """Whether a pod is bound with a share of this GPU."""
    return pod.spec.node_name == node and any(share.index == index for share in shares_held(pod))


def shares_held(pod: Pod) -> tuple[DeviceShare, ...]:
    """The device shares of a pod; empty if they cannot be parsed."""
    try:
        return shares_of(pod)
    except Invalid:
        return ()


def gpu_from_log(lines: Iterable[str]) -> ReservedGpu | None:
    """The GPU that the log names; None if it names none, or more than one."""
    named: set[str] = set()
    memory_mib: dict[str, int] = {}
    for line in lines:
        prefix, _, rest = line.strip().partition(" ")
        if prefix != _LOG_PREFIX:
            continue
        uuid, *amounts = (field.strip() for field in rest.split(","))
        if not uuid.startswith("GPU-"):
            continue
        if amounts:
            memory_mib[uuid] = _usable_mib(amounts)
        else:
            named.add(uuid)
    candidates = named or set(memory_mib)
    if len(candidates) != 1:
        return None
    uuid = candidates.pop()
    return ReservedGpu(uuid, memory_mib.get(uuid, 0))


def _usable_mib(amounts: list[str]) -> int:
    """Memory that programs can use: the total, less what the driver reserves."""
    try:
        total, reserved = (int(amount) for amount in amounts)
    except ValueError:
        return 0
    return max(0, total - reserved)


def simulated_gpu(node: str, index: int) -> ReservedGpu:
    """On a node with simulated GPUs no log names one."""
    return ReservedGpu(f"simulated-{node}-{index}")


def is_simulated(node: Node) -> bool:
    return node.metadata.labels.get(labels.SIMULATED) == "true"


def failure_reason(pod: Pod) -> str:
    """Why a reservation pod does not hold its GPU, as far as the node reports it."""
    if pod.status.message or pod.status.reason:
        return pod.status.message or pod.status.reason
    if pod.status.phase == "Running":
        return f"pod {pod.metadata.namespace}/{pod.metadata.name} does not report which GPU it has: see its log"
    waiting = next((status.state.waiting for status in pod.status.container_statuses if status.state.waiting), None)
    return (waiting.message or waiting.reason) if waiting else "its pod does not run yet"


def manifest(node: Node, index: int, claims: Mapping[str, GpuClaim], settings: GpuSharingSettings) -> Json:
    meta = node.metadata
    annotations = {
        labels.DEVICES: devices_annotation(index),
        labels.GPU_CLAIMS: claims_annotation(claims),
        # It lives as long as the pods that share its GPU; autoscalers must not move it.
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
    # The node is its controller: the pod is deleted with the node, and `kubectl drain` may evict it like other pods.
    owner = {"apiVersion": "v1", "kind": "Node", "name": meta.name, "uid": meta.uid, "controller": True}
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
        "nodeName": meta.name,  # the scheduler has already chosen the GPU
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
        "name": reservation_name(meta.name, index),
        "namespace": labels.RESERVATION_NAMESPACE,
        "labels": {labels.RESERVATION: "true", "app.kubernetes.io/managed-by": "aliquot"},
        "annotations": annotations,
        "ownerReferences": [owner],
    }
    return {"metadata": metadata, "spec": spec}


def priority_class() -> Json:
    return {
        "metadata": {"name": PRIORITY_CLASS_NAME},
        "value": _MAX_PRIORITY,
        "preemptionPolicy": "Never",
        "description": "Pods that hold a GPU for the pods that share it.",
    }
