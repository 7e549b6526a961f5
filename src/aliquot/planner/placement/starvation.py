"""Room is kept for a job that has waited long, so that a stream of small jobs does not take every device that comes
free before there are enough of them for a large one.

Nobody knows how long others run, and what is kept is idle. So it is kept for a while and then given up for longer:
after waiting for H, room is kept until 1.25 H, again from 4 H to 5 H, from 16 H to 20 H, and so on. Jobs that end in
some finite time are outwaited in the end, and for most of the time nothing is kept.

One job at a time, the first whose turn it is: one that is due what it asks for, and for which there would be room if
all that can end or be stopped were gone. The devices that are most nearly free are chosen; whoever runs there runs on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import floor, log

from aliquot.planner.cycle_state import CapacityReservation, CycleState, Places
from aliquot.planner.jobs import STUCK, JobState, TaskSlot
from aliquot.planner.model import GPU
from aliquot.planner.placement.node_state import DeviceAlloc, NodeState
from aliquot.planner.placement.task_class import WHOLE

_WHILE = 1.25  # when it is given up again, as a part of the wait after which it was kept


def reserve_capacity(state: CycleState, job: JobState, members: Sequence[TaskSlot]) -> None:
    """For a job that was just refused for lack of room, if it has waited long enough."""
    if state.reservation is not None:
        return
    until = _until(state, job)
    if until is None or not _is_plain(state, job, members):
        return
    places = _places(state, members)
    if places and _is_due(state, job, members, places):
        state.reservation = CapacityReservation(job, places, until)
        _seal(state, members[0])


@contextmanager
def open_to(state: CycleState, job: JobState) -> Iterator[None]:
    """While a job asks for the room of others: what is kept for it is there for it."""
    kept = state.reservation
    if kept is None or kept.job is not job:
        yield
        return
    for node, allocs in kept.places:
        state.pool.unseal(job.members[0], node, allocs)
    waited = job.present
    yield
    if job.present == waited:
        _seal(state, job.members[0])
    else:
        state.reservation = None  # it has its place


def _seal(state: CycleState, member: TaskSlot) -> None:
    assert state.reservation is not None
    for node, allocs in state.reservation.places:
        state.pool.seal(member, node, allocs)


def _until(state: CycleState, job: JobState) -> float | None:
    """When room is no longer kept for it; None: it is not kept now."""
    patience, source = state.policy.hold_after, job.source
    if patience is None or patience <= 0 or state.now - source.created < patience:
        return None
    age = state.now - source.created
    begin = patience * 4.0 ** floor(log(age / patience, 4))
    return source.created + begin * _WHILE if age < begin * _WHILE else None


def _is_plain(state: CycleState, job: JobState, members: Sequence[TaskSlot]) -> bool:
    """Whether it asks for whole devices, wherever they are."""
    source = job.source
    if (
        source.topology_constraint
        or source.pod_affinity
        or source.pod_anti_affinity
        or any(subgroup.topology_constraint for subgroup in source.subgroups)
    ):
        return False
    return all(state.placer.task_class(member).form == WHOLE for member in members)


def _is_due(state: CycleState, job: JobState, members: Sequence[TaskSlot], places: Places) -> bool:
    """Whether its queues are due what it asks for, and also what they hold together with what is kept for it."""
    asked = state.placer.requested(members)[0]
    kept = sum(milli for _, allocs in places for _, milli, _ in allocs)
    return all(asked <= queue.share[0] and queue.used[0] + kept <= queue.share[0] for queue in job.queue.path)


def _places(state: CycleState, members: Sequence[TaskSlot]) -> Places:
    """Devices for all of them, on nodes where the least has to end; nothing when there are not enough."""
    left = sorted(
        (state.placer.task_class(member) for member in members),
        key=lambda task_class: (-task_class.devices, task_class.id),
    )
    chosen: list[tuple[NodeState, tuple[DeviceAlloc, ...]]] = []
    for node in sorted(
        state.pool.nodes, key=lambda node: (GPU * len(node.sizes) - sum(node.after_release.milli), node.id)
    ):
        allocs, cpu, memory = _to_come(node)
        wanted = 0
        for task_class in left[:]:
            if (
                task_class.mask[node.id]
                and wanted + task_class.devices <= len(allocs)
                and task_class.cpu <= cpu
                and task_class.memory <= memory
            ):
                wanted, cpu, memory = wanted + task_class.devices, cpu - task_class.cpu, memory - task_class.memory
                left.remove(task_class)
        if wanted:
            chosen.append((node, tuple(row for row in allocs[:wanted] if row[1] > 0)))
        if not left:
            return tuple(chosen)
    return ()


def _to_come(node: NodeState) -> tuple[list[DeviceAlloc], int, int]:
    """What could be free one day: devices (with what is free of them now), CPU and memory. What cannot be stopped may
    never end."""
    stays = {row for row, profile in enumerate(node.profiles or ()) if profile}
    cpu, memory = node.source.cpu - node.source.foreign[1], node.source.memory - node.source.foreign[2]
    for member in node.tasks:
        if member.job.nonpreemptible or member.state == STUCK:
            stays |= {row for row, _, _ in member.allocs}
            cpu, memory = cpu - member.task.request.cpu, memory - member.task.request.memory
    after_release = node.after_release
    allocs = [
        (row, after_release.milli[row], after_release.mib[row]) for row in range(len(node.sizes)) if row not in stays
    ]
    return sorted(allocs, key=lambda row: (-row[1], row[0])), cpu, memory
