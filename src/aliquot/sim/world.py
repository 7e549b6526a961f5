"""The cluster of a scenario while it is played: plans are applied to it, and steps happen to it.

Between rounds bound tasks run, evicted ones are gone from their node and pending again, terminating ones are gone for
good, and what is reserved stays so on its node and devices. Nothing else moves by itself: time stands still unless a
step advances it, nodes keep what runs on them, and work ends when a step finishes it.

    Fate   what a plan does with one task; tasks that it leaves as they are have none
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aliquot.errors import Fault, Invalid
from aliquot.planner.model import DeviceShare, Job, Node, Queue, Snapshot, Task, TaskState
from aliquot.planner.plan import Eviction, Plan
from aliquot.sim.field_readers import Place
from aliquot.sim.loader import Loader
from aliquot.sim.records import NodeSpec, QueueSpec, Scenario, Step

_GOING = (TaskState.RELEASING, TaskState.EVICTED)


@dataclass(frozen=True, slots=True)
class Fate:
    """`state` is the word of the result: bound, reserved, evicted, moved or pending (a reservation that was lost)."""

    state: str
    node: str = ""
    shares: tuple[DeviceShare, ...] = ()
    because: str = ""
    reserved: bool = False


def fates(jobs: Mapping[str, Job], decided: Plan) -> dict[str, Fate]:
    """By task."""
    found = {one.task: Fate("reserved", one.node, one.shares) for one in decided.nominations}
    found |= {one.task: Fate("bound", one.node, one.shares) for one in decided.binds}
    for one in decided.evictions:
        why = because(jobs, one)
        if one.to is None:
            found[one.task] = Fate("evicted", because=why)
        else:
            found[one.task] = Fate("moved", one.to.node, one.to.shares, why, one.nominated)
    for name in decided.refusals:
        # A promise that is not renewed is withdrawn when the job is told to wait.
        for task in jobs[name].tasks if name in jobs else ():
            if task.state is TaskState.NOMINATED and task.name not in found:
                found[task.name] = Fate("pending")
    return found


def because(jobs: Mapping[str, Job], one: Eviction) -> str:
    """Why a task was stopped or moved, and for whom: of a workload in a file its project is told too."""
    if one.by in jobs and one.text.endswith(f" {one.by}"):
        return f"{one.text.removesuffix(one.by)}{jobs[one.by].queue}/{one.by}"
    return one.text


class World:
    def __init__(self, scenario: Scenario, place: Place) -> None:
        self.scenario = scenario
        self.policy = scenario.policy
        self.policies = scenario.policies
        self.now = 0.0
        self._loader = Loader(scenario)
        self._node_specs = {spec.name: spec for spec in scenario.nodes}
        self._queue_specs = {spec.name: spec for spec in (*scenario.departments, *scenario.projects)}
        self._types = {spec.name: spec.type or "training" for spec in scenario.workloads}
        self.nodes: dict[str, Node] = {name: self._loader.node(spec) for name, spec in self._node_specs.items()}
        self.queues: dict[str, Queue] = {
            name: self._loader.queue(spec, index) for index, (name, spec) in enumerate(self._queue_specs.items())
        }
        # Tasks that were on their way out in the last round and wait again now: no plan has looked at them yet.
        self.returned: set[str] = set()
        self.jobs: dict[str, Job] = {}
        for job in self._loader.jobs(scenario.workloads, self._queue_specs, self.nodes, 0.0, place.at("workloads")):
            # What is stale at the start is so from the start, unless the file says since when.
            self.jobs[job.name] = job if job.stale_since is not None else self._with_staleness(job)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            tuple(self.nodes.values()),
            tuple(self.queues.values()),
            tuple(self.jobs.values()),
            self.scenario.topology,
            frozenset(self.scenario.volume_claims),
        )

    def apply(self, decided: Plan) -> bool:
        """Do what was decided; whether anything is different now."""
        fate_of = fates(self.jobs, decided)
        changed = False
        self.returned.clear()
        for name, job in list(self.jobs.items()):
            tasks = [self._after(task, fate_of.get(task.name)) for task in job.tasks]
            if all(now is before for now, before in zip(tasks, job.tasks, strict=True)):
                continue
            changed = True
            self._put(name, job, tuple(task for task in tasks if task is not None))
        return changed

    def _after(self, task: Task, fate: Fate | None) -> Task | None:
        if fate is None:
            if task.state not in _GOING or self.stuck(task):
                return task
            if task.state is TaskState.RELEASING:
                return None
            self.returned.add(task.name)
            return _waiting(task)
        if fate.state in ("evicted", "pending"):
            return _waiting(task)
        state = TaskState.NOMINATED if fate.state == "reserved" or fate.reserved else TaskState.RUNNING
        if (task.state, task.node, task.shares) == (state, fate.node, fate.shares) and fate.state != "moved":
            return task  # the same promise as before
        return replace(task, state=state, node=fate.node, shares=fate.shares, releasing_since=None)

    def stuck(self, task: Task) -> bool:
        """Whether a task has been on its way for so long that nobody waits for it."""
        pool = self.nodes[task.node].pool if task.node in self.nodes else ""
        grace, since = self.policies.get(pool, self.policy).terminating_grace, task.releasing_since
        return grace is not None and since is not None and self.now - since > grace

    def _put(self, name: str, job: Job, tasks: tuple[Task, ...]) -> None:
        if not tasks:
            del self.jobs[name]
            return
        ran = any(task.state is TaskState.RUNNING for task in job.tasks)
        runs = any(task.state is TaskState.RUNNING for task in tasks)
        started = job.started if ran and runs else self.now if runs else None
        self.jobs[name] = self._with_staleness(replace(job, tasks=tasks, started=started))

    def _with_staleness(self, job: Job) -> Job:
        if not below_minimum(job):
            return job if job.stale_since is None else replace(job, stale_since=None)
        return job if job.stale_since is not None else replace(job, stale_since=self.now)

    def happen(self, step: Step, place: Place) -> None:
        operands = step.operands
        match step.word:
            case "submit":
                specs = self._queue_specs
                for job in self._loader.jobs(operands, specs, self.nodes, self.now, place):
                    self.jobs[job.name] = job
                self._types |= {spec.name: spec.type or "training" for spec in operands}
            case "delete":
                for name in operands:
                    self.jobs.pop(name, None)  # it may have gone by itself
            case "finish":
                for name in operands:
                    self._finish(name)
            case "advance":
                self.now += operands
            case "nodes":
                for index, change in enumerate(operands):
                    self._change_node(change, place.at(index))
            case _:
                for change in operands:
                    self._change_queue(change)

    def _finish(self, name: str) -> None:
        job = self.jobs.get(name)
        if job is None:
            return
        done = tuple(
            replace(task, state=TaskState.SUCCEEDED, node="", shares=()) if task.state is TaskState.RUNNING else task
            for task in job.tasks
        )
        self._put(name, job, done)

    def _change_node(self, change: Mapping[str, Any], place: Place) -> None:
        name = change["name"]
        spec: NodeSpec = replace(self._node_specs[name], **change)
        node = self._loader.node(spec)
        there = {device.index for device in node.devices}
        for job in self.jobs.values():
            for task in job.tasks:
                missing = {share.index for share in task.shares} - there if task.node == name else None
                if missing:
                    fault = Fault(place.path(), f"takes away GPU {min(missing)}, which {task.name} holds")
                    raise Invalid.because("not a valid scenario", [fault])
        self._node_specs[name], self.nodes[name] = spec, node

    def _change_queue(self, change: Mapping[str, Any]) -> None:
        name = change["name"]
        if change.keys() & {"department", "parent"}:
            change = {"department": "", "parent": "", **change}
        spec: QueueSpec = replace(self._queue_specs[name], **change)
        self._queue_specs[name] = spec
        self.queues[name] = self._loader.queue(spec, list(self._queue_specs).index(name))
        if "node_types" not in change:
            return
        for job in [job for job in self.jobs.values() if job.queue == name]:
            types = spec.node_types.get(self._types[job.name], ())
            self.jobs[job.name] = replace(job, tasks=tuple(replace(task, node_types=types) for task in job.tasks))


def _waiting(task: Task) -> Task:
    return replace(task, state=TaskState.PENDING, node="", shares=(), releasing_since=None)


def below_minimum(job: Job) -> bool:
    """Whether a job runs with fewer tasks than it needs; one that has begun to succeed is ending, not stale."""
    if not any(task.state is TaskState.RUNNING for task in job.tasks):
        return False
    if any(task.state is TaskState.SUCCEEDED for task in job.tasks):
        return False
    return not _enough(job, "", job.min_available, job.min_subgroups)


_THERE = (TaskState.RUNNING, TaskState.NOMINATED, *_GOING)


def _enough(job: Job, subgroup: str, least: int | None, least_groups: int | None) -> bool:
    """Whether a group has its minimum, and as many of the groups in it have theirs."""
    members = [task for task in job.tasks if task.subgroup == subgroup]
    inner = [each for each in job.subgroups if each.parent == subgroup]
    needed = len(members) if least is None or (inner and not members) else least
    if sum(task.state in _THERE for task in members) < needed:
        return False
    sound = sum(_enough(job, each.name, each.min_available, each.min_subgroups) for each in inner)
    return sound >= (len(inner) if least_groups is None else least_groups)


def evicted(decided: Plan) -> Iterable[dict[str, Any]]:
    """The evictions of a plan, as a result lists them."""
    for one in decided.evictions:
        yield {
            "workload": one.job,
            "task": one.task,
            "by": one.by or None,
            "rule": one.rule,
            "moved": one.to is not None,
        }
