"""What Kubernetes has too, in its own wire shape, as far as we use it: nodes, services, claims, events, leases.

On Kubernetes these are the cluster's own objects; embedded, our agent and loops write them. Fields we do not know are
left alone, because stores change objects by merge patch. Pods are in pod.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from aliquot.api.base import NOTHING, Labels, Metadata, Strings, Time, Word, record
from aliquot.api.kubernetes_json import MicroTime, kube_record

Free = Mapping[str, Any]


def _int_or_text(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("must be a number or a name")
    return value


# A union of two checks would report both; this one says what it wants.
IntOrText = Annotated[int | str, BeforeValidator(_int_or_text)]


@record
class NamespaceSpec:
    """Nothing that we use."""

    finalizers: Strings = ()
    """Who must finish before the namespace may go."""


@record
class NamespaceStatus:
    """Where the namespace is in its life."""

    phase: str = ""
    """Active or Terminating."""


@record
class Namespace:
    """A place for objects; each project has one."""

    metadata: Metadata
    """Name and marks."""
    spec: NamespaceSpec = NamespaceSpec()
    """How it goes."""
    status: NamespaceStatus = NamespaceStatus()
    """Where it is in its life."""


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


@kube_record
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
    reason: Word = ""
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


@kube_record
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

    capacity: Labels = NOTHING
    """All it has, as quantities."""
    allocatable: Labels = NOTHING
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


@record
class ServicePort:
    """One port of a service."""

    port: int
    """Port of the service."""
    name: str = ""
    """What it is called."""
    protocol: str = "TCP"
    """TCP or UDP."""
    target_port: IntOrText | None = None
    """Port of the pods, or its name."""
    node_port: int | None = None
    """Port on every node."""


@kube_record
class ServiceSpec:
    """Which pods, at which address."""

    type: str = "ClusterIP"
    """ClusterIP, NodePort, LoadBalancer or ExternalName."""
    selector: Labels = NOTHING
    """Labels of the pods behind it."""
    ports: tuple[ServicePort, ...] = ()
    """Its ports."""
    cluster_ip: str = ""
    """Its address; None for a service without one."""
    external_name: str = ""
    """A name elsewhere, for ExternalName."""


@record
class ServiceStatus:
    """How it is reached from outside."""

    load_balancer: Free = NOTHING
    """What the load balancer says."""


@record
class Service:
    """A stable address for pods."""

    metadata: Metadata
    """Name and marks."""
    spec: ServiceSpec = ServiceSpec()
    """Which pods, at which address."""
    status: ServiceStatus = ServiceStatus()
    """How it is reached from outside."""


@record
class ClaimResources:
    """How much is wanted."""

    requests: Labels = NOTHING
    """`storage`: at least this much."""
    limits: Labels = NOTHING
    """`storage`: at most this much."""


@record
class ClaimSpec:
    """What storage is wanted."""

    access_modes: Strings = ()
    """Who may mount it at once."""
    resources: ClaimResources = ClaimResources()
    """How much is wanted."""
    storage_class_name: str | None = None
    """Which kind of storage; the cluster's default unless given."""
    volume_mode: str | None = None
    """Filesystem or Block."""
    volume_name: str = ""
    """The volume that was found."""


@record
class ClaimStatus:
    """What storage was found."""

    phase: str = ""
    """Pending, Bound or Lost."""
    capacity: Labels = NOTHING
    """How much there is."""
    access_modes: Strings = ()
    """Who may mount it at once."""


@record
class Claim:
    """Asks for storage that outlives pods."""

    metadata: Metadata
    """Name and marks."""
    spec: ClaimSpec = ClaimSpec()
    """What storage is wanted."""
    status: ClaimStatus = ClaimStatus()
    """What storage was found."""


@record
class ObjectReference:
    """The object that an event is about."""

    api_version: Word = ""
    """Group and version of its kind."""
    kind: Word = ""
    """Its kind."""
    name: str = ""
    """Its name."""
    namespace: Word = ""
    """Its namespace."""
    uid: str = ""
    """Its uid."""
    resource_version: str = ""
    """Its version at the time."""
    field_path: str = ""
    """Which part of it."""


@record
class EventSource:
    """Who said so."""

    component: Word = ""
    """Program."""
    host: str = ""
    """Machine."""


@record
class Event:
    """Something that happened to an object. Kept for a while only."""

    metadata: Metadata
    """Name and marks."""
    involved_object: ObjectReference = ObjectReference()
    """What it happened to."""
    reason: Word = ""
    """One word for programs."""
    message: str = ""
    """A sentence for people."""
    type: Word = ""
    """Normal or Warning."""
    count: int = 0
    """How often it happened."""
    first_timestamp: Time | None = None
    """When it happened first."""
    last_timestamp: Time | None = None
    """When it happened last."""
    event_time: MicroTime | None = None
    """When it happened, for events that are not counted."""
    source: EventSource = EventSource()
    """Who said so."""
    action: str = ""
    """What was done."""
    reporting_component: Word = ""
    """Program that said so."""
    reporting_instance: str = ""
    """Which copy of the program."""
    related: ObjectReference | None = None
    """Another object that had to do with it."""


@record
class LeaseSpec:
    """Who holds it, since when and for how long."""

    holder_identity: str | None = None
    """Who holds it."""
    lease_duration_seconds: int | None = None
    """How long it holds without being renewed."""
    acquire_time: MicroTime | None = None
    """When the holder got it."""
    renew_time: MicroTime | None = None
    """When the holder last renewed it."""
    lease_transitions: int | None = None
    """How often it changed hands."""


@record
class Lease:
    """Held by one program at a time: who leads, or which node is alive."""

    metadata: Metadata
    """Name and marks."""
    spec: LeaseSpec = LeaseSpec()
    """Who holds it."""
