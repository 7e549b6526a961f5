"""Steps 1 and 2: places for those who wait, without disturbing anybody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import BOUND, PENDING, RESERVED, JobState, TaskSlot, satisfied
from aliquot.planner.placement.pool_state import counted
from aliquot.planner.placement.starvation import reserve_capacity
from aliquot.planner.plan_builder import PlanBuilder
from aliquot.planner.queues import quota
from aliquot.planner.queues.queue_order import Batch, QueueOrder


def allocate(scene: CycleState, batches: Sequence[Batch], outcome: PlanBuilder) -> list[Batch]:
    """Give what is free to those whose turn it is. Returns who still waits."""
    placer = scene.placer
    waiting: list[Batch] = []
    turns = QueueOrder(batches, placer.asks)
    while batch := turns.pop():
        job = batch.head
        why, failed = "", None
        for members in job.options() if job.source.groups else (job.next_tasks(),):
            if not quota.allows(job.queue, placer.least(members), job.fixed):
                why = why or "quota"
            elif not placer.place(job, members):
                why = "capacity" if placer.failed is not None else "quota"
                failed = placer.failed or failed
            else:
                turns.advance(batch)
                break
        else:
            if why:  # else too few of its tasks exist
                outcome.note(scene, batch, "allocate", why, failed)
            if why == "capacity":
                reserve_capacity(scene, job, job.next_tasks())
            waiting.append(batch)
    return waiting


def restore_nominations(scene: CycleState, jobs: Iterable[JobState]) -> list[JobState]:
    """Places that an earlier plan promised are held; who can start there, or anywhere else now, starts. Returns jobs
    whose promise cannot be kept, and that wait like others."""
    void: list[JobState] = []
    held: dict[JobState, list[TaskSlot]] = {}
    for job in sorted(jobs, key=lambda job: job.name):
        members = scene.promised[job]
        kept = [member for member in members if _hold(scene, member)]
        if kept:
            held[job] = kept
        if len(kept) < len(members):
            void.append(job)
    for job, members in sorted(held.items(), key=lambda item: item[0].order()):
        _start(scene, job, members)
    return void


def _hold(scene: CycleState, member: TaskSlot) -> bool:
    """Whether its place is still to be had, and is now held for it."""
    node = scene.room.by_name.get(member.task.node)
    kind = scene.placer.kind(member)
    if node is None or not kind.mask[node.id]:
        return False
    rows = node.rows_of(member.task.shares)
    if not quota.allows(member.job.queue, counted(kind, node, rows), member.job.fixed):
        return False
    soon = node.soon
    if (
        len(rows) != len(member.task.shares)
        or kind.cpu > soon.cpu
        or kind.memory > soon.memory
        or soon.pods < 1
        or any(soon.milli[row] < milli or soon.mib[row] < mib for row, milli, mib in rows)
    ):
        return False
    scene.room.settle(member, kind, node, rows, RESERVED)
    return True


def _start(scene: CycleState, job: JobState, members: list[TaskSlot]) -> None:
    room = scene.room
    mark = room.mark()
    for member in members:
        if room.can_start(member):
            room.start(member)
    started = [member for member in members if member.state == BOUND]
    if started and (len(started) == len(members) or _enough(job)):
        return
    room.undo(mark)
    # Not all of them can start there yet. Perhaps they can elsewhere.
    mark = room.mark()
    for member in members:
        room.withdraw(member)
    if scene.placer.place(job, members) and all(member.state == BOUND for member in members):
        return
    room.undo(mark)


def _enough(job: JobState) -> bool:
    """Whether its minimum is there without those who are only promised a place."""
    promised = [member for member in job.members if member.state == RESERVED]
    for member in promised:
        member.state = PENDING
    enough = satisfied(job.root)
    for member in promised:
        member.state = RESERVED
    return enough
