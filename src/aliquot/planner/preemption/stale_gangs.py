"""Step 6: a gang that has run with fewer members than its minimum for too long holds its places for nothing."""

from __future__ import annotations

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import RUNNING, STOPPED, STUCK, JobState
from aliquot.planner.model import TaskState
from aliquot.planner.plan_builder import PlanBuilder


def stop_stale_gangs(scene: CycleState, outcome: PlanBuilder) -> None:
    if "stale-gang" not in scene.policy.steps:
        return
    for name in sorted(scene.gangs):
        job = scene.gangs[name]
        if _is_stale(scene, job):
            running = [member for member in job.members if member.state == RUNNING and member.home is not None]
            for member in running:
                scene.room.stop(member)
            outcome.stop(running, None, "stale-gang")


def _is_stale(scene: CycleState, job: JobState) -> bool:
    grace = scene.policy.stale_grace if job.source.stale_grace is None else job.source.stale_grace
    since = job.source.stale_since
    if grace < 0 or (grace > 0 and (since is None or scene.now - since < grace)):
        return False
    states = [member.state for member in job.members]
    if RUNNING not in states or any(member.task.state is TaskState.SUCCEEDED for member in job.members):
        return False
    if any(state in (STOPPED, STUCK) for state in states):
        return False  # those who are leaving still count; it is judged when they have left
    return not job.satisfied()
