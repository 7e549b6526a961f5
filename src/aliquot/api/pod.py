"""Pods, in Kubernetes' wire shape, as far as we run, place and show them.

Parts that we only pass on (probes, volumes' sources, affinity) stay free JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

from aliquot import labels
from aliquot.api.field_types import EMPTY_MAP, Int32, Int64, Interned, JsonMap, Labels, Strings, Time
from aliquot.api.metadata import Metadata
from aliquot.api.scheduling_constraints import Toleration
from aliquot.api.serialization import kubernetes_record, record

Quantities = Mapping[Interned, Interned]


@record
class EnvVar:
    """One environment variable."""

    name: Interned
    """Its name."""
    value: str = ""
    """Its value."""
    value_from: JsonMap | None = None
    """Where the value is read from."""


@record
class Resources:
    """What a container asks for, as quantities."""

    requests: Quantities = EMPTY_MAP
    """Guaranteed."""
    limits: Quantities = EMPTY_MAP
    """At most."""


@kubernetes_record
class ContainerPort:
    """A port that a container listens on."""

    container_port: int
    """Number of the port."""
    name: str = ""
    """What it is called."""
    protocol: Interned = "TCP"
    """TCP or UDP."""
    host_port: int | None = None
    """Port of the node."""
    host_ip: Interned = ""
    """Address of the node."""


@record
class VolumeMount:
    """Where a container sees a volume."""

    name: Interned
    """Which volume."""
    mount_path: Interned
    """Where."""
    read_only: bool = False
    """Whether it may only be read."""
    sub_path: str = ""
    """Only this part of it."""
    sub_path_expr: str = ""
    """The same, with variables."""
    mount_propagation: str | None = None
    """Whether later mounts show up."""
    recursive_read_only: str | None = None
    """Whether mounts below it may only be read too."""


@record
class Container:
    """One container of a pod."""

    name: Interned
    """Unique within the pod."""
    image: Interned = ""
    """What it is made from."""
    image_pull_policy: Interned | None = None
    """When the image is fetched."""
    command: Strings = ()
    """Program instead of the image's."""
    args: Strings = ()
    """Arguments."""
    working_dir: Interned = ""
    """Folder it starts in."""
    env: tuple[EnvVar, ...] = ()
    """Environment variables."""
    env_from: tuple[JsonMap, ...] = ()
    """Sources of many variables."""
    resources: Resources = Resources()
    """What it asks for."""
    ports: tuple[ContainerPort, ...] = ()
    """Ports it listens on."""
    volume_mounts: tuple[VolumeMount, ...] = ()
    """Where it sees volumes."""
    stdin: bool = False
    """Whether standard input stays open."""
    stdin_once: bool = False
    """Whether standard input closes after the first client."""
    tty: bool = False
    """Whether it gets a terminal."""
    restart_policy: Interned | None = None
    """Always makes an init container run beside the others."""
    security_context: JsonMap | None = None
    """As whom it runs."""
    readiness_probe: JsonMap | None = None
    """Whether it may get requests."""
    liveness_probe: JsonMap | None = None
    """Whether it must be restarted."""
    startup_probe: JsonMap | None = None
    """Whether it has started."""
    lifecycle: JsonMap | None = None
    """What to do after the start and before the stop."""
    termination_message_path: Interned | None = None
    """File with its last words."""
    termination_message_policy: Interned | None = None
    """Where its last words are read from."""


@record
class SchedulingGate:
    """Holds a pod back from the scheduler while it is there."""

    name: str
    """Who holds it back."""


@record
class LocalReference:
    """An object of the same namespace."""

    name: str = ""
    """Its name."""


@kubernetes_record
class PodSpec:
    """What to run."""

    containers: tuple[Container, ...] = ()
    """Containers that run side by side."""
    init_containers: tuple[Container, ...] = ()
    """Containers that run one after the other before them."""
    volumes: tuple[JsonMap, ...] = ()
    """What containers may mount."""
    node_name: Interned = ""
    """Node it runs on; empty until it is placed."""
    node_selector: Labels = EMPTY_MAP
    """Node labels it needs."""
    affinity: JsonMap | None = None
    """Nodes and pods it must, or would like to, be near to."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints it bears."""
    topology_spread_constraints: tuple[JsonMap, ...] = ()
    """How its like are spread."""
    priority_class_name: Interned = ""
    """How important it is, by name."""
    priority: Int32 | None = None
    """The same as a number."""
    preemption_policy: Interned | None = None
    """Whether others may be stopped for it."""
    scheduler_name: Interned = ""
    """Who places it."""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    """What holds it back."""
    scheduling_group: JsonMap | None = None
    """The pod group it belongs to."""
    restart_policy: Interned | None = None
    """Always, OnFailure or Never."""
    termination_grace_period_seconds: int | None = None
    """How long it may take to stop."""
    active_deadline_seconds: int | None = None
    """How long it may run."""
    host_network: bool = False
    """Whether it shares the node's network."""
    host_ipc: bool = False
    """Whether it shares the node's inter-process communication."""
    host_pid: bool = False
    """Whether it sees the node's processes."""
    hostname: str = ""
    """Its name for itself."""
    subdomain: str = ""
    """Its domain within the namespace."""
    service_account_name: Interned = ""
    """As whom it talks to the API."""
    automount_service_account_token: bool | None = None
    """Whether it gets a token for the API."""
    image_pull_secrets: tuple[LocalReference, ...] = ()
    """Secrets for registries."""
    security_context: JsonMap | None = None
    """As whom its containers run."""
    runtime_class_name: str | None = None
    """How its containers are run."""
    enable_service_links: bool | None = None
    """Whether services show up as variables."""
    dns_policy: Interned | None = None
    """Whom it asks for names."""
    resource_claims: tuple[JsonMap, ...] = ()
    """Devices it asks for by claim."""
    overhead: Quantities = EMPTY_MAP
    """What it takes besides its containers."""


@record
class PodCondition:
    """One thing that is true or not about a pod."""

    type: Interned
    """What it is about, such as PodScheduled."""
    status: Interned
    """True, False or Unknown."""
    reason: Interned = ""
    """One word for programs."""
    message: str = ""
    """A sentence for people."""
    last_probe_time: Time | None = None
    """When it was last looked at."""
    last_transition_time: Time | None = None
    """When it last changed."""
    observed_generation: Int64 | None = None
    """The generation of the spec that this was said about."""


@record
class Waiting:
    """Why a container does not run yet."""

    reason: Interned = ""
    """One word for programs."""
    message: str = ""
    """A sentence for people."""


@record
class Running:
    """Since when a container runs."""

    started_at: Time | None = None
    """When it started."""


@kubernetes_record
class Terminated:
    """How a container ended."""

    exit_code: int = 0
    """Exit status of its program."""
    signal: int | None = None
    """Signal that ended it."""
    reason: Interned = ""
    """One word for programs."""
    message: str = ""
    """Its last words."""
    started_at: Time | None = None
    """When it started."""
    finished_at: Time | None = None
    """When it ended."""
    container_id: str = ""
    """What the runtime calls it."""


@record
class ContainerState:
    """What a container does: one of three."""

    waiting: Waiting | None = None
    """It does not run yet."""
    running: Running | None = None
    """It runs."""
    terminated: Terminated | None = None
    """It has ended."""


@kubernetes_record
class ContainerStatus:
    """How a container is."""

    name: Interned
    """Which container."""
    ready: bool = False
    """Whether it may get requests."""
    started: bool | None = None
    """Whether it has started."""
    restart_count: int = 0
    """How often it was started again."""
    image: Interned = ""
    """What it was made from."""
    image_id: Interned = ""
    """The same, exactly."""
    container_id: str = ""
    """What the runtime calls it."""
    state: ContainerState = ContainerState()
    """What it does now."""
    last_state: ContainerState = ContainerState()
    """How it ended last time."""


@kubernetes_record
class PodStatus:
    """How a pod is."""

    phase: Interned = ""
    """Pending, Running, Succeeded, Failed or Unknown."""
    reason: Interned = ""
    """One word for programs."""
    message: str = ""
    """A sentence for people."""
    conditions: tuple[PodCondition, ...] = ()
    """What is true about it."""
    container_statuses: tuple[ContainerStatus, ...] = ()
    """How its containers are."""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    """How its init containers are."""
    nominated_node_name: str = ""
    """Node that is being freed for it."""
    host_ip: Interned = ""
    """Address of its node."""
    pod_ip: str = ""
    """Its address."""
    start_time: Time | None = None
    """When its node took it on."""
    qos_class: Interned = ""
    """How its node ranks it when memory runs out."""
    observed_generation: Int64 | None = None
    """The generation of the spec this status is about."""


@record
class Pod:
    """One attempt to run a part of a workload: containers that share a node, an address and devices."""

    metadata: Metadata
    """Name and marks."""
    spec: PodSpec = PodSpec()
    """What to run."""
    status: PodStatus = PodStatus()
    """How it is."""


def last_checkpoint_time(pod: Pod) -> float | None:
    """When its job last said that it had saved its work; None when it never did."""
    return next(
        (one.last_transition_time for one in pod.status.conditions if one.type == labels.CHECKPOINT_SAVED), None
    )
