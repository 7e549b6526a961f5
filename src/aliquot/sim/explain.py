"""Why a workload waits or was evicted, in sentences. Every sentence comes from the plans of the simulation."""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.errors import NotFound
from aliquot.planner import plan
from aliquot.planner.model import Job, Task, TaskState
from aliquot.planner.plan import Eviction
from aliquot.planner.queues.queue_position import queue_positions
from aliquot.planner.reasons.what_if import what_would_help
from aliquot.sim.cluster import eviction_reason
from aliquot.sim.simulation import Simulation

_WAITING = (TaskState.PENDING, TaskState.GATED)


def has_workload(simulation: Simulation, name: str) -> bool:
    return name in simulation.workload_names


def explain_workload(simulation: Simulation, name: str) -> list[str]:
    """The evictions of a workload, then its state at the end of the simulation."""
    if not has_workload(simulation, name):
        raise NotFound(f"no workload is called {name!r} in this scenario")
    evictions = [_eviction(simulation, eviction) for eviction in simulation.evictions if eviction.job == name]
    job = simulation.cluster.jobs.get(name)
    if job is None:
        return [*evictions, f"{name} is gone."]
    return [*evictions, *_current_state(simulation, job)]


def _eviction(simulation: Simulation, eviction: Eviction) -> str:
    what = "was stopped" if eviction.to is None else f"was moved from {eviction.node} to {eviction.to.node}"
    return f"{eviction.task} {what}: {eviction_reason(simulation.cluster.jobs, eviction)}."


def _current_state(simulation: Simulation, job: Job) -> Iterator[str]:
    waiting = [task for task in job.tasks if task.state in _WAITING]
    for task in job.tasks:
        if task not in waiting:
            yield f"{task.name} {_task_state(task)}."
    if not waiting:
        return
    yield f"{job.name} of project {job.queue} waits for {len(waiting)} of {len(job.tasks)} tasks."
    for refusal in simulation.last_plan.refusals.get(job.name, ()):
        yield f"{refusal.step}: {refusal.text}."
    cluster = simulation.cluster
    snapshot = cluster.snapshot()
    current = plan(snapshot, cluster.policy, cluster.now, cluster.policies)
    for claim in what_would_help(snapshot, cluster.policy, cluster.now, job.name, current, cluster.policies):
        yield f"{claim.text[0].upper()}{claim.text[1:]}."
    if any(task.state is TaskState.GATED for task in waiting):
        yield f"{job.name} is gated: it is not to be scheduled yet."
    position = queue_positions(snapshot, cluster.policy, cluster.now, current, cluster.policies).get(job.name)
    if position is not None:
        rank, waiting_jobs = position.position_in_queue, position.waiting_in_queue
        yield f"It is number {rank} of {waiting_jobs} that wait in project {job.queue}."


def _task_state(task: Task) -> str:
    if task.state in (TaskState.SUCCEEDED, TaskState.FAILED):
        return f"has {task.state.value}"
    gpus = ", ".join(str(share.index) for share in task.shares)
    location = f"on {task.node}" + (f", {'GPU' if len(task.shares) == 1 else 'GPUs'} {gpus}" if gpus else "")
    verbs = {TaskState.RUNNING: "runs", TaskState.NOMINATED: "has a place that is not free yet"}
    return f"{verbs.get(task.state, 'is terminating')} {location}"
