"""Step 6: evicts gangs that have run with fewer tasks than their minimum for too long."""

from __future__ import annotations

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import RELEASING, RUNNING, STUCK, JobState
from aliquot.planner.model import TaskState
from aliquot.planner.plan_builder import PlanBuilder


def stop_stale_gangs(state: CycleState, builder: PlanBuilder) -> None:
    if "stale-gang" not in state.policy.steps:
        return
    for name in sorted(state.gangs):
        job = state.gangs[name]
        if _is_stale(state, job):
            running = [task for task in job.members if task.state is RUNNING and task.origin is not None]
            for task in running:
                state.pool.evict(task)
            builder.evict(running, None, "stale-gang")


def _is_stale(state: CycleState, job: JobState) -> bool:
    grace = state.policy.stale_grace if job.source.stale_grace is None else job.source.stale_grace
    since = job.source.stale_since
    if grace < 0 or (grace > 0 and (since is None or state.now - since < grace)):
        return False
    task_states = [task.state for task in job.members]
    if RUNNING not in task_states or any(task.task.state is TaskState.SUCCEEDED for task in job.members):
        return False
    if any(task_state in (RELEASING, STUCK) for task_state in task_states):
        return False  # tasks on their way out still count; the gang is judged when they have left
    return not job.satisfied()
