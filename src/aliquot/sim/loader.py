"""From a scenario to what the scheduler looks at.

Time is counted from the scenario's `now`, which is 0: nothing here depends on the day it is run. Workloads without a
time of creation were created in the order of the file, just before they were first seen, a microsecond apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aliquot import units
from aliquot.planner.model import (
    DEFAULT_POOL,
    GPU,
    RESOURCES,
    Device,
    DeviceShare,
    Job,
    Node,
    PodAffinityTerm,
    PoolQuota,
    Queue,
    Request,
    SubGroup,
    Task,
    TaskState,
    TopologyConstraint,
)
from aliquot.sim.devices import Holder, held
from aliquot.sim.field_readers import Place
from aliquot.sim.records import (
    HOLDING,
    Card,
    ClosenessSpec,
    GroupSpec,
    Moment,
    NeighboursSpec,
    NodeSpec,
    QueueSpec,
    RequestSpec,
    Scenario,
    TaskSpec,
    TermsSpec,
    WorkloadSpec,
)
from aliquot.sim.references import task_names

_TICK = 1e-6
_MIB_PER_GB = 1024
# A node that does not say has more than anybody asks for, and so little that sums over a cluster stay 64-bit numbers.
_PLENTY_CPU, _PLENTY_MEMORY = 10**9, 1 << 44
_PRIORITY = {"training": 50, "interactive": 100, "inference": 125}
_FIXED_FROM = 100  # what has this priority may not be stopped, where neither type nor file says
_STATES = {"terminating": TaskState.RELEASING}
_NOTHING: tuple[DeviceShare, ...] = ()


class Loader:
    """Makes the scheduler's things from a scenario's, at the start and when steps bring more."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        submitted = [each for step in scenario.steps if step.word == "submit" for each in step.operands]
        self._unborn = sum(each.created is None for each in (*scenario.workloads, *submitted))
        self._queues = len(scenario.departments) + len(scenario.projects)

    def time(self, moment: Moment | None) -> float | None:
        if isinstance(moment, str):
            return units.timestamp(moment) - (self.scenario.now or 0)
        return moment

    def node(self, spec: NodeSpec) -> Node:
        devices = _devices(spec)
        return Node(
            name=spec.name,
            devices=devices,
            cpu=_PLENTY_CPU if spec.cpu is None else spec.cpu,
            memory=_PLENTY_MEMORY if spec.memory is None else spec.memory,
            pods=spec.pods,
            labels=spec.labels,
            taints=spec.taints,
            ready=spec.ready,
            pool=spec.pool,
            mig=_strategy(spec),
            foreign=(spec.foreign.get("gpu") or 0, spec.foreign.get("cpu") or 0, spec.foreign.get("memory") or 0),
        )

    def queue(self, spec: QueueSpec, place: int) -> Queue:
        created = self.time(spec.created)
        bare = TermsSpec(spec.quota, spec.limit, spec.over_quota, spec.weight, spec.priority)
        usage = spec.usage
        return Queue(
            name=spec.name,
            parent=spec.above,
            pools={DEFAULT_POOL: _terms(bare), **{pool: _terms(each) for pool, each in spec.pools.items()}},
            created=(place - self._queues) * _TICK if created is None else created,
            reclaim_min_runtime=spec.reclaim_min_runtime,
            preempt_min_runtime=spec.preempt_min_runtime,
            usage=(usage.get("gpu", 0.0), usage.get("cpu", 0.0), usage.get("memory", 0.0)),
        )

    def jobs(
        self, specs: Sequence[WorkloadSpec], projects: Mapping[str, QueueSpec], nodes: Mapping[str, Node], now: float,
        place: Place,
    ) -> list[Job]:  # fmt: skip
        """Jobs with their tasks; faults, where nodes lack what tasks are said to hold, go to `place`."""
        holders = [
            Holder((row, column), task, request_of(task.request or spec.request), place.at(row, "tasks", column))
            for row, spec in enumerate(specs)
            for column, task in enumerate(spec.tasks or ())
            if task.state in HOLDING
        ]
        shares = held(nodes, holders) if holders else {}
        return [self._job(spec, row, projects[spec.project], shares, now) for row, spec in enumerate(specs)]

    def _created(self, spec: WorkloadSpec, now: float) -> float:
        given = self.time(spec.created)
        if given is not None:
            return given
        self._unborn -= 1
        return now - self._unborn * _TICK

    def _job(
        self,
        spec: WorkloadSpec,
        row: int,
        project: QueueSpec,
        shares: Mapping[tuple[int, int], tuple[DeviceShare, ...]],
        now: float,
    ) -> Job:
        kind = spec.type or "training"
        priority = _PRIORITY[kind] if spec.priority is None else spec.priority
        return Job(
            name=spec.name,
            queue=spec.project,
            tasks=self._tasks(spec, row, _node_types(spec, project, kind), shares),
            created=self._created(spec, now),
            priority=priority,
            preemptible=_preemptible(spec, priority),
            pools=spec.node_pools,
            started=self.time(spec.started),
            saved=self.time(spec.saved),
            stops=tuple(sorted(spec.stops)),
            min_available=None if spec.min_available is None else max(1, spec.min_available),
            subgroups=tuple(map(_group, spec.subgroups)),
            min_subgroups=spec.min_subgroups,
            topology_constraint=_closeness(spec.topology),
            stale_since=self.time(spec.stale_since),
            stale_grace=spec.stale_grace,
            preemption_delay=spec.preemption_delay,
            labels=spec.pod_labels,
            pod_affinity=_neighbours(spec.pod_affinity),
            pod_anti_affinity=_neighbours(spec.pod_anti_affinity),
            claims=spec.volume_claims,
            hindrance=spec.hindrance,
        )

    def _tasks(
        self, spec: WorkloadSpec, row: int, node_types: tuple[str, ...],
        shares: Mapping[tuple[int, int], tuple[DeviceShare, ...]],
    ) -> tuple[Task, ...]:  # fmt: skip
        request = request_of(spec.request)
        plain = Task(
            "",
            request,
            selector=spec.node_selector,
            tolerations=spec.tolerations,
            node_types=node_types,
            affinity=spec.node_affinity,
        )
        names = task_names(spec)
        if spec.tasks is None:
            return tuple(replace(plain, name=name) for name in names)
        return tuple(
            self._task(task, plain, name, shares.get((row, index), _NOTHING))
            for index, (task, name) in enumerate(zip(spec.tasks, names, strict=True))
        )

    def _task(self, spec: TaskSpec, plain: Task, name: str, shares: tuple[DeviceShare, ...]) -> Task:
        return Task(
            name=name,
            request=plain.request if spec.request is None else request_of(spec.request),
            state=_STATES.get(spec.state) or TaskState(spec.state),
            node=spec.node if spec.state in HOLDING else "",
            shares=shares,
            subgroup=spec.subgroup,
            order=spec.order,
            selector={**plain.selector, **spec.node_selector} if spec.node_selector else plain.selector,
            tolerations=plain.tolerations if spec.tolerations is None else spec.tolerations,
            node_types=plain.node_types if spec.node_types is None else spec.node_types,
            affinity=plain.affinity if spec.node_affinity is None else spec.node_affinity,
            releasing_since=self.time(spec.terminating_since),
        )


def _node_types(spec: WorkloadSpec, project: QueueSpec, kind: str) -> tuple[str, ...]:
    return project.node_types.get(kind, ()) if spec.node_types is None else spec.node_types


def request_of(spec: RequestSpec) -> Request:
    if spec.mig:
        mig = tuple(sorted((profile, count) for profile, count in spec.mig.items() if count))
        return Request(devices=sum(count for _, count in mig), milli=GPU, cpu=spec.cpu, memory=spec.memory, mig=mig)
    if spec.gpu_fraction is not None:
        return Request(devices=spec.devices or 1, milli=spec.gpu_fraction, cpu=spec.cpu, memory=spec.memory)
    if spec.gpu_memory_mib is not None:
        return Request(devices=spec.devices or 1, memory_mib=spec.gpu_memory_mib, cpu=spec.cpu, memory=spec.memory)
    gpus = spec.gpu or 0
    return Request(devices=gpus, milli=GPU if gpus else 0, cpu=spec.cpu, memory=spec.memory)


def _preemptible(spec: WorkloadSpec, priority: int) -> bool:
    if spec.preemptible is not None:
        return spec.preemptible
    return spec.type == "training" if spec.type else priority < _FIXED_FROM


def _strategy(spec: NodeSpec) -> str:
    if spec.mig_strategy:
        return spec.mig_strategy
    cut = spec.mig or (isinstance(spec.gpus, tuple) and any(card.mig for card in spec.gpus))
    return "mixed" if cut else "none"


def _devices(spec: NodeSpec) -> tuple[Device, ...]:
    """The rows of a node: its cards, or the slices that they are cut into, which come after the cards."""
    strategy = _strategy(spec)
    cards = spec.gpus if isinstance(spec.gpus, tuple) else ()
    cut = dict(spec.mig)
    whole = [_card(card, spec) for card in cards if not card.mig]
    for card in cards:
        for profile, count in card.mig.items():
            cut[profile] = cut.get(profile, 0) + count
    if isinstance(spec.gpus, int) and not (cut and strategy == "mixed"):
        # A number beside mixed slices counts the cards that were cut.
        whole = [Device(index, spec.gpu_memory_mib) for index in range(spec.gpus)]
    if spec.gpus is not None and strategy == "single" and not any(card.mig for card in cards):
        cut = {}  # its slices are what it calls GPUs
    first = max((device.index for device in whole), default=-1) + 1
    profiles = [profile for profile, count in cut.items() for _ in range(count)]
    slices = [
        Device(first + row, _slice_memory(profile), profile="" if strategy == "single" else profile)
        for row, profile in enumerate(profiles)
    ]
    return (*whole, *slices)


def _card(card: Card, spec: NodeSpec) -> Device:
    memory = spec.gpu_memory_mib if card.memory_mib is None else card.memory_mib
    return Device(card.index, memory, card.healthy, card.profile)


def _slice_memory(profile: str) -> int:
    return int(profile.partition("g.")[2].partition("gb")[0]) * _MIB_PER_GB


def _terms(spec: TermsSpec) -> PoolQuota:
    quota, limit, weight = spec.quota, spec.limit, spec.weight
    gpu, cpu, memory = RESOURCES
    return PoolQuota(
        quota=(quota.get(gpu, 0), quota.get(cpu), quota.get(memory)),
        limit=(limit.get(gpu), limit.get(cpu), limit.get(memory)),
        weight=(weight.get(gpu, 1), weight.get(cpu, 1), weight.get(memory, 1)),
        over_quota=spec.over_quota,
        priority=spec.priority,
    )


def _closeness(spec: ClosenessSpec | None) -> TopologyConstraint | None:
    return None if spec is None else TopologyConstraint(spec.name, spec.required, spec.preferred)


def _group(spec: GroupSpec) -> SubGroup:
    return SubGroup(spec.name, spec.parent, spec.min_available, spec.min_subgroups, _closeness(spec.topology))


def _neighbours(spec: NeighboursSpec | None) -> PodAffinityTerm | None:
    return None if spec is None else PodAffinityTerm(tuple(sorted(spec.labels.items())), spec.topology_key)
