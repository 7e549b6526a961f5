"""The workload: what a user asked for. Pods are attempts to run it, and come and go.

Everything a user may leave out is None or empty, so that templates and policies can tell what was given.
`active: false` stops a workload and keeps its definition.

Words of the command line and of the Run:ai-shaped APIs that have another name here (compute.py has those of compute):

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
    """What to run, with what, where and for whom."""

    type: WorkloadType = "training"
    """training runs to its end, interactive is worked in, inference answers requests."""
    active: bool = True
    """false stops it and keeps its definition; true starts it again."""
    user: Interned = ""
    """Name that the submitting client gave; shown in listings."""
    subject: Interned = ""
    """User who was authenticated at submission; decides what is allowed."""
    template: str | None = None
    """Template that filled in what was not given."""
    name_prefix: str | None = None
    """What the name was made from, when it was made."""
    description: Text = ""
    """For people."""

    image: Interned | None = None
    """Container image."""
    image_pull_policy: PullPolicy | None = None
    """When the image is fetched; Always unless given."""
    image_pull_secrets: Strings = ()
    """Secrets for the registry."""
    command: Strings = ()
    """Program to run instead of the image's."""
    args: Strings = ()
    """Arguments of the program."""
    working_dir: Interned | None = None
    """Folder the program starts in; the image's unless given."""
    environment: tuple[Variable, ...] = ()
    """Environment variables."""
    stdin: bool | None = None
    """Whether standard input stays open."""
    tty: bool | None = None
    """Whether it gets a terminal."""
    create_home_dir: bool | None = None
    """Whether it gets a home folder for as long as it runs."""
    labels: Labels = EMPTY_MAP
    """Labels of its pods."""
    annotations: Labels = EMPTY_MAP
    """Annotations of its pods."""
    probes: Probes | None = None
    """How the platform finds out that it is well."""

    compute: Compute = Compute()
    """What each pod asks for."""
    storage: Storage = Storage()
    """What is mounted."""
    security: Security = Security()
    """As whom it runs, and what it may do."""

    ports: tuple[Port, ...] = ()
    """Ports opened to the outside."""
    exposed_urls: tuple[ExposedUrl, ...] = ()
    """Web tools opened at a URL."""
    service_type: ServiceType | None = None
    """How ports are opened that do not say."""
    ingress_url: str | None = None
    """URL for service type ingress or external-url; made by the platform unless given."""
    addresses: Strings = ()
    """Where service type portforward listens; localhost unless given."""

    jupyter: bool | None = None
    """Whether it is a Jupyter notebook with the platform's settings."""
    notebook_token: str | None = None
    """Secret that holds the token of the notebook."""
    tensorboard: bool | None = None
    """Whether a TensorBoard runs beside it."""
    tensorboard_logdir: str | None = None
    """Folder that the TensorBoard reads."""

    node_type: str | None = None
    """Node group (value of the node label run.ai/type) it runs on."""
    node_pools: Strings = ()
    """Node pools to try, in this order; the project's unless given."""
    node_selector: Labels = EMPTY_MAP
    """Node labels it needs."""
    tolerations: tuple[NamedToleration, ...] = ()
    """Taints it bears."""
    topology: Topology | None = None
    """Keeps its pods near each other."""
    pod_affinity: PodRule | None = None
    """Only where pods with these labels are."""
    pod_anti_affinity: PodRule | None = None
    """Only where no pods with these labels are."""
    scheduler_name: str | None = None
    """Which scheduler places it; ours unless given."""

    priority_class: PriorityClass | None = None
    """How important it is inside its project; follows from its type unless given."""
    priority: Int32 | None = None
    """The same as a number, for what the classes cannot say."""
    preemptible: bool | None = None
    """Whether it may be stopped for others, and so may go beyond quota; follows from its type unless given."""
    preemption_limit: Count | None = None
    """How often it may lose its place to others and come back; the next time it fails. No limit unless given."""
    preemption_delay: Duration | None = None
    """How long after submission it may not make others stop."""
    preemption_grace: Duration | None = None
    """How long it may take to stop when preempted, at most 5m."""
    terminate_after_preemption: bool | None = None
    """Whether it ends when preempted, instead of going back to the queue."""
    min_available: Positive | None = None
    """Fewest pods that start together; all unless given."""
    min_subgroups: Positive | None = None
    """Fewest of its subgroups that must have their minimum; all unless given."""
    subgroups: tuple[Subgroup, ...] = ()
    """Groups of pods that must start together."""
    stale_gang_grace: DurationOrNever | None = None
    """How long it may run with too few pods, -1 = for ever; the scheduling policy's unless given."""
    elastic: bool | None = None
    """Whether it may start with fewer GPUs and get more later."""

    completions: Positive | None = None
    """How many pods must succeed; 1 unless given."""
    parallelism: Positive | None = None
    """How many pods run at once; 1 unless given."""
    backoff_limit: Annotated[int, Field(ge=0, le=100)] | None = None
    """How often a failed pod is tried again; 6 unless given."""
    auto_deletion_time_after_completion_seconds: Duration | None = None
    """How long it is kept after it has finished; 0 = not at all; for ever unless given."""
    pod_running_timeout: Duration | None = None
    """Fails when its pods have not started after this long."""

    distributed: Distributed | None = None
    """What distributed training adds."""
    serving: Serving | None = None
    """What inference adds."""


_LONGEST_GRACE = 300  # preempted workloads stand in somebody's way


def spec_faults(spec: WorkloadSpec, path: str) -> Iterator[Fault]:
    """What is wrong between fields of a workload's spec."""
    yield from spec.compute.faults(f"{path}.compute")
    yield from _faults_of_type(spec, path)
    names = [variable.name for variable in spec.environment]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Fault(f"{path}.environment", f"has {name} twice")
    if spec.parallelism and spec.completions and spec.parallelism > spec.completions:
        yield Fault(f"{path}.parallelism", "must not be more than completions")
    if spec.preemption_grace is not None and spec.preemption_grace > _LONGEST_GRACE:
        yield Fault(f"{path}.preemptionGrace", f"must be at most {_LONGEST_GRACE} seconds")
    for index, claim in enumerate(spec.storage.pvc):
        yield from claim.faults(f"{path}.storage.pvc[{index}]")


def _faults_of_type(spec: WorkloadSpec, path: str) -> Iterator[Fault]:
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
    """How many pods there are."""

    desired: Count = 0
    """Wanted now."""
    pending: Count = 0
    """Waiting for a node."""
    running: Count = 0
    """Running."""
    ready: Count = 0
    """Running and well."""
    succeeded: Count = 0
    """Ended well."""
    failed: Count = 0
    """Ended with an error."""


@record
class Refusal:
    """Why the scheduler did not start it in one step of its last cycle."""

    step: Interned
    """Step of the cycle, such as allocate or reclaim."""
    code: Interned
    """One word for programs, such as over-fair-share."""
    text: str = ""
    """A sentence for people."""
    missing: Amounts = Amounts()
    """How much more it would have needed."""
    pool: Interned = ""
    """Node pool that was tried."""
    nodes: Count = 0
    """How many nodes said so."""
    final: bool = False
    """Whether stopping others could not change it."""


@record
class Interruption:
    """One time that it was stopped by the platform."""

    at: Time
    """When."""
    reason: Interned = ""
    """One word for programs, such as reclaimed, preempted, moved, node-lost or disrupted."""
    by: str = ""
    """For whom, as project/workload."""
    lost_seconds: float = 0
    """Run time since the last checkpoint that it reported, or else since its start: this has to be repeated."""
    final: bool = False
    """Whether it ended with this, instead of going back to the queue."""
    message: str = ""
    """A sentence for people."""
    pod: str = ""
    """uid of the pod that was stopped, so that none counts twice."""


@record
class Url:
    """Where it can be reached."""

    url: str
    """The URL."""
    name: str = ""
    """What answers there."""
    container: int | None = None
    """Port of the container behind it."""


@record
class WorkloadStatus:
    """How a workload stands; written by the platform."""

    phase: WorkloadPhase | None = None
    """Where it is in its life."""
    reason: Interned = ""
    """One word that says more about the phase, such as TimedOut, Preempted or ImagePullBackOff."""
    message: str = ""
    """A sentence that says more about the phase."""
    observed_generation: Int64 | None = None
    """The generation of the spec this status is about."""
    conditions: tuple[Condition, ...] = ()
    """What is true about it."""
    pods: PodCounts = PodCounts()
    """How many pods there are."""
    requested: Amounts = Amounts()
    """What it asks for in all its pods together."""
    allocated: Amounts = Amounts()
    """What it holds now."""
    pool: Interned = ""
    """Node pool it runs in or waits for."""
    nodes: Strings = ()
    """Nodes it runs on."""
    urls: tuple[Url, ...] = ()
    """Where it can be reached."""
    refusals: tuple[Refusal, ...] = ()
    """Why it waits."""
    queued_at: Time | None = None
    """Since when it waits, counted anew each time that it was stopped; absent while it does not wait."""
    started_at: Time | None = None
    """When it last began to run."""
    finished_at: Time | None = None
    """When it ended."""
    run_seconds: float = 0
    """How long it ran, over all starts, up to the last stop."""
    wait_seconds: float = 0
    """How long it waited, over all waits, up to the last start."""
    idle_seconds: float = 0
    """How long its GPUs have been idle without a break."""
    stale_since: Time | None = None
    """Since when it runs with too few pods."""
    last_failed_pod: str = ""
    """uid of the pod whose failure was counted last, so that none counts twice."""
    restarts: Count = 0
    """How often it was started again: after a failure, after it was stopped for others, or in the same pod."""
    interruptions: tuple[Interruption, ...] = ()
    """When and why the platform stopped it, newest last; the oldest are dropped."""
    interruption_count: Count = 0
    """How often the platform stopped it, in all."""
    preemption_count: Count = 0
    """How often it lost its place to others, in all; being moved is not counted."""
    progress: Annotated[float, Field(ge=0, le=1)] | None = None
    """How far it says it has come, from 0 to 1."""
    metrics: Mapping[str, float] = EMPTY_MAP
    """Numbers it reported, such as loss."""
    parameters: Labels = EMPTY_MAP
    """Texts it reported, such as optimizer_name."""
    replicas: Count | None = None
    """Replicas of an inference workload."""
    revision: str = ""
    """Which version of an inference workload gets the requests."""


@record
class Workload:
    """Something to run on the cluster: training, an interactive session, or inference."""

    ALWAYS: ClassVar = ("spec.type",)

    metadata: Metadata
    """Name and marks."""
    spec: WorkloadSpec = WorkloadSpec()
    """What to run."""
    status: WorkloadStatus = WorkloadStatus()
    """How it stands; written by the platform."""

    def faults(self) -> Iterator[Fault]:
        return spec_faults(self.spec, "spec")
