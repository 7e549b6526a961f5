"""What a node has, and what a pod is told about the part it got.

    NodeFacts     one node: name, marks, GPUs, cores, memory
    Devices       where nodes come from: the driver (nvml.py) or a description (simulated.py)
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
from aliquot.api.kubernetes_objects import Address, NodeCondition, NodeInfo, NodeStatus
from aliquot.gpu.fractions import SharingOptions
from aliquot.gpu.injection import Injection

DEFAULT_PODS = 110  # the kubelet's own default, so that both bodies of the platform stop at the same number


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
    # Who keeps the limits of parts of its GPUs, in a word, and why; empty where there is nothing to keep.
    sharing: str = ""
    sharing_reason: str = ""
    # Why the sharing library does not know its driver; empty: it does, as far as was seen.
    outdated: str = ""
    # Percent of its time that each of its GPUs computed just now, in their order; None where nobody measures.
    busy: tuple[int, ...] | None = None


class Devices(Protocol):
    """Nodes and their GPUs, and how a pod is shown its part of them."""

    def nodes(self) -> tuple[NodeFacts, ...]:
        """Every node, as it is now: health may differ from one call to the next."""
        ...

    def injection(self, node: str, shares: Sequence[DeviceShare], options: SharingOptions, pod_uid: str) -> Injection:
        """What a pod that holds these shares is given; without any, what hides every GPU.

        `pod_uid` is the pod's uid. `CannotStart` when its part cannot be fenced off.
        """
        ...

    def release(self, pod_uid: str) -> None:
        """Nothing of the pod is alive: whatever was made for it may go."""
        ...

    def sweep(self, living: Container[str]) -> None:
        """At the start: whatever was made for pods (uids) that are not among these may go."""
        ...


def node_object(facts: NodeFacts, *, now: float | None = None) -> Node:
    """The Node to store. `now` is when it was seen to be ready; without it the condition carries no time."""
    amounts = _amounts(facts, len(facts.devices))
    usable = _amounts(facts, sum(device.healthy for device in facts.devices))
    said = "simulated: its GPUs do not exist" if facts.simulated else "the agent runs here"
    conditions = (_condition("Ready", True, "AgentReady", said, now), *_sharing(facts, now))
    addresses = (Address(type="InternalIP", address="127.0.0.1"), Address(type="Hostname", address=facts.name))
    return Node(
        metadata=Metadata(name=facts.name, labels=_labels(facts), annotations=_annotations(facts)),
        status=NodeStatus(
            capacity=amounts, allocatable=usable, conditions=conditions, addresses=addresses, node_info=_info()
        ),
    )


def _annotations(facts: NodeFacts) -> dict[str, str]:
    busy = {} if facts.busy is None else {labels.GPU_UTILIZATION: ",".join(map(str, facts.busy))}
    return {labels.DEVICES: devices_text(facts.devices), **busy}


def _sharing(facts: NodeFacts, now: float | None) -> Iterator[NodeCondition]:
    if facts.simulated and facts.devices:
        said = "simulated: nothing is limited, and nvidia-smi prints the parts that were given"
        yield _condition("GPUSharing", False, "Simulated", said, now)
    elif facts.sharing:
        shared = facts.sharing != "none"
        yield _condition("GPUSharing", shared, facts.sharing.capitalize(), facts.sharing_reason, now)
        if shared:
            reason = "UnknownEntryPoint" if facts.outdated else "NoneUnknown"
            said = facts.outdated or "no program has met an entry point of the driver that the library does not know"
            yield _condition("ShimOutdated", bool(facts.outdated), reason, said, now)


def _condition(kind: str, holds: bool, reason: str, message: str, now: float | None) -> NodeCondition:
    return NodeCondition(
        type=kind,
        status="True" if holds else "False",
        reason=reason,
        message=message,
        last_heartbeat_time=now,
        last_transition_time=now,
    )


def cores() -> int:
    """Thousandths of a core that this process may use, which is what its pods get."""
    return 1000 * len(os.sched_getaffinity(0))


def memory() -> int:
    """Bytes of memory of this machine."""
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
    """Its own marks win, except over whether it is simulated: that is never hidden."""
    marks = {"kubernetes.io/hostname": facts.name, "kubernetes.io/os": "linux"} | _gpu_labels(facts.devices)
    marks |= facts.labels
    marks.pop(labels.SIMULATED, None)
    return marks | ({labels.SIMULATED: "true"} if facts.simulated else {})


def _gpu_labels(devices: Sequence[Device]) -> dict[str, str]:
    """As GPU feature discovery writes them: one product per node, the most frequent."""
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
    """The text as a label's value may spell it: "Tesla V100-SXM2-32GB" -> "Tesla-V100-SXM2-32GB"."""
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
