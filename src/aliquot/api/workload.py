"""Workloads: what a user submits. Each attempt to run one creates new pods.

Fields that a user may leave out are None or empty, so that templates and policies can tell what the submission set.
`active: false` stops a workload and keeps its definition.

Names of flags and of Run:ai's API that differ from the fields here (compute.py has those of compute):

    --interactive, --inference         type
    --job-name-prefix, --name-prefix   namePrefix
    baseWorkload                       template
    username, userId                   user (claimed), subject (authenticated)
    --runs                             completions
    --ttl-after-finish                 autoDeletionTimeAfterCompletionSeconds
    --custom-url                       ingressUrl
    --address                          addresses
    podAffinity, podAffinitySchedulingRule, podAffinityTopology, --required-/--preferred-pod-topology-key
                                       topology.required, topology.preferred
    --prevent-privilege-escalation     security.allowPrivilegeEscalation: false
    nonPreemptible                     preemptible: false
    jobType, mpiJob, pyTorchJob        distributed.framework
    runPolicy                          distributed.cleanPodPolicy, backoffLimit
    minScale, maxScale, target         serving.autoscaling.minReplicas, maxReplicas, metricThreshold
    isPrivateServiceUrl                serving.port.private
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aliquot.api.amounts import Amounts
from aliquot.api.compute import Compute
from aliquot.api.conditions import Condition
from aliquot.api.distributed import Distributed
from aliquot.api.field_types import (
    EMPTY_MAP,
    Count,
    Duration,
    DurationOrNever,
    Int32,
    Int64,
    Interned,
    Labels,
    Positive,
    Strings,
    Text,
    Time,
)
from aliquot.api.inference import Serving
from aliquot.api.metadata import Metadata
from aliquot.api.network import ExposedUrl, Port, Probes, ServiceType
from aliquot.api.scheduling_constraints import NamedToleration, PodRule, Subgroup, Topology
from aliquot.api.security import Security
from aliquot.api.serialization import record
from aliquot.api.storage import Storage, Variable
from aliquot.errors import Fault

WorkloadType = Literal["training", "interactive", "inference"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]
PriorityClass = Literal["train", "build", "build-preemptible", "interactive-preemptible", "inference"]


@record
class WorkloadSpec:
    """What to run, with which resources, and where."""

    type: WorkloadType = "training"
    """training runs to completion, interactive is a session, inference serves requests."""
    active: bool = True
    """false stops the workload and keeps its definition; true starts it again."""
    user: Interned = ""
    """User name that the submitting client gave; shown in listings."""
    subject: Interned = ""
    """User who was authenticated at submission, whose permissions apply."""
    template: str | None = None
    """Template that supplied the values that the submission left out."""
    name_prefix: str | None = None
    """Prefix from which the name was generated, if it was."""
    description: Text = ""
    """Description of the workload, for display."""

    image: Interned | None = None
    """Container image."""
    image_pull_policy: PullPolicy | None = None
    """When the image is pulled; defaults to Always."""
    image_pull_secrets: Strings = ()
    """Names of Secrets with credentials for the registry."""
    command: Strings = ()
    """Entrypoint that replaces the image's."""
    args: Strings = ()
    """Arguments of the entrypoint."""
    working_dir: Interned | None = None
    """Working directory; defaults to the image's."""
    environment: tuple[Variable, ...] = ()
    """Environment variables."""
    stdin: bool | None = None
    """Whether standard input stays open."""
    tty: bool | None = None
    """Whether the container gets a terminal."""
    create_home_dir: bool | None = None
    """Whether the container gets a temporary home directory."""
    labels: Labels = EMPTY_MAP
    """Labels of the pods."""
    annotations: Labels = EMPTY_MAP
    """Annotations of the pods."""
    probes: Probes | None = None
    """Probes that check the container."""

    compute: Compute = Compute()
    """Resources that each pod requests."""
    storage: Storage = Storage()
    """Storage to mount."""
    security: Security = Security()
    """Security settings of the containers."""

    ports: tuple[Port, ...] = ()
    """Container ports to expose."""
    exposed_urls: tuple[ExposedUrl, ...] = ()
    """Web tools to expose at a URL."""
    service_type: ServiceType | None = None
    """How ports are exposed that do not set their own service type."""
    ingress_url: str | None = None
    """URL for service type ingress or external-url; chosen by the platform unless set."""
    addresses: Strings = ()
    """Addresses on which service type portforward listens; defaults to localhost."""

    jupyter: bool | None = None
    """Whether it is a Jupyter notebook with the platform's settings."""
    notebook_token: str | None = None
    """Name of a Secret with the token of the notebook."""
    tensorboard: bool | None = None
    """Whether TensorBoard runs beside the workload."""
    tensorboard_logdir: str | None = None
    """Directory that TensorBoard reads."""

    node_type: str | None = None
    """Node type (value of the node label run.ai/type) on which the workload runs."""
    node_pools: Strings = ()
    """Node pools to try, in this order; defaults to the project's."""
    node_selector: Labels = EMPTY_MAP
    """Node labels that the pods require."""
    tolerations: tuple[NamedToleration, ...] = ()
    """Tolerations of the pods."""
    topology: Topology | None = None
    """Keeps the pods close to each other."""
    pod_affinity: PodRule | None = None
    """Runs the pods only near pods with these labels."""
    pod_anti_affinity: PodRule | None = None
    """Runs the pods only away from pods with these labels."""
    scheduler_name: str | None = None
    """Scheduler that places the pods; defaults to Aliquot's."""

    priority_class: PriorityClass | None = None
    """Priority within the project; follows from the type unless set."""
    priority: Int32 | None = None
    """Priority within the project as a number, instead of priorityClass."""
    preemptible: bool | None = None
    """Whether it may be preempted, and so may run over quota; follows from the type unless set."""
    preemption_limit: Count | None = None
    """Number of preemptions after which the next one fails the workload; no limit unless set."""
    preemption_delay: Duration | None = None
    """How long after submission the workload may not preempt others."""
    preemption_grace: Duration | None = None
    """Time to stop when preempted, at most 5m."""
    terminate_after_preemption: bool | None = None
    """Whether the workload ends when preempted instead of being requeued."""
    min_available: Positive | None = None
    """Minimum number of pods that start together; defaults to all."""
    min_subgroups: Positive | None = None
    """Minimum number of subgroups that must reach their own minimum; defaults to all."""
    subgroups: tuple[Subgroup, ...] = ()
    """Groups of pods that must start together."""
    stale_gang_grace: DurationOrNever | None = None
    """How long it may run below its minimum, -1 = forever; defaults to the scheduling policy's."""
    elastic: bool | None = None
    """Whether it may start with fewer GPUs and get more later."""

    completions: Positive | None = None
    """Number of pods that must succeed; defaults to 1."""
    parallelism: Positive | None = None
    """Number of pods that run at once; defaults to 1."""
    backoff_limit: Annotated[int, Field(ge=0, le=100)] | None = None
    """Number of retries of a failed pod; defaults to 6."""
    auto_deletion_time_after_completion_seconds: Duration | None = None
    """How long it is kept after it has finished; 0 = not at all; forever unless set."""
    pod_running_timeout: Duration | None = None
    """Time after which the workload fails if its pods have not started."""

    distributed: Distributed | None = None
    """Settings of distributed training."""
    serving: Serving | None = None
    """Settings of inference."""


_MAX_PREEMPTION_GRACE = 300  # seconds; the preempting workload waits that long


def spec_faults(spec: WorkloadSpec, path: str) -> Iterator[Fault]:
    """Violations of rules that span fields of a workload's spec."""
    yield from spec.compute.faults(f"{path}.compute")
    yield from _type_faults(spec, path)
    names = [variable.name for variable in spec.environment]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Fault(f"{path}.environment", f"has {name} twice")
    if spec.parallelism and spec.completions and spec.parallelism > spec.completions:
        yield Fault(f"{path}.parallelism", "must not be more than completions")
    if spec.preemption_grace is not None and spec.preemption_grace > _MAX_PREEMPTION_GRACE:
        yield Fault(f"{path}.preemptionGrace", f"must be at most {_MAX_PREEMPTION_GRACE} seconds")
    for index, claim in enumerate(spec.storage.pvc):
        yield from claim.faults(f"{path}.storage.pvc[{index}]")


def _type_faults(spec: WorkloadSpec, path: str) -> Iterator[Fault]:
    inference = spec.type == "inference"
    if spec.serving and not inference:
        yield Fault(f"{path}.serving", "is for type inference only")
    if spec.serving:
        yield from spec.serving.faults(f"{path}.serving")
    if spec.distributed and inference:
        yield Fault(f"{path}.distributed", "is not for type inference")
    if spec.distributed:
        yield from spec.distributed.faults(f"{path}.distributed")
    if spec.storage.s3 and inference:
        yield Fault(f"{path}.storage.s3", "is not for type inference")


WorkloadPhase = Literal[
    "Creating", "Pending", "Initializing", "Running", "Degraded", "Deleting", "Stopped", "Failed", "Completed"
]


@record
class PodCounts:
    """Number of pods by state."""

    desired: Count = 0
    """Desired number of pods."""
    pending: Count = 0
    """Number of pods that wait for a node."""
    running: Count = 0
    """Number of running pods."""
    ready: Count = 0
    """Number of running pods that are ready."""
    succeeded: Count = 0
    """Number of pods that succeeded."""
    failed: Count = 0
    """Number of pods that failed."""


@record
class Refusal:
    """Why one step of the last scheduling cycle did not start the workload."""

    step: Interned
    """Step of the cycle, such as allocate or reclaim."""
    code: Interned
    """Machine-readable reason, such as over-fair-share."""
    text: str = ""
    """Human-readable reason."""
    missing: Amounts = Amounts()
    """Resources that were missing."""
    pool: Interned = ""
    """Node pool that was tried."""
    nodes: Count = 0
    """Number of nodes that refused for this reason."""
    final: bool = False
    """Whether evicting other workloads could not change the result."""


@record
class Interruption:
    """One time that the platform stopped the workload."""

    at: Time
    """Time of the interruption."""
    reason: Interned = ""
    """Machine-readable reason, such as reclaimed, preempted, moved, node-lost or disrupted."""
    by: str = ""
    """Workload that it was stopped for, as project/workload."""
    lost_seconds: float = 0
    """Run time since the last reported checkpoint, or else since the start, that has to be repeated."""
    final: bool = False
    """Whether the workload ended instead of being requeued."""
    message: str = ""
    """Human-readable reason."""
    pod: str = ""
    """UID of the stopped pod, so that no pod counts twice."""


@record
class Url:
    """A URL of the workload."""

    url: str
    """The URL."""
    name: str = ""
    """Name of the tool at the URL."""
    container: int | None = None
    """Container port behind the URL."""


@record
class WorkloadStatus:
    """Observed state of a workload; written by the platform."""

    phase: WorkloadPhase | None = None
    """Phase in the lifecycle of the workload."""
    reason: Interned = ""
    """Machine-readable reason for the phase, such as TimedOut, Preempted or ImagePullBackOff."""
    message: str = ""
    """Human-readable reason for the phase."""
    observed_generation: Int64 | None = None
    """Generation of the spec that the status was computed from."""
    conditions: tuple[Condition, ...] = ()
    """Conditions of the workload."""
    pods: PodCounts = PodCounts()
    """Number of pods by state."""
    requested: Amounts = Amounts()
    """Resources that all pods together request."""
    allocated: Amounts = Amounts()
    """Resources that the workload holds."""
    pool: Interned = ""
    """Node pool in which it runs or waits."""
    nodes: Strings = ()
    """Nodes on which it runs."""
    urls: tuple[Url, ...] = ()
    """URLs of the workload."""
    refusals: tuple[Refusal, ...] = ()
    """Why the workload is not scheduled."""
    queued_at: Time | None = None
    """Time since which it waits. Set again at each requeue, and absent while it does not wait."""
    started_at: Time | None = None
    """Time at which it last started to run."""
    finished_at: Time | None = None
    """Time at which it finished."""
    run_seconds: float = 0
    """Total run time over all starts, up to the last stop."""
    wait_seconds: float = 0
    """Total waiting time, up to the last start."""
    idle_seconds: float = 0
    """How long its GPUs have been idle without interruption."""
    stale_since: Time | None = None
    """Time since which it runs below its minimum number of pods."""
    last_failed_pod: str = ""
    """UID of the last counted failed pod, so that no pod counts twice."""
    restarts: Count = 0
    """Number of restarts: after a failure, after a preemption, or within the same pod."""
    interruptions: tuple[Interruption, ...] = ()
    """Interruptions by the platform, newest last; the oldest are dropped."""
    interruption_count: Count = 0
    """Total number of interruptions by the platform."""
    preemption_count: Count = 0
    """Total number of preemptions for other workloads, not counting moves."""
    progress: Annotated[float, Field(ge=0, le=1)] | None = None
    """Progress that the workload reported, from 0 to 1."""
    metrics: Mapping[str, float] = EMPTY_MAP
    """Numbers that the workload reported, such as loss."""
    parameters: Labels = EMPTY_MAP
    """Texts that the workload reported, such as optimizer_name."""
    replicas: Count | None = None
    """Number of replicas of an inference workload."""
    revision: str = ""
    """Revision of an inference workload that receives the requests."""


@record
class Workload:
    """Something to run on the cluster: training, an interactive session, or inference."""

    ALWAYS: ClassVar = ("spec.type",)

    metadata: Metadata
    """Standard object metadata."""
    spec: WorkloadSpec = WorkloadSpec()
    """What to run."""
    status: WorkloadStatus = WorkloadStatus()
    """Observed state of the workload; written by the platform."""

    def faults(self) -> Iterator[Fault]:
        return spec_faults(self.spec, "spec")
