"""Kubernetes pods, with the fields that we run, schedule and show.

Parts that we only pass on (probes, volume sources, affinity) are untyped JSON.
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
    """An environment variable."""

    name: Interned
    """Name of the variable."""
    value: str = ""
    """Value of the variable."""
    value_from: JsonMap | None = None
    """Source of the value."""


@record
class Resources:
    """Resource requests and limits of a container."""

    requests: Quantities = EMPTY_MAP
    """Guaranteed resources."""
    limits: Quantities = EMPTY_MAP
    """Maximum resources."""


@kubernetes_record
class ContainerPort:
    """A port on which a container listens."""

    container_port: int
    """Number of the port."""
    name: str = ""
    """Name of the port."""
    protocol: Interned = "TCP"
    """TCP or UDP."""
    host_port: int | None = None
    """Port on the node."""
    host_ip: Interned = ""
    """IP address of the node to bind to."""


@record
class VolumeMount:
    """A mount of a volume in a container."""

    name: Interned
    """Name of the volume."""
    mount_path: Interned
    """Path at which the volume is mounted."""
    read_only: bool = False
    """Whether the mount is read-only."""
    sub_path: str = ""
    """Path within the volume to mount."""
    sub_path_expr: str = ""
    """Path within the volume to mount, with environment variables expanded."""
    mount_propagation: str | None = None
    """How mounts propagate between node and container."""
    recursive_read_only: str | None = None
    """Whether mounts below a read-only mount are read-only too."""


@record
class Container:
    """A container of a pod."""

    name: Interned
    """Name of the container. Unique within the pod."""
    image: Interned = ""
    """Container image."""
    image_pull_policy: Interned | None = None
    """When the image is pulled."""
    command: Strings = ()
    """Entrypoint that replaces the image's."""
    args: Strings = ()
    """Arguments of the entrypoint."""
    working_dir: Interned = ""
    """Working directory."""
    env: tuple[EnvVar, ...] = ()
    """Environment variables."""
    env_from: tuple[JsonMap, ...] = ()
    """Sources of environment variables."""
    resources: Resources = Resources()
    """Resource requests and limits."""
    ports: tuple[ContainerPort, ...] = ()
    """Ports on which the container listens."""
    volume_mounts: tuple[VolumeMount, ...] = ()
    """Volumes to mount."""
    stdin: bool = False
    """Whether standard input stays open."""
    stdin_once: bool = False
    """Whether standard input closes after the first client."""
    tty: bool = False
    """Whether the container gets a terminal."""
    restart_policy: Interned | None = None
    """Always makes an init container a sidecar."""
    security_context: JsonMap | None = None
    """Security settings of the container."""
    readiness_probe: JsonMap | None = None
    """Probe that decides whether the container receives requests."""
    liveness_probe: JsonMap | None = None
    """Probe that decides whether the container is restarted."""
    startup_probe: JsonMap | None = None
    """Probe that decides whether the container has started."""
    lifecycle: JsonMap | None = None
    """Hooks after the start and before the stop."""
    termination_message_path: Interned | None = None
    """File from which the termination message is read."""
    termination_message_policy: Interned | None = None
    """Where the termination message comes from."""


@record
class SchedulingGate:
    """A gate that keeps a pod from being scheduled until it is removed."""

    name: str
    """Name of the gate."""


@record
class LocalReference:
    """A reference to an object in the same namespace."""

    name: str = ""
    """Name of the object."""


@kubernetes_record
class PodSpec:
    """Desired state of a pod."""

    containers: tuple[Container, ...] = ()
    """Containers of the pod."""
    init_containers: tuple[Container, ...] = ()
    """Containers that run one after another before the others."""
    volumes: tuple[JsonMap, ...] = ()
    """Volumes that containers can mount."""
    node_name: Interned = ""
    """Node on which the pod runs; empty until it is scheduled."""
    node_selector: Labels = EMPTY_MAP
    """Node labels that the pod requires."""
    affinity: JsonMap | None = None
    """Affinity and anti-affinity to nodes and pods."""
    tolerations: tuple[Toleration, ...] = ()
    """Tolerations of the pod."""
    topology_spread_constraints: tuple[JsonMap, ...] = ()
    """How the pods of a group spread over the topology."""
    priority_class_name: Interned = ""
    """Name of the priority class."""
    priority: Int32 | None = None
    """Priority as a number."""
    preemption_policy: Interned | None = None
    """Whether the pod may preempt others."""
    scheduler_name: Interned = ""
    """Scheduler that places the pod."""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    """Gates that keep the pod from being scheduled."""
    scheduling_group: JsonMap | None = None
    """Pod group that the pod belongs to."""
    restart_policy: Interned | None = None
    """Always, OnFailure or Never."""
    termination_grace_period_seconds: int | None = None
    """Number of seconds that the pod has to stop."""
    active_deadline_seconds: int | None = None
    """Number of seconds that the pod may run."""
    host_network: bool = False
    """Whether the pod shares the node's network namespace."""
    host_ipc: bool = False
    """Whether the pod shares the node's IPC namespace."""
    host_pid: bool = False
    """Whether the pod shares the node's PID namespace."""
    hostname: str = ""
    """Host name of the pod."""
    subdomain: str = ""
    """Subdomain of the pod within its namespace."""
    service_account_name: Interned = ""
    """Service account of the pod."""
    automount_service_account_token: bool | None = None
    """Whether the service account's token is mounted."""
    image_pull_secrets: tuple[LocalReference, ...] = ()
    """Secrets with credentials for registries."""
    security_context: JsonMap | None = None
    """Security settings of the pod."""
    runtime_class_name: str | None = None
    """Runtime class of the pod."""
    enable_service_links: bool | None = None
    """Whether services are injected as environment variables."""
    dns_policy: Interned | None = None
    """DNS policy of the pod."""
    resource_claims: tuple[JsonMap, ...] = ()
    """Resource claims of the pod."""
    overhead: Quantities = EMPTY_MAP
    """Resources that the pod uses besides its containers."""


@record
class PodCondition:
    """An aspect of a pod's state."""

    type: Interned
    """Type of the condition, such as PodScheduled."""
    status: Interned
    """Status of the condition: True, False or Unknown."""
    reason: Interned = ""
    """Reason for the last transition, as one CamelCase word."""
    message: str = ""
    """Human-readable details about the last transition."""
    last_probe_time: Time | None = None
    """Time at which the condition was last checked."""
    last_transition_time: Time | None = None
    """Time at which the status last changed."""
    observed_generation: Int64 | None = None
    """Generation of the spec that the condition was computed from."""


@record
class Waiting:
    """Why a container is not running yet."""

    reason: Interned = ""
    """Reason, as one CamelCase word."""
    message: str = ""
    """Human-readable reason."""


@record
class Running:
    """When a container started."""

    started_at: Time | None = None
    """Time at which the container started."""


@kubernetes_record
class Terminated:
    """How a container terminated."""

    exit_code: int = 0
    """Exit status of the container."""
    signal: int | None = None
    """Signal that terminated the container."""
    reason: Interned = ""
    """Reason, as one CamelCase word."""
    message: str = ""
    """Termination message of the container."""
    started_at: Time | None = None
    """Time at which the container started."""
    finished_at: Time | None = None
    """Time at which the container terminated."""
    container_id: str = ""
    """Identifier of the container in the runtime."""


@record
class ContainerState:
    """State of a container: exactly one of three."""

    waiting: Waiting | None = None
    """The container is not running yet."""
    running: Running | None = None
    """The container is running."""
    terminated: Terminated | None = None
    """The container has terminated."""


@kubernetes_record
class ContainerStatus:
    """Observed state of a container."""

    name: Interned
    """Name of the container."""
    ready: bool = False
    """Whether the container passes its readiness probe."""
    started: bool | None = None
    """Whether the container passed its startup probe."""
    restart_count: int = 0
    """Number of restarts."""
    image: Interned = ""
    """Image of the container."""
    image_id: Interned = ""
    """Digest of the image."""
    container_id: str = ""
    """Identifier of the container in the runtime."""
    state: ContainerState = ContainerState()
    """Current state of the container."""
    last_state: ContainerState = ContainerState()
    """State in which the container last terminated."""


@kubernetes_record
class PodStatus:
    """Observed state of a pod."""

    phase: Interned = ""
    """Pending, Running, Succeeded, Failed or Unknown."""
    reason: Interned = ""
    """Reason for the phase, as one CamelCase word."""
    message: str = ""
    """Human-readable reason for the phase."""
    conditions: tuple[PodCondition, ...] = ()
    """Conditions of the pod."""
    container_statuses: tuple[ContainerStatus, ...] = ()
    """States of the containers."""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    """States of the init containers."""
    nominated_node_name: str = ""
    """Node on which capacity is being freed for the pod."""
    host_ip: Interned = ""
    """IP address of the node."""
    pod_ip: str = ""
    """IP address of the pod."""
    start_time: Time | None = None
    """Time at which the node accepted the pod."""
    qos_class: Interned = ""
    """Quality of service class, which ranks pods when memory runs out."""
    observed_generation: Int64 | None = None
    """Generation of the spec that the status was computed from."""


@record
class Pod:
    """A group of containers that share a node and an IP address. A workload runs as one or more pods."""

    metadata: Metadata
    """Standard object metadata."""
    spec: PodSpec = PodSpec()
    """Desired state of the pod."""
    status: PodStatus = PodStatus()
    """Observed state of the pod."""


def last_checkpoint_time(pod: Pod) -> float | None:
    """Time at which the workload last reported a checkpoint; None if it never did."""
    for condition in pod.status.conditions:
        if condition.type == labels.CHECKPOINT_SAVED:
            return condition.last_transition_time
    return None
