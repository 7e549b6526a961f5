"""Step 6: a gang that has run with fewer members than its minimum for too long holds its places for nothing."""

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
            running = [member for member in job.members if member.state == RUNNING and member.origin is not None]
            for member in running:
                state.pool.evict(member)
            builder.evict(running, None, "stale-gang")


def _is_stale(state: CycleState, job: JobState) -> bool:
    grace = state.policy.stale_grace if job.source.stale_grace is None else job.source.stale_grace
    since = job.source.stale_since
    if grace < 0 or (grace > 0 and (since is None or state.now - since < grace)):
        return False
    states = [member.state for member in job.members]
    if RUNNING not in states or any(member.task.state is TaskState.SUCCEEDED for member in job.members):
        return False
    if any(state in (RELEASING, STUCK) for state in states):
        return False  # those who are leaving still count; it is judged when they have left
    return not job.satisfied()
