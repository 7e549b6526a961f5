"""What a scenario file says, as records: amounts in base units, times as they were written.

What fields mean together, and the defaults that depend on other fields, are in load.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aliquot.planner.model import DEFAULT_POOL, DeviceShare, NodeSelectorTerms, Policy, Taint, Toleration

Moment = float | str
TYPES = ("training", "interactive", "inference")
# States in which a task has a node, and what it holds there.
HOLDING = ("running", "terminating", "evicted", "reserved")
STATES = ("pending", *HOLDING, "succeeded", "failed", "gated")


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU of a node."""

    index: int
    memory_mib: int | None = None
    model: str = ""
    mig: Mapping[str, int] = field(default_factory=dict)
    healthy: bool = True
    profile: str = ""  # of a slice that is listed by itself


@dataclass(frozen=True, slots=True)
class NodeSpec:
    name: str
    gpus: int | tuple[Card, ...] | None = None
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
class TermsSpec:
    """Quota and the like, in one node pool; members of quota and limit are None when unlimited."""

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
    created: Moment | None = None
    reclaim_min_runtime: float | None = None
    preempt_min_runtime: float | None = None
    usage: Mapping[str, float] = field(default_factory=dict)
    node_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pools: Mapping[str, TermsSpec] = field(default_factory=dict)

    @property
    def above(self) -> str:
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
class ClosenessSpec:
    name: str = DEFAULT_POOL
    required: str | None = None
    preferred: str | None = None


@dataclass(frozen=True, slots=True)
class NeighboursSpec:
    labels: Mapping[str, str]
    topology_key: str


@dataclass(frozen=True, slots=True)
class GroupSpec:
    name: str
    parent: str = ""
    min_available: int | None = None
    min_subgroups: int | None = None
    topology: ClosenessSpec | None = None


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
    terminating_since: Moment | None = None


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    name: str
    project: str
    type: str = ""
    priority: int | None = None
    preemptible: bool | None = None
    created: Moment | None = None
    min_available: int | None = None
    started: Moment | None = None
    saved: Moment | None = None
    stops: tuple[float, ...] = ()
    stale_since: Moment | None = None
    topology: ClosenessSpec | None = None
    subgroups: tuple[GroupSpec, ...] = ()
    min_subgroups: int | None = None
    preemption_delay: float = 0
    stale_grace: float | None = None
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    pod_affinity: NeighboursSpec | None = None
    pod_anti_affinity: NeighboursSpec | None = None
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
    """One thing that happens: the word of it, and its operands.

    For nodes, projects and departments the operands are the fields that change, with `name` among them; a field is
    replaced as a whole."""

    word: str
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
