"""The contents of a scenario file as dataclasses: amounts in base units, times as written.

Defaults that depend on other fields, and the conversion to the planner's model, are in model_builder.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aliquot.planner.model import DEFAULT_POOL, DeviceShare, NodeSelectorTerms, Policy, Taint, Toleration

TimeValue = float | str
WORKLOAD_TYPES = ("training", "interactive", "inference")
# States in which a task has a node and holds devices there.
PLACED_STATES = ("running", "terminating", "evicted", "reserved")
TASK_STATES = ("pending", *PLACED_STATES, "succeeded", "failed", "gated")


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU of a node."""

    index: int
    memory_mib: int | None = None
    model: str = ""
    mig: Mapping[str, int] = field(default_factory=dict)
    healthy: bool = True
    profile: str = ""  # of a MIG slice that is listed as a device of its own


@dataclass(frozen=True, slots=True)
class NodeSpec:
    name: str
    gpus: int | tuple[GpuSpec, ...] | None = None
    gpu_memory_mib: int = 0
    cpu: int | None = None
    memory: int | None = None
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    mig_strategy: str | None = None
    mig: Mapping[str, int] = field(default_factory=dict)
    ready: bool = True
    pool: str = DEFAULT_POOL
    foreign: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolQuotaSpec:
    """Quota, limit and weight in one node pool; a resource of quota or limit is None when unlimited."""

    quota: Mapping[str, int | None] = field(default_factory=dict)
    limit: Mapping[str, int | None] = field(default_factory=dict)
    over_quota: bool = True
    weight: Mapping[str, float] = field(default_factory=dict)
    priority: int = 100


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A project or a department."""

    name: str
    department: str = ""
    parent: str = ""
    quota: Mapping[str, int | None] = field(default_factory=dict)
    limit: Mapping[str, int | None] = field(default_factory=dict)
    over_quota: bool = True
    weight: Mapping[str, float] = field(default_factory=dict)
    priority: int = 100
    created: TimeValue | None = None
    reclaim_min_runtime: float | None = None
    preempt_min_runtime: float | None = None
    usage: Mapping[str, float] = field(default_factory=dict)
    node_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pools: Mapping[str, PoolQuotaSpec] = field(default_factory=dict)

    @property
    def parent_queue(self) -> str:
        return self.department or self.parent


@dataclass(frozen=True, slots=True)
class RequestSpec:
    gpu: int | None = None
    gpu_fraction: int | None = None
    gpu_memory_mib: int | None = None
    devices: int | None = None
    mig: Mapping[str, int] = field(default_factory=dict)
    cpu: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class TopologySpec:
    name: str = DEFAULT_POOL
    required: str | None = None
    preferred: str | None = None


@dataclass(frozen=True, slots=True)
class PodAffinitySpec:
    labels: Mapping[str, str]
    topology_key: str


@dataclass(frozen=True, slots=True)
class SubgroupSpec:
    name: str
    parent: str = ""
    min_available: int | None = None
    min_subgroups: int | None = None
    topology: TopologySpec | None = None


@dataclass(frozen=True, slots=True)
class TaskSpec:
    name: str = ""
    subgroup: str = ""
    state: str = "pending"
    node: str = ""
    devices: tuple[int, ...] = ()
    share_group: str = ""
    shares: tuple[DeviceShare, ...] | None = None
    request: RequestSpec | None = None
    order: int = 0
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] | None = None
    node_types: tuple[str, ...] | None = None
    node_affinity: tuple[NodeSelectorTerms, ...] | None = None
    terminating_since: TimeValue | None = None


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    name: str
    project: str
    type: str = ""
    priority: int | None = None
    preemptible: bool | None = None
    created: TimeValue | None = None
    min_available: int | None = None
    started: TimeValue | None = None
    saved: TimeValue | None = None
    stops: tuple[float, ...] = ()
    stale_since: TimeValue | None = None
    topology: TopologySpec | None = None
    subgroups: tuple[SubgroupSpec, ...] = ()
    min_subgroups: int | None = None
    preemption_delay: float = 0
    stale_grace: float | None = None
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    pod_affinity: PodAffinitySpec | None = None
    pod_anti_affinity: PodAffinitySpec | None = None
    volume_claims: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_pools: tuple[str, ...] = ()
    node_types: tuple[str, ...] | None = None
    node_affinity: tuple[NodeSelectorTerms, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    hindrance: str = ""
    request: RequestSpec = RequestSpec()
    replicas: int | None = None
    tasks: tuple[TaskSpec, ...] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the cluster: an action such as submit, and its operands.

    For nodes, projects and departments the operands are the fields that change, with `name` among them; a field is
    replaced as a whole."""

    action: str
    operands: Any


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str = ""
    now: float | None = None
    rounds: int | None = None
    policy: Policy = field(default_factory=Policy)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    nodes: tuple[NodeSpec, ...] = ()
    topology: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    volume_claims: tuple[str, ...] = ()
    departments: tuple[QueueSpec, ...] = ()
    projects: tuple[QueueSpec, ...] = ()
    workloads: tuple[WorkloadSpec, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def submitted(self) -> list[WorkloadSpec]:
        """The workloads that steps submit."""
        return [workload for step in self.steps if step.action == "submit" for workload in step.operands]
