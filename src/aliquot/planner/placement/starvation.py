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


def reserve_capacity(scene: CycleState, job: JobState, members: Sequence[TaskSlot]) -> None:
    """For a job that was just refused for lack of room, if it has waited long enough."""
    if scene.kept is not None:
        return
    until = _until(scene, job)
    if until is None or not _is_plain(scene, job, members):
        return
    places = _places(scene, members)
    if places and _is_due(scene, job, members, places):
        scene.kept = CapacityReservation(job, places, until)
        _seal(scene, members[0])


@contextmanager
def open_to(scene: CycleState, job: JobState) -> Iterator[None]:
    """While a job asks for the room of others: what is kept for it is there for it."""
    kept = scene.kept
    if kept is None or kept.job is not job:
        yield
        return
    for node, rows in kept.places:
        scene.room.unseal(job.members[0], node, rows)
    waited = job.present
    yield
    if job.present == waited:
        _seal(scene, job.members[0])
    else:
        scene.kept = None  # it has its place


def _seal(scene: CycleState, member: TaskSlot) -> None:
    assert scene.kept is not None
    for node, rows in scene.kept.places:
        scene.room.seal(member, node, rows)


def _until(scene: CycleState, job: JobState) -> float | None:
    """When room is no longer kept for it; None: it is not kept now."""
    patience, source = scene.policy.hold_after, job.source
    if patience is None or patience <= 0 or scene.now - source.created < patience:
        return None
    age = scene.now - source.created
    begin = patience * 4.0 ** floor(log(age / patience, 4))
    return source.created + begin * _WHILE if age < begin * _WHILE else None


def _is_plain(scene: CycleState, job: JobState, members: Sequence[TaskSlot]) -> bool:
    """Whether it asks for whole devices, wherever they are."""
    source = job.source
    if source.closeness or source.near or source.apart or any(group.closeness for group in source.groups):
        return False
    return all(scene.placer.kind(member).form == WHOLE for member in members)


def _is_due(scene: CycleState, job: JobState, members: Sequence[TaskSlot], places: Places) -> bool:
    """Whether its queues are due what it asks for, and also what they hold together with what is kept for it."""
    asked = scene.placer.asked(members)[0]
    kept = sum(milli for _, rows in places for _, milli, _ in rows)
    return all(asked <= queue.share[0] and queue.used[0] + kept <= queue.share[0] for queue in job.queue.path)


def _places(scene: CycleState, members: Sequence[TaskSlot]) -> Places:
    """Devices for all of them, on nodes where the least has to end; nothing when there are not enough."""
    left = sorted((scene.placer.kind(member) for member in members), key=lambda kind: (-kind.devices, kind.id))
    chosen: list[tuple[NodeState, tuple[DeviceAlloc, ...]]] = []
    for node in sorted(scene.room.nodes, key=lambda node: (GPU * len(node.sizes) - sum(node.soon.milli), node.id)):
        rows, cpu, memory = _to_come(node)
        wanted = 0
        for kind in left[:]:
            if kind.mask[node.id] and wanted + kind.devices <= len(rows) and kind.cpu <= cpu and kind.memory <= memory:
                wanted, cpu, memory = wanted + kind.devices, cpu - kind.cpu, memory - kind.memory
                left.remove(kind)
        if wanted:
            chosen.append((node, tuple(row for row in rows[:wanted] if row[1] > 0)))
        if not left:
            return tuple(chosen)
    return ()


def _to_come(node: NodeState) -> tuple[list[DeviceAlloc], int, int]:
    """What could be free one day: devices (with what is free of them now), CPU and memory. What cannot be stopped may
    never end."""
    stays = {row for row, profile in enumerate(node.profiles or ()) if profile}
    cpu, memory = node.source.cpu - node.source.foreign[1], node.source.memory - node.source.foreign[2]
    for member in node.tenants:
        if member.job.fixed or member.state == STUCK:
            stays |= {row for row, _, _ in member.rows}
            cpu, memory = cpu - member.task.request.cpu, memory - member.task.request.memory
    soon = node.soon
    rows = [(row, soon.milli[row], soon.mib[row]) for row in range(len(node.sizes)) if row not in stays]
    return sorted(rows, key=lambda row: (-row[1], row[0])), cpu, memory
