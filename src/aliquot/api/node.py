"""Kubernetes nodes, with the fields that we use. The local agent registers its machine as one."""

from __future__ import annotations

from typing import Literal

from aliquot.api.field_types import EMPTY_MAP, Interned, Labels, Time
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import kubernetes_record, record


@record
class Taint:
    """Keeps pods off a node unless they tolerate it."""

    key: str
    """Key of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """Effect on pods that do not tolerate the taint."""
    value: str = ""
    """Value of the taint."""
    time_added: Time | None = None
    """Time at which the taint was added."""


@kubernetes_record
class NodeSpec:
    """Desired state of a node."""

    unschedulable: bool = False
    """Whether no new pods are scheduled onto the node."""
    taints: tuple[Taint, ...] = ()
    """Taints of the node."""
    provider_id: str = ""
    """Identifier of the node at the cloud provider."""


@record
class NodeCondition:
    """An aspect of a node's state."""

    type: str
    """Type of the condition, such as Ready."""
    status: str
    """Status of the condition: True, False or Unknown."""
    reason: Interned = ""
    """Reason for the last transition, as one CamelCase word."""
    message: str = ""
    """Human-readable details about the last transition."""
    last_heartbeat_time: Time | None = None
    """Time at which the node last reported the condition."""
    last_transition_time: Time | None = None
    """Time at which the status last changed."""


@record
class Address:
    """An address of a node."""

    type: str
    """InternalIP, ExternalIP or Hostname."""
    address: str
    """The address."""


@kubernetes_record
class NodeInfo:
    """Software and identifiers of a node."""

    architecture: str = ""
    """Architecture of the node, such as amd64."""
    boot_id: str = ""
    """Identifier of the current boot."""
    container_runtime_version: str = ""
    """Name and version of the container runtime."""
    kernel_version: str = ""
    """Version of the Linux kernel."""
    kube_proxy_version: str = ""
    """Required by Kubernetes; empty in new versions."""
    kubelet_version: str = ""
    """Version of the program that runs pods."""
    machine_id: str = ""
    """Identifier of the machine; the same after each boot."""
    operating_system: str = ""
    """Operating system, such as linux."""
    os_image: str = ""
    """Distribution, such as Debian GNU/Linux 12."""
    system_uuid: str = ""
    """UUID of the hardware."""


@record
class NodeStatus:
    """Observed state of a node."""

    capacity: Labels = EMPTY_MAP
    """Total resources of the node."""
    allocatable: Labels = EMPTY_MAP
    """Resources that are available to pods."""
    conditions: tuple[NodeCondition, ...] = ()
    """Conditions of the node."""
    addresses: tuple[Address, ...] = ()
    """Addresses of the node."""
    node_info: NodeInfo = NodeInfo()
    """Software and identifiers of the node."""


@record
class Node:
    """A machine that runs pods."""

    metadata: Metadata
    """Standard object metadata."""
    spec: NodeSpec = NodeSpec()
    """Desired state of the node."""
    status: NodeStatus = NodeStatus()
    """Observed state of the node."""
