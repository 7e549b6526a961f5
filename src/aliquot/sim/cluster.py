"""The cluster of a scenario while the simulation runs: plans are applied to it, and steps change it.

After a round bound tasks run. Evicted tasks have left their node and are pending again. Terminating tasks are removed.
Nominated tasks keep their node and devices. Nothing else changes by itself: the clock stands still unless a step
advances it, nodes keep their tasks, and a workload ends when a step finishes it.

    TaskOutcome   what a plan does with one task; a task that the plan does not touch has none
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aliquot.errors import Fault, Invalid
from aliquot.planner.model import DeviceShare, Job, Node, Queue, Snapshot, Task, TaskState
from aliquot.planner.plan import Eviction, Plan
from aliquot.sim.field_readers import FieldPath
from aliquot.sim.model_builder import ModelBuilder
from aliquot.sim.scenario_spec import NodeSpec, QueueSpec, Scenario, Step

_LEAVING = (TaskState.RELEASING, TaskState.EVICTED)


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """`state` is the word of the result: bound, reserved, evicted, moved or pending (a nomination that was lost)."""

    state: str
    node: str = ""
    shares: tuple[DeviceShare, ...] = ()
    because: str = ""
    reserved: bool = False


def task_outcomes(jobs: Mapping[str, Job], plan: Plan) -> dict[str, TaskOutcome]:
    """What the plan does, by task."""
    outcomes = {each.task: TaskOutcome("reserved", each.node, each.shares) for each in plan.nominations}
    outcomes |= {bind.task: TaskOutcome("bound", bind.node, bind.shares) for bind in plan.binds}
    for eviction in plan.evictions:
        reason, target = eviction_reason(jobs, eviction), eviction.to
        if target is None:
            outcomes[eviction.task] = TaskOutcome("evicted", because=reason)
        else:
            outcomes[eviction.task] = TaskOutcome("moved", target.node, target.shares, reason, eviction.nominated)
    for name in plan.refusals:
        # A nomination that the plan does not renew ends when the job is refused.
        for task in jobs[name].tasks if name in jobs else ():
            if task.state is TaskState.NOMINATED and task.name not in outcomes:
                outcomes[task.name] = TaskOutcome("pending")
    return outcomes


def eviction_reason(jobs: Mapping[str, Job], eviction: Eviction) -> str:
    """Why a task was evicted or moved; the job that replaces it is written as project/workload."""
    if eviction.by in jobs and eviction.text.endswith(f" {eviction.by}"):
        return f"{eviction.text.removesuffix(eviction.by)}{jobs[eviction.by].queue}/{eviction.by}"
    return eviction.text


class SimulatedCluster:
    """Nodes, queues and jobs of one scenario. Faults that need its devices are added to `path`."""

    def __init__(self, scenario: Scenario, path: FieldPath) -> None:
        self.scenario = scenario
        self.policy = scenario.policy
        self.policies = scenario.policies
        self.now = 0.0
        self._builder = ModelBuilder(scenario)
        self._node_specs = {spec.name: spec for spec in scenario.nodes}
        self._queue_specs = {spec.name: spec for spec in (*scenario.departments, *scenario.projects)}
        self._workload_types = {spec.name: spec.type or "training" for spec in scenario.workloads}
        self.nodes: dict[str, Node] = {name: self._builder.node(spec) for name, spec in self._node_specs.items()}
        self.queues: dict[str, Queue] = {
            name: self._builder.queue(spec, index) for index, (name, spec) in enumerate(self._queue_specs.items())
        }
        # Tasks that left their node in the last round and are pending again: no plan has seen them pending yet.
        self.requeued: set[str] = set()
        self.jobs: dict[str, Job] = {}
        for job in self._builder.jobs(scenario.workloads, self._queue_specs, self.nodes, 0.0, path.at("workloads")):
            # A gang below its minimum at the start is stale since then, unless the file has `staleSince`.
            self.jobs[job.name] = job if job.stale_since is not None else self._with_staleness(job)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            tuple(self.nodes.values()),
            tuple(self.queues.values()),
            tuple(self.jobs.values()),
            self.scenario.topology,
            frozenset(self.scenario.volume_claims),
        )

    def apply(self, plan: Plan) -> bool:
        """Carry out the plan; return whether anything changed."""
        outcomes = task_outcomes(self.jobs, plan)
        changed = False
        self.requeued.clear()
        for name, job in list(self.jobs.items()):
            tasks = [self._task_after(task, outcomes.get(task.name)) for task in job.tasks]
            if all(now is before for now, before in zip(tasks, job.tasks, strict=True)):
                continue
            changed = True
            self._set_tasks(name, job, tuple(task for task in tasks if task is not None))
        return changed

    def _task_after(self, task: Task, outcome: TaskOutcome | None) -> Task | None:
        """The task after the round; None when it is removed."""
        if outcome is None:
            if task.state not in _LEAVING or self.overdue(task):
                return task
            if task.state is TaskState.RELEASING:
                return None
            self.requeued.add(task.name)
            return _pending(task)
        if outcome.state in ("evicted", "pending"):
            return _pending(task)
        state = TaskState.NOMINATED if outcome.state == "reserved" or outcome.reserved else TaskState.RUNNING
        if (task.state, task.node, task.shares) == (state, outcome.node, outcome.shares) and outcome.state != "moved":
            return task  # the same nomination as before
        return replace(task, state=state, node=outcome.node, shares=outcome.shares, releasing_since=None)

    def overdue(self, task: Task) -> bool:
        """Whether a terminating task has exceeded the policy's terminating grace."""
        pool = self.nodes[task.node].pool if task.node in self.nodes else ""
        grace, since = self.policies.get(pool, self.policy).terminating_grace, task.releasing_since
        return grace is not None and since is not None and self.now - since > grace

    def _set_tasks(self, name: str, job: Job, tasks: tuple[Task, ...]) -> None:
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

    def apply_step(self, step: Step, path: FieldPath) -> None:
        operands = step.operands
        match step.action:
            case "submit":
                specs = self._queue_specs
                for job in self._builder.jobs(operands, specs, self.nodes, self.now, path):
                    self.jobs[job.name] = job
                self._workload_types |= {spec.name: spec.type or "training" for spec in operands}
            case "delete":
                for name in operands:
                    self.jobs.pop(name, None)  # its last task may have left already
            case "finish":
                for name in operands:
                    self._finish(name)
            case "advance":
                self.now += operands
            case "nodes":
                for index, change in enumerate(operands):
                    self._change_node(change, path.at(index))
            case _:
                for change in operands:
                    self._change_queue(change)

    def _finish(self, name: str) -> None:
        job = self.jobs.get(name)
        if job is None:
            return
        tasks = tuple(
            replace(task, state=TaskState.SUCCEEDED, node="", shares=()) if task.state is TaskState.RUNNING else task
            for task in job.tasks
        )
        self._set_tasks(name, job, tasks)

    def _change_node(self, change: Mapping[str, Any], path: FieldPath) -> None:
        name = change["name"]
        spec: NodeSpec = replace(self._node_specs[name], **change)
        node = self._builder.node(spec)
        indices = {device.index for device in node.devices}
        for job in self.jobs.values():
            for task in job.tasks:
                missing = {share.index for share in task.shares} - indices if task.node == name else None
                if missing:
                    fault = Fault(path.path(), f"takes away GPU {min(missing)}, which {task.name} holds")
                    raise Invalid.because("not a valid scenario", [fault])
        self._node_specs[name], self.nodes[name] = spec, node

    def _change_queue(self, change: Mapping[str, Any]) -> None:
        name = change["name"]
        if change.keys() & {"department", "parent"}:
            change = {"department": "", "parent": "", **change}
        spec: QueueSpec = replace(self._queue_specs[name], **change)
        self._queue_specs[name] = spec
        self.queues[name] = self._builder.queue(spec, list(self._queue_specs).index(name))
        if "node_types" not in change:
            return
        for job in [job for job in self.jobs.values() if job.queue == name]:
            types = spec.node_types.get(self._workload_types[job.name], ())
            self.jobs[job.name] = replace(job, tasks=tuple(replace(task, node_types=types) for task in job.tasks))


def _pending(task: Task) -> Task:
    return replace(task, state=TaskState.PENDING, node="", shares=(), releasing_since=None)


def below_minimum(job: Job) -> bool:
    """Whether a job runs with fewer tasks than its minimum. A job with a succeeded task is ending and never stale."""
    if not any(task.state is TaskState.RUNNING for task in job.tasks):
        return False
    if any(task.state is TaskState.SUCCEEDED for task in job.tasks):
        return False
    return not _has_minimum(job, "", job.min_available, job.min_subgroups)


_ACTIVE = (TaskState.RUNNING, TaskState.NOMINATED, *_LEAVING)


def _has_minimum(job: Job, subgroup: str, min_available: int | None, min_subgroups: int | None) -> bool:
    """Whether a group has its minimum of tasks, and its minimum of child groups have theirs."""
    members = [task for task in job.tasks if task.subgroup == subgroup]
    children = [each for each in job.subgroups if each.parent == subgroup]
    needed = len(members) if min_available is None or (children and not members) else min_available
    if sum(task.state in _ACTIVE for task in members) < needed:
        return False
    complete = sum(_has_minimum(job, each.name, each.min_available, each.min_subgroups) for each in children)
    return complete >= (len(children) if min_subgroups is None else min_subgroups)


def eviction_entries(plan: Plan) -> Iterable[dict[str, Any]]:
    """The evictions of a plan, as a result lists them."""
    for eviction in plan.evictions:
        yield {
            "workload": eviction.job,
            "task": eviction.task,
            "by": eviction.by or None,
            "rule": eviction.rule,
            "moved": eviction.to is not None,
        }
