"""What Kubernetes has too, in its own wire shape, as far as we use it: nodes, services, claims, events, leases.

On Kubernetes these are the cluster's own objects; embedded, our agent and loops write them. Fields we do not know are
left alone, because stores change objects by merge patch. Pods are in pod.py.
"""

from __future__ import annotations

from typing import Literal

from aliquot.api.field_types import EMPTY_MAP, Interned, Labels, Time
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import kubernetes_record, record


@record
class Taint:
    """Keeps pods off a node unless they tolerate it."""

    key: str
    """What the taint is called."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """What it does to pods that do not tolerate it."""
    value: str = ""
    """Its value."""
    time_added: Time | None = None
    """When it was added."""


@kubernetes_record
class NodeSpec:
    """What an administrator says about a node."""

    unschedulable: bool = False
    """Whether no new pods may come."""
    taints: tuple[Taint, ...] = ()
    """What keeps pods off."""
    provider_id: str = ""
    """What the cloud calls it."""


@record
class NodeCondition:
    """One thing that is true or not about a node."""

    type: str
    """What it is about, such as Ready."""
    status: str
    """True, False or Unknown."""
    reason: Interned = ""
    """One word for programs."""
    message: str = ""
    """A sentence for people."""
    last_heartbeat_time: Time | None = None
    """When the node last said so."""
    last_transition_time: Time | None = None
    """When it last changed."""


@record
class Address:
    """How a node is reached."""

    type: str
    """InternalIP, ExternalIP or Hostname."""
    address: str
    """The address."""


@kubernetes_record
class NodeInfo:
    """What a node runs."""

    architecture: str = ""
    """Such as amd64."""
    boot_id: str = ""
    """Differs after each boot."""
    container_runtime_version: str = ""
    """Program that runs containers."""
    kernel_version: str = ""
    """Linux kernel."""
    kube_proxy_version: str = ""
    """Kubernetes wants the field; empty in new versions."""
    kubelet_version: str = ""
    """Program that runs pods."""
    machine_id: str = ""
    """Stays over boots."""
    operating_system: str = ""
    """Such as linux."""
    os_image: str = ""
    """Such as Debian GNU/Linux 12."""
    system_uuid: str = ""
    """Given by the hardware."""


@record
class NodeStatus:
    """What a node has and how it is."""

    capacity: Labels = EMPTY_MAP
    """All it has, as quantities."""
    allocatable: Labels = EMPTY_MAP
    """What pods may use of it."""
    conditions: tuple[NodeCondition, ...] = ()
    """What is true about it."""
    addresses: tuple[Address, ...] = ()
    """How it is reached."""
    node_info: NodeInfo = NodeInfo()
    """What it runs."""


@record
class Node:
    """A machine that runs pods."""

    metadata: Metadata
    """Name and marks."""
    spec: NodeSpec = NodeSpec()
    """What an administrator says about it."""
    status: NodeStatus = NodeStatus()
    """What it has and how it is."""
