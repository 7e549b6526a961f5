"""Steps 1 and 2 of a cycle: tasks start on free devices, and no running task is evicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import BOUND, NOMINATED, PENDING, JobState, TaskSlot
from aliquot.planner.placement.pool_state import quota_amount
from aliquot.planner.placement.starvation import reserve_capacity
from aliquot.planner.plan_builder import PlanBuilder
from aliquot.planner.queues import quota
from aliquot.planner.queues.queue_order import Batch, QueueOrder


def allocate(state: CycleState, batches: Sequence[Batch], builder: PlanBuilder) -> list[Batch]:
    """Place pending jobs on free devices, in queue order. Returns the batches that still wait."""
    placer = state.placer
    waiting: list[Batch] = []
    queue_order = QueueOrder(batches, placer.next_request)
    while batch := queue_order.pop():
        job = batch.head
        obstacle, failed = "", None
        for members in job.start_options() if job.source.subgroups else (job.next_tasks(),):
            if not quota.allows(job.queue, placer.min_requested(members), job.nonpreemptible):
                obstacle = obstacle or "quota"
            elif not placer.place(job, members):
                obstacle = "capacity" if placer.failed is not None else "quota"
                failed = placer.failed or failed
            else:
                queue_order.advance(batch)
                break
        else:
            if obstacle:  # without one, too few of its tasks exist
                builder.record_obstacle(state, batch, "allocate", obstacle, failed)
            if obstacle == "capacity":
                reserve_capacity(state, job, job.next_tasks())
            waiting.append(batch)
    return waiting


def restore_nominations(state: CycleState, jobs: Iterable[JobState]) -> list[JobState]:
    """Give nominated tasks the devices that an earlier plan promised them, and start those that can start there or
    elsewhere now. Returns the jobs that lost a nomination: they wait like other jobs."""
    lost: list[JobState] = []
    restored: dict[JobState, list[TaskSlot]] = {}
    for job in sorted(jobs, key=lambda job: job.name):
        nominated = state.nominated[job]
        members = [member for member in nominated if _restore(state, member)]
        if members:
            restored[job] = members
        if len(members) < len(nominated):
            lost.append(job)
    for job, members in sorted(restored.items(), key=lambda item: item[0].order()):
        _start(state, job, members)
    return lost


def _restore(state: CycleState, member: TaskSlot) -> bool:
    """Allocate the nominated devices to the task, if its quota and the node still allow it."""
    node = state.pool.nodes_by_name.get(member.task.node)
    task_class = state.placer.task_class(member)
    if node is None or not task_class.mask[node.id]:
        return False
    allocs = node.allocs_of(member.task.shares)
    if not quota.allows(member.job.queue, quota_amount(task_class, node, allocs), member.job.nonpreemptible):
        return False
    if len(allocs) != len(member.task.shares) or not node.after_release.has(task_class.cpu, task_class.memory, allocs):
        return False
    state.pool.allocate(member, task_class, node, allocs, NOMINATED)
    return True


def _start(state: CycleState, job: JobState, members: list[TaskSlot]) -> None:
    pool = state.pool
    savepoint = pool.savepoint()
    for member in members:
        if pool.can_start(member):
            pool.start(member)
    started = [member for member in members if member.state is BOUND]
    if started and (len(started) == len(members) or _satisfied_without_nominated(job)):
        return
    pool.rollback(savepoint)
    # Not all of them can start there yet. Perhaps they can elsewhere.
    savepoint = pool.savepoint()
    for member in members:
        pool.withdraw(member)
    if state.placer.place(job, members) and all(member.state is BOUND for member in members):
        return
    pool.rollback(savepoint)


def _satisfied_without_nominated(job: JobState) -> bool:
    """Whether the job has its minimum without the tasks that are only nominated."""
    nominated = [member for member in job.members if member.state is NOMINATED]
    for member in nominated:
        member.state = PENDING
    satisfied = job.satisfied()
    for member in nominated:
        member.state = NOMINATED
    return satisfied
