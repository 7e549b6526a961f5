"""A second, plain implementation of the scheduling rules: what tasks hold, where they fit, what a queue may use.

The checks of plans and the oracle use it, so it takes nothing from the planner but the types of its input and output.
It may be slow, and should be simple.

    Location        a node and shares of its devices
    ReferenceState  a snapshot; `place` and `remove` change it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from aliquot.labels import NODE_TYPE
from aliquot.planner.model import (
    RESOURCES,
    Amount,
    Bound,
    DeviceShare,
    Job,
    Node,
    NodeSelectorRequirement,
    PodAffinityTerm,
    Policy,
    Queue,
    Request,
    Snapshot,
    Task,
    TopologyConstraint,
)
from aliquot.planner.model import TaskState as State

Location = tuple[str, tuple[DeviceShare, ...]]
POOL = "default"
HOLDS_NOW = (State.RUNNING, State.RELEASING, State.EVICTED)
HOLDS_AFTER_RELEASE = (State.RUNNING, State.NOMINATED)


class FreeOnNode:
    """What is free on one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cpu = node.cpu - node.foreign[1]
        self.memory = node.memory - node.foreign[2]
        self.pods = node.pods
        self.devices = {device.index: device for device in node.devices if device.healthy}
        self.milli = dict.fromkeys(self.devices, 1000)
        self.mib = {index: device.memory_mib for index, device in self.devices.items()}

    def add(self, request: Request, shares: Iterable[DeviceShare], sign: int) -> None:
        self.cpu += sign * request.cpu
        self.memory += sign * request.memory
        self.pods += sign
        for share in shares:
            if share.index in self.devices:
                self.milli[share.index] += sign * share.milli
                self.mib[share.index] += sign * share.memory_mib

    @property
    def not_overallocated(self) -> bool:
        """Whether no more is allocated than there is."""
        amounts = (self.cpu, self.memory, self.pods, *self.milli.values(), *self.mib.values())
        return all(amount >= 0 for amount in amounts)

    def choices(self, request: Request) -> Iterator[tuple[DeviceShare, ...]]:
        """The device shares on which the request fits; devices that are alike count once."""
        if request.cpu > self.cpu or request.memory > self.memory or self.pods < 1:
            return
        if request.mig:
            yield from self._slices(request)
            return
        fitting = []
        for index, device in self.devices.items():
            part = request.share_of(device)
            if not device.profile and part.milli <= self.milli[index] and part.memory_mib <= self.mib[index]:
                fitting.append(part)
        seen = set()
        for parts in combinations(fitting, request.devices):
            alike = tuple(
                sorted((self.milli[p.index], self.mib[p.index], self.devices[p.index].memory_mib) for p in parts)
            )
            if alike not in seen:
                seen.add(alike)
                yield parts

    def _slices(self, request: Request) -> Iterator[tuple[DeviceShare, ...]]:
        shares: list[DeviceShare] = []
        for profile, count in request.mig:
            idle = [d for i, d in self.devices.items() if d.profile == profile and self.milli[i] == 1000]
            if len(idle) < count:
                return
            shares += [DeviceShare(device.index, 1000, device.memory_mib) for device in idle[:count]]
        yield tuple(shares)


class ReferenceState:
    def __init__(self, snapshot: Snapshot, holds: tuple[State, ...] = HOLDS_AFTER_RELEASE, pool: str = POOL) -> None:
        self.snapshot = snapshot
        self.pool = pool  # whose queues are counted; the nodes are those of all pools
        self.nodes = {node.name: node for node in snapshot.nodes}
        self.queues = {queue.name: queue for queue in snapshot.queues}
        self.free = {node.name: FreeOnNode(node) for node in snapshot.nodes}
        self.used = {name: [0, 0, 0] for name in self.queues}
        self.nonpreemptible = {name: [0, 0, 0] for name in self.queues}
        self.locations: dict[tuple[str, str], Location] = {}
        self.jobs = {job.name: job for job in snapshot.jobs}
        for job in snapshot.jobs:
            for task in job.tasks:
                if task.state in holds and task.node in self.nodes:
                    self.place(job, task, (task.node, task.shares))

    def place(self, job: Job, task: Task, location: Location) -> None:
        assert (job.name, task.name) not in self.locations, f"{task.name} is placed twice"
        self.locations[job.name, task.name] = location
        self._count(job, task, location, 1)

    def remove(self, job: Job, task: Task) -> Location:
        location = self.locations.pop((job.name, task.name))
        self._count(job, task, location, -1)
        return location

    def _count(self, job: Job, task: Task, location: Location, sign: int) -> None:
        self.free[location[0]].add(task.request, location[1], -sign)
        if self.nodes[location[0]].pool != self.pool:
            return
        amount = self.amount(task, location)
        for queue in self.path(job.queue):
            for r in range(3):
                self.used[queue.name][r] += sign * amount[r]
                if not job.preemptible:
                    self.nonpreemptible[queue.name][r] += sign * amount[r]

    def amount(self, task: Task, location: Location) -> Amount:
        """What the task counts against quota at this location."""
        node, shares = location
        devices = self.free[node].devices
        sizes = [devices[share.index].memory_mib for share in shares if share.index in devices]
        return (task.request.quota(sizes[0] if sizes else 0), task.request.cpu, task.request.memory)

    def pending_amount(self, job: Job, task: Task) -> Amount:
        """What a pending task counts: by the smallest device that it may use."""
        sizes = sorted(
            device.memory_mib
            for node in self.nodes.values()
            if may_use(job, task, node)
            for device in node.devices
            if device.healthy and device.memory_mib >= task.request.memory_mib
        )
        return (task.request.quota(sizes[0] if sizes else 0), task.request.cpu, task.request.memory)

    def path(self, queue: str) -> list[Queue]:
        """The queue and its ancestors."""
        ancestors = []
        while queue:
            ancestors.append(self.queues[queue])
            queue = ancestors[-1].parent
        return ancestors

    def diverging_queues(self, queue: str, other: str) -> tuple[Queue, Queue]:
        """The highest ancestors in which two queues differ."""
        ours, theirs = self.path(queue)[::-1], self.path(other)[::-1]
        return next((a, b) for a, b in zip(ours, theirs, strict=False) if a.name != b.name)

    def below_min_runtime(self, victim: Job, by: Job, now: float) -> bool:
        """Whether a job has run for less than the minimum runtime of its queues, and so keeps its minimum of tasks."""
        above = self.path(victim.queue)
        if victim.queue == by.queue:
            times = [queue.preempt_min_runtime for queue in above]
        else:
            top = self.diverging_queues(by.queue, victim.queue)[1]
            times = [queue.reclaim_min_runtime for queue in above[above.index(top) :]]
        min_runtime = next((time for time in times if time is not None), 0)
        return victim.started is not None and now - victim.started < min_runtime

    def evicted_too_often(self, victim: Job, policy: Policy, now: float) -> bool:
        """Whether a job was evicted in the last hour as often as the policy allows, and so keeps its minimum."""
        most = policy.restarts_per_hour
        return most is not None and sum(at > now - 3600 for at in victim.stops) >= most

    def over(self, job: Job, resources: Iterable[int] = range(3)) -> str | None:
        """The queue of a job, or an ancestor, that uses more than it may."""
        for queue in self.path(job.queue):
            terms = queue.pool_quota(self.pool)
            for r in resources:
                if beyond(self.used[queue.name][r], terms.limit[r]):
                    return f"{queue.name} is over its limit of {RESOURCES[r]}"
                held = self.used if not terms.over_quota else self.nonpreemptible if not job.preemptible else None
                if held is not None and beyond(held[queue.name][r], terms.quota[r]):
                    return f"{queue.name} is over its quota of {RESOURCES[r]}"
        return None

    def domain(self, topology_constraint: TopologyConstraint, level: str, node: str) -> tuple[str, ...] | None:
        levels = self.snapshot.topologies.get(topology_constraint.topology, ())
        labels = self.nodes[node].labels
        if level not in levels or any(label not in labels for label in levels):
            return None
        return tuple(labels[label] for label in levels[: levels.index(level) + 1])

    def satisfies_topology(self, job: Job) -> bool:
        """Whether the tasks of a job, and of each subgroup, are in one domain of the required level."""
        inside = {subgroup.name: {subgroup.name} for subgroup in job.subgroups}
        for subgroup in job.subgroups:
            above = subgroup
            while above.parent:
                inside[above.parent].add(subgroup.name)
                above = next(parent for parent in job.subgroups if parent.name == above.parent)
        wanted = [(subgroup.topology_constraint, inside[subgroup.name]) for subgroup in job.subgroups]
        wanted.append((job.topology_constraint, {"", *inside}))
        for topology_constraint, names in wanted:
            if topology_constraint is None or topology_constraint.required is None:
                continue
            tasks = [task for task in job.tasks if task.subgroup in names and (job.name, task.name) in self.locations]
            parts = {
                self.domain(topology_constraint, topology_constraint.required, self.locations[job.name, task.name][0])
                for task in tasks
            }
            if len(parts) > 1 or None in parts:
                return False
        return True

    def satisfies_anti_affinity(self, job: Job, task: Task) -> bool:
        """Whether a placed task and the tasks near it satisfy their anti-affinity. Each node pool is a cluster of its
        own."""
        own_node = self.nodes[self.locations[job.name, task.name][0]]
        here = own_node.labels
        for (name, other), (node, _) in self.locations.items():
            if (name, other) == (job.name, task.name) or self.nodes[node].pool != own_node.pool:
                continue
            there, theirs = self.nodes[node].labels, self.jobs[name]
            for rule, labels in ((job.pod_anti_affinity, theirs.labels), (theirs.pod_anti_affinity, job.labels)):
                if rule is not None and matches(rule, labels) and here.get(rule.key) == there.get(rule.key) is not None:
                    return False
        return True

    def satisfies_pod_affinity(self, job: Job, task: Task) -> bool:
        """Whether a matching task is near. The first task of a group with affinity to itself needs none."""
        if job.pod_affinity is None:
            return True
        here = self.nodes[self.locations[job.name, task.name][0]].labels.get(job.pod_affinity.key)
        if here is None:
            return False
        others = [
            self.nodes[node].labels.get(job.pod_affinity.key)
            for (name, other), (node, _) in self.locations.items()
            if (name, other) != (job.name, task.name) and matches(job.pod_affinity, self.jobs[name].labels)
        ]
        return here in others or (matches(job.pod_affinity, job.labels) and not others)


def beyond(amount: int, bound: int | None) -> bool:
    return bound is not None and amount > bound


def within(used: Iterable[int], asked: Amount, bound: Bound | Amount) -> bool:
    return not any(beyond(have + want, top) for have, want, top in zip(used, asked, bound, strict=True))


def matches(rule: PodAffinityTerm, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in rule.labels)


def may_use(job: Job, task: Task, node: Node) -> bool:
    """Whether a task may use a node, whatever runs there."""
    request = task.request
    if node.pool not in (job.pools or (POOL,)):
        return False
    if not node.ready or any(node.labels.get(key) != value for key, value in task.selector.items()):
        return False
    if task.node_types and node.labels.get(NODE_TYPE) not in task.node_types:
        return False
    if not all(
        any(all(matches_requirement(requirement, node) for requirement in term) for term in terms)
        for terms in task.affinity
    ):
        return False
    for taint in node.taints:
        tolerated = any(
            toleration.key in ("", taint.key)
            and toleration.value in (None, taint.value)
            and toleration.effect in ("", taint.effect)
            for toleration in task.tolerations
        )
        if not tolerated and taint.effect != "PreferNoSchedule":
            return False
    if request.mig:
        return node.mig == "mixed"
    return not request.devices or node.mig == "none" or (node.mig == "single" and request.whole)


def matches_requirement(requirement: NodeSelectorRequirement, node: Node) -> bool:
    """Whether a node matches, for the operators that the random clusters use."""
    value = node.labels.get(requirement.key) if requirement.key else node.name
    listed = value in requirement.values
    return {"In": listed, "NotIn": not listed, "Exists": value is not None}[requirement.operator]


def minimums(job: Job) -> dict[str, int]:
    """The minimum of each task set, by subgroup."""
    wanted = {"": job.min_available, **{subgroup.name: subgroup.min_available for subgroup in job.subgroups}}
    minimum_by_subgroup = {}
    for name, minimum in wanted.items():
        tasks = [task for task in job.tasks if task.subgroup == name]
        done = sum(task.state is State.SUCCEEDED for task in tasks)
        if tasks:
            minimum_by_subgroup[name] = max((len(tasks) if minimum is None else minimum) - done, 0 if done else 1)
    return minimum_by_subgroup


def has_minimum(job: Job, present: Mapping[str, int], subgroup: str = "", needed: int | None = None) -> bool:
    """Whether a job has its minimum; `present`: the number of tasks by subgroup."""
    inner = [child for child in job.subgroups if child.parent == subgroup]
    minimum = minimums(job)
    checks = [has_minimum(job, present, child.name, child.min_subgroups) for child in inner]
    if subgroup in minimum:
        own = present.get(subgroup, 0) >= minimum[subgroup]
        if not inner:
            return own
        checks.append(own)
    if not subgroup:
        needed = job.min_subgroups
    return sum(checks) >= (len(checks) if needed is None else min(needed, len(checks)))
