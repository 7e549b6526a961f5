"""Steps 1 and 2: places for those who wait, without disturbing anybody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import BOUND, NOMINATED, PENDING, JobState, TaskSlot, satisfied
from aliquot.planner.placement.pool_state import counted
from aliquot.planner.placement.starvation import reserve_capacity
from aliquot.planner.plan_builder import PlanBuilder
from aliquot.planner.queues import quota
from aliquot.planner.queues.queue_order import Batch, QueueOrder


def allocate(state: CycleState, batches: Sequence[Batch], builder: PlanBuilder) -> list[Batch]:
    """Give what is free to those whose turn it is. Returns who still waits."""
    placer = state.placer
    waiting: list[Batch] = []
    turns = QueueOrder(batches, placer.next_request)
    while batch := turns.pop():
        job = batch.head
        why, failed = "", None
        for members in job.options() if job.source.subgroups else (job.next_tasks(),):
            if not quota.allows(job.queue, placer.min_requested(members), job.nonpreemptible):
                why = why or "quota"
            elif not placer.place(job, members):
                why = "capacity" if placer.failed is not None else "quota"
                failed = placer.failed or failed
            else:
                turns.advance(batch)
                break
        else:
            if why:  # else too few of its tasks exist
                builder.note(state, batch, "allocate", why, failed)
            if why == "capacity":
                reserve_capacity(state, job, job.next_tasks())
            waiting.append(batch)
    return waiting


def restore_nominations(state: CycleState, jobs: Iterable[JobState]) -> list[JobState]:
    """Places that an earlier plan promised are held; who can start there, or anywhere else now, starts. Returns jobs
    whose promise cannot be kept, and that wait like others."""
    void: list[JobState] = []
    held: dict[JobState, list[TaskSlot]] = {}
    for job in sorted(jobs, key=lambda job: job.name):
        members = state.nominated[job]
        kept = [member for member in members if _hold(state, member)]
        if kept:
            held[job] = kept
        if len(kept) < len(members):
            void.append(job)
    for job, members in sorted(held.items(), key=lambda item: item[0].order()):
        _start(state, job, members)
    return void


def _hold(state: CycleState, member: TaskSlot) -> bool:
    """Whether its place is still to be had, and is now held for it."""
    node = state.pool.by_name.get(member.task.node)
    task_class = state.placer.task_class(member)
    if node is None or not task_class.mask[node.id]:
        return False
    allocs = node.allocs_of(member.task.shares)
    if not quota.allows(member.job.queue, counted(task_class, node, allocs), member.job.nonpreemptible):
        return False
    after_release = node.after_release
    if (
        len(allocs) != len(member.task.shares)
        or task_class.cpu > after_release.cpu
        or task_class.memory > after_release.memory
        or after_release.pods < 1
        or any(after_release.milli[row] < milli or after_release.mib[row] < mib for row, milli, mib in allocs)
    ):
        return False
    state.pool.settle(member, task_class, node, allocs, NOMINATED)
    return True


def _start(state: CycleState, job: JobState, members: list[TaskSlot]) -> None:
    pool = state.pool
    savepoint = pool.savepoint()
    for member in members:
        if pool.can_start(member):
            pool.start(member)
    started = [member for member in members if member.state == BOUND]
    if started and (len(started) == len(members) or _enough(job)):
        return
    pool.rollback(savepoint)
    # Not all of them can start there yet. Perhaps they can elsewhere.
    savepoint = pool.savepoint()
    for member in members:
        pool.withdraw(member)
    if state.placer.place(job, members) and all(member.state == BOUND for member in members):
        return
    pool.rollback(savepoint)


def _enough(job: JobState) -> bool:
    """Whether its minimum is there without those who are only promised a place."""
    nominated = [member for member in job.members if member.state == NOMINATED]
    for member in nominated:
        member.state = PENDING
    enough = satisfied(job.root)
    for member in nominated:
        member.state = NOMINATED
    return enough
