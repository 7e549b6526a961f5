"""The ground rules, written down a second time and plainly: who holds what, what fits where, what a queue may have.

It serves the checks of plans and the search that looks for what a plan has missed, so it takes nothing from the
scheduler but the types of its input and output. Slow is fine here; clever is not.

    Spot    a place: a node and parts of its devices
    Ground  a snapshot as it stands, or as it would stand; `put` and `take` change it
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

Spot = tuple[str, tuple[DeviceShare, ...]]
POOL = "default"
HOLDS_NOW = (State.RUNNING, State.RELEASING, State.EVICTED)
HOLDS_SOON = (State.RUNNING, State.NOMINATED)


class Free:
    """What is left of one node."""

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
    def sound(self) -> bool:
        """Whether no more was given out than there is."""
        amounts = (self.cpu, self.memory, self.pods, *self.milli.values(), *self.mib.values())
        return all(amount >= 0 for amount in amounts)

    def choices(self, request: Request) -> Iterator[tuple[DeviceShare, ...]]:
        """All parts of devices that would do, devices that are alike only once."""
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
        found: list[DeviceShare] = []
        for profile, count in request.mig:
            idle = [d for i, d in self.devices.items() if d.profile == profile and self.milli[i] == 1000]
            if len(idle) < count:
                return
            found += [DeviceShare(device.index, 1000, device.memory_mib) for device in idle[:count]]
        yield tuple(found)


class Ground:
    def __init__(self, snapshot: Snapshot, holds: tuple[State, ...] = HOLDS_SOON, pool: str = POOL) -> None:
        self.snapshot = snapshot
        self.pool = pool  # whose queues are looked at; nodes are there of all pools
        self.nodes = {node.name: node for node in snapshot.nodes}
        self.queues = {queue.name: queue for queue in snapshot.queues}
        self.free = {node.name: Free(node) for node in snapshot.nodes}
        self.used = {name: [0, 0, 0] for name in self.queues}
        self.fixed = {name: [0, 0, 0] for name in self.queues}
        self.spots: dict[tuple[str, str], Spot] = {}
        self.jobs = {job.name: job for job in snapshot.jobs}
        for job in snapshot.jobs:
            for task in job.tasks:
                if task.state in holds and task.node in self.nodes:
                    self.put(job, task, (task.node, task.shares))

    def put(self, job: Job, task: Task, spot: Spot) -> None:
        assert (job.name, task.name) not in self.spots, f"{task.name} has two places"
        self.spots[job.name, task.name] = spot
        self._count(job, task, spot, 1)

    def take(self, job: Job, task: Task) -> Spot:
        spot = self.spots.pop((job.name, task.name))
        self._count(job, task, spot, -1)
        return spot

    def _count(self, job: Job, task: Task, spot: Spot, sign: int) -> None:
        self.free[spot[0]].add(task.request, spot[1], -sign)
        if self.nodes[spot[0]].pool != self.pool:
            return
        amount = self.amount(task, spot)
        for queue in self.path(job.queue):
            for r in range(3):
                self.used[queue.name][r] += sign * amount[r]
                if not job.preemptible:
                    self.fixed[queue.name][r] += sign * amount[r]

    def amount(self, task: Task, spot: Spot) -> Amount:
        """What it counts against quota there."""
        node, shares = spot
        devices = self.free[node].devices
        sizes = [devices[share.index].memory_mib for share in shares if share.index in devices]
        return (task.request.quota(sizes[0] if sizes else 0), task.request.cpu, task.request.memory)

    def waiting_amount(self, job: Job, task: Task) -> Amount:
        """What it counts while it waits: by the smallest device that it may use."""
        sizes = sorted(
            device.memory_mib
            for node in self.nodes.values()
            if may_go(job, task, node)
            for device in node.devices
            if device.healthy and device.memory_mib >= task.request.memory_mib
        )
        return (task.request.quota(sizes[0] if sizes else 0), task.request.cpu, task.request.memory)

    def path(self, queue: str) -> list[Queue]:
        """The queue and those above it."""
        found = []
        while queue:
            found.append(self.queues[queue])
            queue = found[-1].parent
        return found

    def apart_at(self, one: str, other: str) -> tuple[Queue, Queue]:
        """The highest queues in which two differ."""
        ours, theirs = self.path(one)[::-1], self.path(other)[::-1]
        return next((a, b) for a, b in zip(ours, theirs, strict=False) if a.name != b.name)

    def too_new(self, victim: Job, by: Job, now: float) -> bool:
        """Whether a job has not yet run for as long as its queues let it: then it keeps its minimum."""
        above = self.path(victim.queue)
        if victim.queue == by.queue:
            times = [queue.preempt_min_runtime for queue in above]
        else:
            top = self.apart_at(by.queue, victim.queue)[1]
            times = [queue.reclaim_min_runtime for queue in above[above.index(top) :]]
        least = next((time for time in times if time is not None), 0)
        return victim.started is not None and now - victim.started < least

    def left_alone(self, victim: Job, policy: Policy, now: float) -> bool:
        """Whether a job was stopped as often in the last hour as the policy allows: then it keeps its minimum."""
        most = policy.restarts_per_hour
        return most is not None and sum(at > now - 3600 for at in victim.stops) >= most

    def over(self, job: Job, resources: Iterable[int] = range(3)) -> str | None:
        """Which queue now holds more than it may, of those above a job."""
        for queue in self.path(job.queue):
            terms = queue.pool_quota(self.pool)
            for r in resources:
                if beyond(self.used[queue.name][r], terms.limit[r]):
                    return f"{queue.name} is over its limit of {RESOURCES[r]}"
                held = self.used if not terms.over_quota else self.fixed if not job.preemptible else None
                if held is not None and beyond(held[queue.name][r], terms.quota[r]):
                    return f"{queue.name} is over its quota of {RESOURCES[r]}"
        return None

    def domain(self, topology_constraint: TopologyConstraint, level: str, node: str) -> tuple[str, ...] | None:
        levels = self.snapshot.topologies.get(topology_constraint.topology, ())
        labels = self.nodes[node].labels
        if level not in levels or any(label not in labels for label in levels):
            return None
        return tuple(labels[label] for label in levels[: levels.index(level) + 1])

    def near_enough(self, job: Job) -> bool:
        """Whether everybody of a job, and of each subgroup, is in one part of the level it requires."""
        inside = {subgroup.name: {subgroup.name} for subgroup in job.subgroups}
        for subgroup in job.subgroups:
            above = subgroup
            while above.parent:
                inside[above.parent].add(subgroup.name)
                above = next(one for one in job.subgroups if one.name == above.parent)
        wanted = [(subgroup.topology_constraint, inside[subgroup.name]) for subgroup in job.subgroups]
        wanted.append((job.topology_constraint, {"", *inside}))
        for topology_constraint, names in wanted:
            if topology_constraint is None or topology_constraint.required is None:
                continue
            tasks = [task for task in job.tasks if task.subgroup in names and (job.name, task.name) in self.spots]
            parts = {
                self.domain(topology_constraint, topology_constraint.required, self.spots[job.name, task.name][0])
                for task in tasks
            }
            if len(parts) > 1 or None in parts:
                return False
        return True

    def neighbourly(self, job: Job, task: Task) -> bool:
        """Whether a task that has a place may be there, for the sake of those who are near. Each node pool is a
        cluster of its own."""
        home = self.nodes[self.spots[job.name, task.name][0]]
        here = home.labels
        for (name, other), (node, _) in self.spots.items():
            if (name, other) == (job.name, task.name) or self.nodes[node].pool != home.pool:
                continue
            there, theirs = self.nodes[node].labels, self.jobs[name]
            for rule, labels in ((job.pod_anti_affinity, theirs.labels), (theirs.pod_anti_affinity, job.labels)):
                if rule is not None and matches(rule, labels) and here.get(rule.key) == there.get(rule.key) is not None:
                    return False
        return True

    def has_company(self, job: Job, task: Task) -> bool:
        """Whether somebody is near of those whom it wants near; who wants its like may be the first."""
        if job.pod_affinity is None:
            return True
        here = self.nodes[self.spots[job.name, task.name][0]].labels.get(job.pod_affinity.key)
        if here is None:
            return False
        others = [
            self.nodes[node].labels.get(job.pod_affinity.key)
            for (name, other), (node, _) in self.spots.items()
            if (name, other) != (job.name, task.name) and matches(job.pod_affinity, self.jobs[name].labels)
        ]
        return here in others or (matches(job.pod_affinity, job.labels) and not others)


def beyond(amount: int, bound: int | None) -> bool:
    return bound is not None and amount > bound


def within(used: Iterable[int], asked: Amount, bound: Bound | Amount) -> bool:
    return not any(beyond(have + want, top) for have, want, top in zip(used, asked, bound, strict=True))


def matches(rule: PodAffinityTerm, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in rule.labels)


def may_go(job: Job, task: Task, node: Node) -> bool:
    """Whether a task may be on a node at all."""
    request = task.request
    if node.pool not in (job.pools or (POOL,)):
        return False
    if not node.ready or any(node.labels.get(key) != value for key, value in task.selector.items()):
        return False
    if task.node_types and node.labels.get(NODE_TYPE) not in task.node_types:
        return False
    if not all(any(all(is_so(one, node) for one in term) for term in terms) for terms in task.affinity):
        return False
    for taint in node.taints:
        borne = any(
            one.key in ("", taint.key) and one.value in (None, taint.value) and one.effect in ("", taint.effect)
            for one in task.tolerations
        )
        if not borne and taint.effect != "PreferNoSchedule":
            return False
    if request.mig:
        return node.mig == "mixed"
    return not request.devices or node.mig == "none" or (node.mig == "single" and request.whole)


def is_so(one: NodeSelectorRequirement, node: Node) -> bool:
    """Whether an expression holds, of those that the clusters here have."""
    value = node.labels.get(one.key) if one.key else node.name
    return {"In": value in one.values, "NotIn": value not in one.values, "Exists": value is not None}[one.operator]


def least(job: Job) -> dict[str, int]:
    """The minimum of each set of tasks, by the name of its subgroup."""
    wanted = {"": job.min_available, **{subgroup.name: subgroup.min_available for subgroup in job.subgroups}}
    found = {}
    for name, minimum in wanted.items():
        tasks = [task for task in job.tasks if task.subgroup == name]
        done = sum(task.state is State.SUCCEEDED for task in tasks)
        if tasks:
            found[name] = max((len(tasks) if minimum is None else minimum) - done, 0 if done else 1)
    return found


def enough(job: Job, present: Mapping[str, int], subgroup: str = "", needed: int | None = None) -> bool:
    """Whether a job runs with what it needs at least; `present`: how many of each set are there."""
    inner = [one for one in job.subgroups if one.parent == subgroup]
    minimum = least(job)
    checks = [enough(job, present, one.name, one.min_subgroups) for one in inner]
    if subgroup in minimum:
        own = present.get(subgroup, 0) >= minimum[subgroup]
        if not inner:
            return own
        checks.append(own)
    if not subgroup:
        needed = job.min_subgroups
    return sum(checks) >= (len(checks) if needed is None else min(needed, len(checks)))
