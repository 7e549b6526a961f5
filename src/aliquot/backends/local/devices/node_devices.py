"""What a node has, and what a pod on it is given of its GPUs.

    NodeFacts     one node: name, labels, GPUs, cores, memory
    Devices       the source of nodes: the driver (real.py) or a description (simulated.py)
    node_object   facts -> the Node that the store keeps

One agent serves every node of its `Devices`: a real machine is one node, a simulated cluster is several.
"""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import aliquot
from aliquot import labels, units
from aliquot.api import Device, DeviceShare, Metadata, Node, devices_text
from aliquot.api.node import Address, NodeCondition, NodeInfo, NodeStatus
from aliquot.gpu.fractions import SharingOptions
from aliquot.gpu.injection import Injection

DEFAULT_PODS = 110  # the kubelet's default, so that both back ends stop at the same number


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What one node has."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    # Thousandths of a core.
    cpu: int = 0
    # Bytes.
    memory: int = 0
    pods: int = DEFAULT_PODS
    simulated: bool = False
    # What enforces the limits of GPU fractions (an `Enforcement` value), and why; empty where there are no GPUs.
    sharing: str = ""
    sharing_reason: str = ""
    # Why the sharing library is too old for the driver; empty: no sign of it so far.
    shim_outdated: str = ""
    # Compute utilization of each GPU in percent, in their order; None where it is not measured.
    utilization: tuple[int, ...] | None = None


class Devices(Protocol):
    """Nodes and their GPUs, and what a pod is given of them."""

    def nodes(self) -> tuple[NodeFacts, ...]:
        """Every node, as it is now: the health of GPUs may differ from one call to the next."""
        ...

    def injection(self, node: str, shares: Sequence[DeviceShare], options: SharingOptions, pod_uid: str) -> Injection:
        """What a pod with these shares is given; without any, what hides every GPU.

        `CannotStart` when the limits of a GPU fraction cannot be enforced.
        """
        ...

    def release(self, pod_uid: str) -> None:
        """Remove what was made for a pod. Nothing of the pod is alive."""
        ...

    def sweep(self, live_pods: Container[str]) -> None:
        """At the agent's start: remove what was made for pods whose uids are not among these."""
        ...


def node_object(facts: NodeFacts, *, now: float | None = None) -> Node:
    """The Node to store. `now` is the time of its conditions; without it they carry none."""
    capacity = _amounts(facts, len(facts.devices))
    allocatable = _amounts(facts, sum(device.healthy for device in facts.devices))
    message = "simulated: its GPUs do not exist" if facts.simulated else "the agent runs here"
    conditions = (_condition("Ready", True, "AgentReady", message, now), *_sharing_conditions(facts, now))
    addresses = (Address(type="InternalIP", address="127.0.0.1"), Address(type="Hostname", address=facts.name))
    return Node(
        metadata=Metadata(name=facts.name, labels=_labels(facts), annotations=_annotations(facts)),
        status=NodeStatus(
            capacity=capacity,
            allocatable=allocatable,
            conditions=conditions,
            addresses=addresses,
            node_info=_info(),
        ),
    )


def _annotations(facts: NodeFacts) -> dict[str, str]:
    annotations = {labels.DEVICES: devices_text(facts.devices)}
    if facts.utilization is not None:
        annotations[labels.GPU_UTILIZATION] = ",".join(map(str, facts.utilization))
    return annotations


def _sharing_conditions(facts: NodeFacts, now: float | None) -> Iterator[NodeCondition]:
    if facts.simulated and facts.devices:
        message = "simulated: nothing is limited, and nvidia-smi prints the fractions that were given"
        yield _condition("GPUSharing", False, "Simulated", message, now)
    elif facts.sharing:
        shared = facts.sharing != "none"
        yield _condition("GPUSharing", shared, facts.sharing.capitalize(), facts.sharing_reason, now)
        if shared:
            outdated = bool(facts.shim_outdated)
            reason = "UnknownEntryPoint" if outdated else "NoneUnknown"
            message = facts.shim_outdated or "no program has called an entry point that the library does not know"
            yield _condition("ShimOutdated", outdated, reason, message, now)


def _condition(kind: str, holds: bool, reason: str, message: str, now: float | None) -> NodeCondition:
    return NodeCondition(
        type=kind,
        status="True" if holds else "False",
        reason=reason,
        message=message,
        last_heartbeat_time=now,
        last_transition_time=now,
    )


def cpu_milli() -> int:
    """Thousandths of a core that this process may use, which is what its pods get."""
    return 1000 * len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """The total RAM of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _amounts(facts: NodeFacts, gpus: int) -> dict[str, str]:
    cpu = f"{facts.cpu}m" if facts.cpu % 1000 else str(facts.cpu // 1000)
    return {
        "cpu": cpu,
        "memory": units.quantity_text(facts.memory),
        "pods": str(facts.pods),
        labels.GPU_RESOURCE: str(gpus),
    }


def _labels(facts: NodeFacts) -> dict[str, str]:
    """The node's own labels win, except over the label for simulated nodes: that is never hidden."""
    merged = {"kubernetes.io/hostname": facts.name, "kubernetes.io/os": "linux"} | _gpu_labels(facts.devices)
    merged |= facts.labels
    merged.pop(labels.SIMULATED, None)
    return merged | ({labels.SIMULATED: "true"} if facts.simulated else {})


def _gpu_labels(devices: Sequence[Device]) -> dict[str, str]:
    """The labels of NVIDIA's GPU feature discovery: one product per node, the most frequent."""
    if not devices:
        return {}
    model = Counter(device.model for device in devices).most_common(1)[0][0]
    memory_mib = min(device.memory_mib for device in devices if device.model == model)
    return {
        labels.GPU_PRODUCT: label_value(model),
        labels.GPU_COUNT: str(len(devices)),
        labels.GPU_MEMORY: str(memory_mib),
    }


def label_value(text: str) -> str:
    """The text as a valid label value: "Tesla V100-SXM2-32GB" -> "Tesla-V100-SXM2-32GB"."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")


def _info() -> NodeInfo:
    machine = platform.machine()
    return NodeInfo(
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        kernel_version=platform.release(),
        kubelet_version=f"aliquot-{aliquot.__version__}",
        operating_system="linux",
        container_runtime_version="process",
    )
