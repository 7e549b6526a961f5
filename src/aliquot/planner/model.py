"""What the planner reads: nodes with their devices, queues with their quotas, jobs with their tasks.

Everything is frozen, numeric and in base units: thousandths of a GPU or core (milli), MiB of device memory, bytes of
memory, seconds on one clock. Unlimited is None. A device of D MiB has 1000 milli and D MiB, and a request takes some of
both. So one rule covers whole GPUs, fractions, amounts of GPU memory and MIG slices:

    whole       1000 milli and D MiB of each device
    fraction f  1000·f milli and ⌊f·D⌋ MiB
    memory M    ⌊1000·M/D⌋ milli and M MiB, counted as ⌈1000·M/D⌉ against quota
    MIG slice   a whole device with the requested `profile`; a slice of Ng.… counts N GPUs against quota

Amounts that count for quota and fair share are triples (GPU milli, CPU milli, memory bytes), always in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

GPU = 1000
DEFAULT_POOL = "default"
RESOURCES = ("gpu", "cpu", "memory")

Amount = tuple[int, int, int]
Bound = tuple[int | None, int | None, int | None]
NOTHING: Amount = (0, 0, 0)
UNLIMITED: Bound = (None, None, None)


@dataclass(frozen=True, slots=True)
class Device:
    index: int
    memory_mib: int
    healthy: bool = True
    profile: str = ""  # the MIG profile of a slice; empty for a whole GPU


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What a task holds of one device."""

    index: int
    milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Request:
    """What one task needs on one node. Either `milli` or `memory_mib` is the part of each device. `mig` replaces both
    and names slices: ((profile, count), ...)."""

    devices: int = 0
    milli: int = 0
    memory_mib: int = 0
    cpu: int = 0
    memory: int = 0
    mig: tuple[tuple[str, int], ...] = ()

    @property
    def whole(self) -> bool:
        return self.milli == GPU and not self.memory_mib

    def share_of(self, device: Device) -> DeviceShare:
        """What the task takes of a device."""
        if device.profile:
            return DeviceShare(device.index, GPU, device.memory_mib)
        if self.memory_mib:
            milli = GPU * self.memory_mib // device.memory_mib if device.memory_mib else GPU
            return DeviceShare(device.index, milli, self.memory_mib)
        return DeviceShare(device.index, self.milli, self.milli * device.memory_mib // GPU)

    def quota(self, memory_mib: int) -> int:
        """Milli-GPU that count against quota on devices of this size."""
        if self.mig:
            return sum(mig_slice_count(profile) * GPU * count for profile, count in self.mig)
        if self.memory_mib:
            each = -(-GPU * self.memory_mib // memory_mib) if memory_mib else GPU
            return self.devices * each
        return self.devices * self.milli


def mig_slice_count(profile: str) -> int:
    """The N of a profile `Ng.…`."""
    number = profile.partition("g.")[0]
    return int(number) if number.isdigit() else 1


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    key: str = ""  # empty: every key
    value: str | None = None  # None: every value
    effect: str = ""  # empty: every effect


@dataclass(frozen=True, slots=True)
class NodeSelectorRequirement:
    """A requirement for the value of one node label, as in Kubernetes. Without a key it is for the node's name."""

    key: str
    operator: str  # In, NotIn, Exists, DoesNotExist, Gt or Lt
    values: tuple[str, ...] = ()


# As in Kubernetes: one of the terms must match, and a term matches when all of its requirements do.
NodeSelectorTerms = tuple[tuple[NodeSelectorRequirement, ...], ...]


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    devices: tuple[Device, ...] = ()
    cpu: int = 0
    memory: int = 0
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    pool: str = DEFAULT_POOL
    mig: str = "none"  # none, single (slices look like whole GPUs) or mixed (slices are requested by profile)
    foreign: Amount = NOTHING  # used by pods of other schedulers; not part of the capacity that queues share


class TaskState(Enum):
    PENDING = "pending"
    RUNNING = "running"  # bound to its node, whether or not its process has started
    NOMINATED = "reserved"  # an earlier plan nominated it for devices that are not released yet
    RELEASING = "releasing"  # terminates, holds its devices until it has ended, and is not scheduled again
    EVICTED = "evicted"  # the same, but pending again once it has ended
    GATED = "gated"  # has a scheduling gate
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    request: Request
    state: TaskState = TaskState.PENDING
    node: str = ""
    shares: tuple[DeviceShare, ...] = ()
    subgroup: str = ""
    order: int = 0  # tasks with a higher number start first
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    node_types: tuple[str, ...] = ()  # nodes of these types; all when empty
    affinity: tuple[NodeSelectorTerms, ...] = ()  # its node must match each of these
    releasing_since: float | None = None


@dataclass(frozen=True, slots=True)
class TopologyConstraint:
    """The tasks must (`required`) or should (`preferred`) be in one domain of a level. Levels are node labels."""

    topology: str = DEFAULT_POOL
    required: str | None = None
    preferred: str | None = None


@dataclass(frozen=True, slots=True)
class SubGroup:
    """A group of tasks of a job, or of other subgroups."""

    name: str
    parent: str = ""
    min_available: int | None = None  # None: all of its tasks
    min_subgroups: int | None = None  # how many of its subgroups must have their minimum; None: all
    topology_constraint: TopologyConstraint | None = None


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Tasks with these labels in one topology domain, which is all nodes with one value of the node label `key`."""

    labels: tuple[tuple[str, str], ...]
    key: str


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    queue: str
    tasks: tuple[Task, ...]
    created: float = 0
    priority: int = 50
    preemptible: bool = True  # may be evicted for other jobs, and so may go over quota
    pools: tuple[str, ...] = ()  # the node pools that it tries, in this order; the default pool when empty
    started: float | None = None
    saved: float | None = None  # the time of its last checkpoint: an eviction loses only later work
    stops: tuple[float, ...] = ()  # when it was evicted or moved for other jobs, oldest first
    min_available: int | None = None  # of the tasks without a subgroup; None: all of them
    subgroups: tuple[SubGroup, ...] = ()
    min_subgroups: int | None = None
    topology_constraint: TopologyConstraint | None = None
    stale_since: float | None = None  # since when fewer tasks than its minimum run
    stale_grace: float | None = None  # instead of the policy's; negative: never stale
    preemption_delay: float = 0  # seconds after its creation in which no task is evicted or moved for it
    labels: Mapping[str, str] = field(default_factory=dict)
    pod_affinity: PodAffinityTerm | None = None
    pod_anti_affinity: PodAffinityTerm | None = None
    claims: tuple[str, ...] = ()
    hindrance: str = ""  # why this scheduler cannot run it, whatever is free; empty when it can


@dataclass(frozen=True, slots=True)
class PoolQuota:
    """The quota, limit and weight of a queue in one node pool."""

    quota: Bound = (0, None, None)
    limit: Bound = UNLIMITED
    # The queue's part of spare resources, where these are split by weight. 0: nothing beyond quota.
    weight: tuple[float, float, float] = (1, 1, 1)
    over_quota: bool = True
    priority: int = 100


NO_QUOTA = PoolQuota()


@dataclass(frozen=True, slots=True)
class Queue:
    """A project, a department, or another node of the tree of queues. Only leaves have jobs."""

    name: str
    parent: str = ""  # empty: a root of the tree
    pools: Mapping[str, PoolQuota] = field(default_factory=dict)
    created: float = 0
    reclaim_min_runtime: float | None = None  # None: as its parent
    preempt_min_runtime: float | None = None
    usage: tuple[float, float, float] = (0, 0, 0)  # past usage as a fraction of the capacity

    def pool_quota(self, pool: str) -> PoolQuota:
        return self.pools.get(pool, NO_QUOTA)


STEPS = ("allocate", "consolidate", "reclaim", "preempt", "stale-gang")


@dataclass(frozen=True, slots=True)
class Policy:
    """How a node pool is scheduled."""

    steps: tuple[str, ...] = STEPS
    spare: str = "quota"  # whether spare resources are split by quota or by weight
    gpu: str = "binpack"  # the choice of nodes for GPU tasks: binpack, spread or least-fragments
    cpu: str = "binpack"  # the choice of nodes for CPU-only tasks
    device: str = "binpack"  # the choice of the GPU for a fraction
    stale_grace: float = 60  # 0: at once; negative: never
    terminating_grace: float | None = None
    usage_weight: float = 0  # k of time-based fair share
    victims: str = "least-disruption"  # or newest
    disruption_bound: float | None = 4
    share_unit: str = "milli"  # or whole
    saturation_multiplier: float = 1
    department_first: bool = True
    hold_after: float | None = 600  # the starvation limit (see placement/starvation.py); None: no reservations
    restarts_per_hour: int | None = None  # how often a job may be evicted or moved in an hour


@dataclass(frozen=True, slots=True)
class Snapshot:
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    jobs: tuple[Job, ...]
    topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # node labels, outer to inner
    claims: frozenset[str] | None = None  # the volume claims that exist; None: not checked
