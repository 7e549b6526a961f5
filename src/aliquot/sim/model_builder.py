"""Builds the planner's model (nodes, queues, jobs) from the specs of a scenario.

Time is counted from the scenario's `now`, which is 0, so a result never depends on the day of the run. Workloads
without a creation time are created in the order of the file, a microsecond apart, just before they are submitted.
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
from aliquot.sim.device_assignment import PlacedTask, assign_devices
from aliquot.sim.field_readers import FieldPath
from aliquot.sim.references import task_names
from aliquot.sim.scenario_spec import (
    PLACED_STATES,
    GpuSpec,
    NodeSpec,
    PodAffinitySpec,
    PoolQuotaSpec,
    QueueSpec,
    RequestSpec,
    Scenario,
    SubgroupSpec,
    TaskSpec,
    TimeValue,
    TopologySpec,
    WorkloadSpec,
)

_TICK = 1e-6
_MIB_PER_GB = 1024
# Defaults of a node without cpu or memory: more than a task requests, and small enough that sums over a cluster fit
# into 64 bits.
_DEFAULT_CPU, _DEFAULT_MEMORY = 10**9, 1 << 44
_PRIORITY = {"training": 50, "interactive": 100, "inference": 125}
NONPREEMPTIBLE_FROM = 100  # the priority from which a workload with neither type nor `preemptible` is not preemptible
_STATES = {"terminating": TaskState.RELEASING}
_NO_SHARES: tuple[DeviceShare, ...] = ()


class ModelBuilder:
    """Builds the model of a scenario, at the start and when steps change or submit something."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        # Workloads without a creation time that are still to be created.
        self._undated = sum(spec.created is None for spec in (*scenario.workloads, *scenario.submitted))
        self._queue_count = len(scenario.departments) + len(scenario.projects)

    def time(self, value: TimeValue | None) -> float | None:
        """Seconds relative to the scenario's `now`."""
        if isinstance(value, str):
            return units.timestamp(value) - (self.scenario.now or 0)
        return value

    def node(self, spec: NodeSpec) -> Node:
        devices = _devices(spec)
        return Node(
            name=spec.name,
            devices=devices,
            cpu=_DEFAULT_CPU if spec.cpu is None else spec.cpu,
            memory=_DEFAULT_MEMORY if spec.memory is None else spec.memory,
            pods=spec.pods,
            labels=spec.labels,
            taints=spec.taints,
            ready=spec.ready,
            pool=spec.pool,
            mig=_mig_strategy(spec),
            foreign=(spec.foreign.get("gpu") or 0, spec.foreign.get("cpu") or 0, spec.foreign.get("memory") or 0),
        )

    def queue(self, spec: QueueSpec, position: int) -> Queue:
        created = self.time(spec.created)
        default_pool = PoolQuotaSpec(spec.quota, spec.limit, spec.over_quota, spec.weight, spec.priority)
        usage = spec.usage
        return Queue(
            name=spec.name,
            parent=spec.parent_queue,
            pools={
                DEFAULT_POOL: _pool_quota(default_pool),
                **{pool: _pool_quota(each) for pool, each in spec.pools.items()},
            },
            created=(position - self._queue_count) * _TICK if created is None else created,
            reclaim_min_runtime=spec.reclaim_min_runtime,
            preempt_min_runtime=spec.preempt_min_runtime,
            usage=(usage.get("gpu", 0.0), usage.get("cpu", 0.0), usage.get("memory", 0.0)),
        )

    def jobs(
        self, specs: Sequence[WorkloadSpec], projects: Mapping[str, QueueSpec], nodes: Mapping[str, Node], now: float,
        path: FieldPath,
    ) -> list[Job]:  # fmt: skip
        """Jobs with their tasks. A node that lacks the devices of its tasks is a fault, which is added to `path`."""
        placed = [
            PlacedTask((index, number), task, request_of(task.request or spec.request), path.at(index, "tasks", number))
            for index, spec in enumerate(specs)
            for number, task in enumerate(spec.tasks or ())
            if task.state in PLACED_STATES
        ]
        shares = assign_devices(nodes, placed) if placed else {}
        return [self._job(spec, index, projects[spec.project], shares, now) for index, spec in enumerate(specs)]

    def _created(self, spec: WorkloadSpec, now: float) -> float:
        created = self.time(spec.created)
        if created is not None:
            return created
        self._undated -= 1
        return now - self._undated * _TICK

    def _job(
        self,
        spec: WorkloadSpec,
        spec_index: int,
        project: QueueSpec,
        shares: Mapping[tuple[int, int], tuple[DeviceShare, ...]],
        now: float,
    ) -> Job:
        workload_type = spec.type or "training"
        priority = _PRIORITY[workload_type] if spec.priority is None else spec.priority
        return Job(
            name=spec.name,
            queue=spec.project,
            tasks=self._tasks(spec, spec_index, _node_types(spec, project, workload_type), shares),
            created=self._created(spec, now),
            priority=priority,
            preemptible=_preemptible(spec, priority),
            pools=spec.node_pools,
            started=self.time(spec.started),
            saved=self.time(spec.saved),
            stops=tuple(sorted(spec.stops)),
            min_available=None if spec.min_available is None else max(1, spec.min_available),
            subgroups=tuple(map(_subgroup, spec.subgroups)),
            min_subgroups=spec.min_subgroups,
            topology_constraint=_topology(spec.topology),
            stale_since=self.time(spec.stale_since),
            stale_grace=spec.stale_grace,
            preemption_delay=spec.preemption_delay,
            labels=spec.pod_labels,
            pod_affinity=_pod_affinity(spec.pod_affinity),
            pod_anti_affinity=_pod_affinity(spec.pod_anti_affinity),
            claims=spec.volume_claims,
            hindrance=spec.hindrance,
        )

    def _tasks(
        self, spec: WorkloadSpec, spec_index: int, node_types: tuple[str, ...],
        shares: Mapping[tuple[int, int], tuple[DeviceShare, ...]],
    ) -> tuple[Task, ...]:  # fmt: skip
        request = request_of(spec.request)
        defaults = Task(
            "",
            request,
            selector=spec.node_selector,
            tolerations=spec.tolerations,
            node_types=node_types,
            affinity=spec.node_affinity,
        )
        names = task_names(spec)
        if spec.tasks is None:
            return tuple(replace(defaults, name=name) for name in names)
        return tuple(
            self._task(task, defaults, name, shares.get((spec_index, index), _NO_SHARES))
            for index, (task, name) in enumerate(zip(spec.tasks, names, strict=True))
        )

    def _task(self, spec: TaskSpec, defaults: Task, name: str, shares: tuple[DeviceShare, ...]) -> Task:
        return Task(
            name=name,
            request=defaults.request if spec.request is None else request_of(spec.request),
            state=_STATES.get(spec.state) or TaskState(spec.state),
            node=spec.node if spec.state in PLACED_STATES else "",
            shares=shares,
            subgroup=spec.subgroup,
            order=spec.order,
            selector={**defaults.selector, **spec.node_selector} if spec.node_selector else defaults.selector,
            tolerations=defaults.tolerations if spec.tolerations is None else spec.tolerations,
            node_types=defaults.node_types if spec.node_types is None else spec.node_types,
            affinity=defaults.affinity if spec.node_affinity is None else spec.node_affinity,
            releasing_since=self.time(spec.terminating_since),
        )


def _node_types(spec: WorkloadSpec, project: QueueSpec, workload_type: str) -> tuple[str, ...]:
    return project.node_types.get(workload_type, ()) if spec.node_types is None else spec.node_types


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
    return spec.type == "training" if spec.type else priority < NONPREEMPTIBLE_FROM


def _mig_strategy(spec: NodeSpec) -> str:
    if spec.mig_strategy:
        return spec.mig_strategy
    partitioned = spec.mig or (isinstance(spec.gpus, tuple) and any(gpu.mig for gpu in spec.gpus))
    return "mixed" if partitioned else "none"


def _devices(spec: NodeSpec) -> tuple[Device, ...]:
    """The devices of a node: its whole GPUs, then the MIG slices of the partitioned ones."""
    strategy = _mig_strategy(spec)
    gpus = spec.gpus if isinstance(spec.gpus, tuple) else ()
    slice_counts = dict(spec.mig)
    whole = [_whole_gpu(gpu, spec) for gpu in gpus if not gpu.mig]
    for gpu in gpus:
        for profile, count in gpu.mig.items():
            slice_counts[profile] = slice_counts.get(profile, 0) + count
    if isinstance(spec.gpus, int) and not (slice_counts and strategy == "mixed"):
        # With strategy mixed and slices, `gpus` is the number of the partitioned GPUs.
        whole = [Device(index, spec.gpu_memory_mib) for index in range(spec.gpus)]
    if spec.gpus is not None and strategy == "single" and not any(gpu.mig for gpu in gpus):
        slice_counts = {}  # with strategy single, `gpus` already counts the slices
    first = max((device.index for device in whole), default=-1) + 1
    profiles = [profile for profile, count in slice_counts.items() for _ in range(count)]
    slices = [
        Device(first + offset, _slice_memory(profile), profile="" if strategy == "single" else profile)
        for offset, profile in enumerate(profiles)
    ]
    return (*whole, *slices)


def _whole_gpu(gpu: GpuSpec, spec: NodeSpec) -> Device:
    memory = spec.gpu_memory_mib if gpu.memory_mib is None else gpu.memory_mib
    return Device(gpu.index, memory, gpu.healthy, gpu.profile)


def _slice_memory(profile: str) -> int:
    return int(profile.partition("g.")[2].partition("gb")[0]) * _MIB_PER_GB


def _pool_quota(spec: PoolQuotaSpec) -> PoolQuota:
    quota, limit, weight = spec.quota, spec.limit, spec.weight
    gpu, cpu, memory = RESOURCES
    return PoolQuota(
        quota=(quota.get(gpu, 0), quota.get(cpu), quota.get(memory)),
        limit=(limit.get(gpu), limit.get(cpu), limit.get(memory)),
        weight=(weight.get(gpu, 1), weight.get(cpu, 1), weight.get(memory, 1)),
        over_quota=spec.over_quota,
        priority=spec.priority,
    )


def _topology(spec: TopologySpec | None) -> TopologyConstraint | None:
    return None if spec is None else TopologyConstraint(spec.name, spec.required, spec.preferred)


def _subgroup(spec: SubgroupSpec) -> SubGroup:
    return SubGroup(spec.name, spec.parent, spec.min_available, spec.min_subgroups, _topology(spec.topology))


def _pod_affinity(spec: PodAffinitySpec | None) -> PodAffinityTerm | None:
    return None if spec is None else PodAffinityTerm(tuple(sorted(spec.labels.items())), spec.topology_key)
