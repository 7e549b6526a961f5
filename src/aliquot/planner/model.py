"""What the scheduler looks at: nodes with their devices, queues with their quotas, jobs with their tasks.

Everything is frozen, numeric and in base units: thousandths of a GPU or core, MiB of device memory, bytes; times are
seconds on one clock. Unlimited is None. A device of D MiB has 1000 milli and D MiB, and a request takes of both, so
that whole GPUs, fractions, amounts of memory and MIG slices are one rule over rows of devices:

    whole       1000 milli and D MiB of each device
    fraction f  1000·f milli and ⌊f·D⌋ MiB
    memory M    ⌊1000·M/D⌋ milli and M MiB, counted as ⌈1000·M/D⌉ against quota
    MIG slice   a whole row whose `profile` is the one asked for; Ng.… counts N GPUs against quota

Amounts that take part in fairness are triples (GPU milli, CPU milli, memory bytes), in this order everywhere.
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
    profile: str = ""  # the MIG profile of a slice; empty for a whole card


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A part of one device."""

    index: int
    milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Request:
    """What one task needs on one node. Either `milli` or `memory_mib` says how much of each device; `mig` replaces
    both and names slices: ((profile, count), ...)."""

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
        """What it takes of a device."""
        if device.profile:
            return DeviceShare(device.index, GPU, device.memory_mib)
        if self.memory_mib:
            milli = GPU * self.memory_mib // device.memory_mib if device.memory_mib else GPU
            return DeviceShare(device.index, milli, self.memory_mib)
        return DeviceShare(device.index, self.milli, self.milli * device.memory_mib // GPU)

    def quota(self, memory_mib: int) -> int:
        """Milli-GPU that count against quota, on devices of this size."""
        if self.mig:
            return sum(mig_slice_count(profile) * GPU * count for profile, count in self.mig)
        if self.memory_mib:
            each = -(-GPU * self.memory_mib // memory_mib) if memory_mib else GPU
            return self.devices * each
        return self.devices * self.milli


def mig_slice_count(profile: str) -> int:
    """The N of `Ng.…`."""
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
    """What must hold of one label of a node, as Kubernetes says it; with no key, of the node's name."""

    key: str
    operator: str  # In, NotIn, Exists, DoesNotExist, Gt or Lt
    values: tuple[str, ...] = ()


# One alternative: all of its expressions hold. Of several alternatives one has to.
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
    mig: str = "none"  # none, single (its slices look like whole GPUs) or mixed (its slices are asked for by name)
    foreign: Amount = NOTHING  # what pods of other schedulers use here, and not part of what is shared


class TaskState(Enum):
    PENDING = "pending"
    RUNNING = "running"  # holds its place, whether or not its process has started
    NOMINATED = "reserved"  # an earlier plan promised it this place, which somebody is leaving
    RELEASING = "releasing"  # holds its place still, is on its way and does not come back
    EVICTED = "evicted"  # the same, but pending again once it is gone
    GATED = "gated"  # not to be scheduled yet
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    request: Request
    state: TaskState = TaskState.PENDING
    node: str = ""
    shares: tuple[DeviceShare, ...] = ()
    subgroup: str = ""  # the subgroup it belongs to
    order: int = 0  # higher goes first
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    node_types: tuple[str, ...] = ()  # only nodes of these types; all when empty
    affinity: tuple[NodeSelectorTerms, ...] = ()  # what its node must be like: each of these holds
    releasing_since: float | None = None


@dataclass(frozen=True, slots=True)
class TopologyConstraint:
    """All tasks in one domain of a level (`required`), or at best (`preferred`). Levels are node labels."""

    topology: str = DEFAULT_POOL
    required: str | None = None
    preferred: str | None = None


@dataclass(frozen=True, slots=True)
class SubGroup:
    """A subgroup of a job's tasks, or of other subgroups."""

    name: str
    parent: str = ""
    min_available: int | None = None  # None: all of its tasks
    min_subgroups: int | None = None  # how many of its children must have their minimum; None: all
    topology_constraint: TopologyConstraint | None = None


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Where tasks with these labels are (or are not), by the value of a node label."""

    labels: tuple[tuple[str, str], ...]
    key: str


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    queue: str
    tasks: tuple[Task, ...]
    created: float = 0
    priority: int = 50
    preemptible: bool = True  # may be stopped for others, and so may go beyond quota
    pools: tuple[str, ...] = ()  # node pools to try, in this order; the default pool when empty
    started: float | None = None
    saved: float | None = None  # its last reported checkpoint: what it did before is not lost
    stops: tuple[float, ...] = ()  # when it was stopped or moved for others, oldest first
    min_available: int | None = None  # of the tasks in no subgroup; None: all of them
    subgroups: tuple[SubGroup, ...] = ()
    min_subgroups: int | None = None
    topology_constraint: TopologyConstraint | None = None
    stale_since: float | None = None  # since when it runs with fewer tasks than its minimum
    stale_grace: float | None = None  # its own, instead of the policy's; negative: never stale
    preemption_delay: float = 0  # seconds after its creation in which it may not make others stop or move
    labels: Mapping[str, str] = field(default_factory=dict)
    pod_affinity: PodAffinityTerm | None = None
    pod_anti_affinity: PodAffinityTerm | None = None
    claims: tuple[str, ...] = ()
    hindrance: str = ""  # why it cannot be placed wherever there is room: it asks for what this scheduler cannot give


@dataclass(frozen=True, slots=True)
class PoolQuota:
    """What a queue may have of one node pool."""

    quota: Bound = (0, None, None)
    limit: Bound = UNLIMITED
    # Against its siblings, where spare resources are split by weight. 0: no share beyond quota.
    weight: tuple[float, float, float] = (1, 1, 1)
    over_quota: bool = True
    priority: int = 100


NO_QUOTA = PoolQuota()


@dataclass(frozen=True, slots=True)
class Queue:
    """A project, a department, or any other node of the tree. Only leaves have jobs."""

    name: str
    parent: str = ""  # empty: under the root
    pools: Mapping[str, PoolQuota] = field(default_factory=dict)
    created: float = 0
    reclaim_min_runtime: float | None = None  # None: what its parent says
    preempt_min_runtime: float | None = None
    usage: tuple[float, float, float] = (0, 0, 0)  # past use, as a part of all there was

    def pool_quota(self, pool: str) -> PoolQuota:
        return self.pools.get(pool, NO_QUOTA)


STEPS = ("allocate", "consolidate", "reclaim", "preempt", "stale-gang")


@dataclass(frozen=True, slots=True)
class Policy:
    """How a pool is shared."""

    steps: tuple[str, ...] = STEPS
    spare: str = "quota"  # split by quota or by weight
    gpu: str = "binpack"  # nodes for GPU pods: binpack, spread or least-fragments
    cpu: str = "binpack"  # nodes for CPU-only pods
    device: str = "binpack"  # which GPU of a node a fraction takes
    stale_grace: float = 60  # 0: at once; negative: never
    terminating_grace: float | None = None
    usage_weight: float = 0  # k of time-based fair share
    victims: str = "least-disruption"  # or newest
    disruption_bound: float | None = 4
    share_unit: str = "milli"  # or whole
    saturation_multiplier: float = 1
    department_first: bool = True
    hold_after: float | None = 600  # how long a job waits before room is kept for it (see keeping.py); None: never
    restarts_per_hour: int | None = None  # most times an hour that a job is stopped or moved for others


@dataclass(frozen=True, slots=True)
class Snapshot:
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    jobs: tuple[Job, ...]
    topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # node labels, outer to inner
    claims: frozenset[str] | None = None  # the volume claims there are; None: not looked at
