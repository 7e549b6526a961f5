"""Reserves capacity for a job that has waited longer than the starvation limit (`hold_after`).

Without it, a stream of small jobs takes every device that becomes free before there are enough for a large job.

How long other jobs run is not known, and reserved devices are idle. So a reservation is held for a while and then given
up for longer. With a limit of H it lasts while the job has waited for H to 1.25 H, for 4 H to 5 H, for 16 H to 20 H,
and so on. Jobs that end in finite time end within one of these periods, and most of the time nothing is reserved.

There is one reservation at a time, for the first job in queue order whose fair share covers what it requests and which
would fit if all tasks that can end or be evicted were gone. The nodes where the least has to end are chosen. The tasks
that run there run on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor, log

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import STUCK, JobState, TaskSlot
from aliquot.planner.model import GPU
from aliquot.planner.placement.node_state import DeviceAlloc, NodeState
from aliquot.planner.placement.task_class import WHOLE

_END = 1.25  # when a reservation ends, as a multiple of the waiting time at which it began
_GROWTH = 4.0  # when the next one begins, likewise

# Devices by node, with what is free of each.
ReservedDevices = tuple[tuple[NodeState, tuple[DeviceAlloc, ...]], ...]


@dataclass(frozen=True, slots=True)
class CapacityReservation:
    job: JobState
    devices: ReservedDevices
    until: float

    @property
    def nodes(self) -> list[str]:
        return [node.name for node, _ in self.devices]


def reserve_capacity(state: CycleState, job: JobState, members: Sequence[TaskSlot]) -> None:
    """Reserve devices for a job that was just refused for lack of capacity, if it has waited long enough."""
    if state.reservation is not None:
        return
    until = _until(state, job)
    if until is None or not _requests_whole_devices_anywhere(state, job, members):
        return
    devices = _choose_devices(state, members)
    if devices and _within_fair_share(state, job, members, devices):
        state.reservation = CapacityReservation(job, devices, until)
        _reserve(state, members[0])


@contextmanager
def reservation_lifted(state: CycleState, job: JobState) -> Iterator[None]:
    """Give the job the devices that are reserved for it while it tries to evict other tasks."""
    reservation = state.reservation
    if reservation is None or reservation.job is not job:
        yield
        return
    for node, allocs in reservation.devices:
        state.pool.unreserve(job.members[0], node, allocs)
    present = job.present
    yield
    if job.present == present:
        _reserve(state, job.members[0])
    else:
        state.reservation = None  # it was placed


def _reserve(state: CycleState, member: TaskSlot) -> None:
    assert state.reservation is not None
    for node, allocs in state.reservation.devices:
        state.pool.reserve(member, node, allocs)


def _until(state: CycleState, job: JobState) -> float | None:
    """When a reservation for the job ends; None when it gets none now."""
    limit, source = state.policy.hold_after, job.source
    if limit is None or limit <= 0 or state.now - source.created < limit:
        return None
    waited = state.now - source.created
    begin = limit * _GROWTH ** floor(log(waited / limit, _GROWTH))
    return source.created + begin * _END if waited < begin * _END else None


def _requests_whole_devices_anywhere(state: CycleState, job: JobState, members: Sequence[TaskSlot]) -> bool:
    source = job.source
    if source.topology_constraint or source.pod_affinity or source.pod_anti_affinity:
        return False
    if any(subgroup.topology_constraint for subgroup in source.subgroups):
        return False
    return all(state.placer.task_class(member).form == WHOLE for member in members)


def _within_fair_share(state: CycleState, job: JobState, members: Sequence[TaskSlot], devices: ReservedDevices) -> bool:
    """Whether the fair share of its queues covers what the job requests, and what they use and reserve together."""
    requested = state.placer.requested(members)[0]
    reserved = sum(milli for _, allocs in devices for _, milli, _ in allocs)
    return all(requested <= queue.share[0] and queue.used[0] + reserved <= queue.share[0] for queue in job.queue.path)


def _choose_devices(state: CycleState, members: Sequence[TaskSlot]) -> ReservedDevices:
    """Devices for all of the tasks, on the nodes where the least has to end; empty when there are not enough."""
    unplaced = sorted(
        (state.placer.task_class(member) for member in members),
        key=lambda task_class: (-task_class.devices, task_class.id),
    )
    chosen: list[tuple[NodeState, tuple[DeviceAlloc, ...]]] = []
    for node in sorted(state.pool.nodes, key=_allocated):
        allocs, cpu, memory = _evictable(node)
        taken = 0
        for task_class in unplaced[:]:
            if (
                task_class.mask[node.id]
                and taken + task_class.devices <= len(allocs)
                and task_class.cpu <= cpu
                and task_class.memory <= memory
            ):
                taken, cpu, memory = taken + task_class.devices, cpu - task_class.cpu, memory - task_class.memory
                unplaced.remove(task_class)
        if taken:
            chosen.append((node, tuple(alloc for alloc in allocs[:taken] if alloc[1] > 0)))
        if not unplaced:
            return tuple(chosen)
    return ()


def _allocated(node: NodeState) -> tuple[int, int]:
    """Milli of its devices that are allocated after release, ties by name."""
    return GPU * len(node.sizes) - sum(node.after_release.milli), node.id


def _evictable(node: NodeState) -> tuple[list[DeviceAlloc], int, int]:
    """What can become free: devices (with what is free of them after release), CPU and memory. Tasks that cannot be
    evicted may never end."""
    unavailable = {device for device, profile in enumerate(node.profiles or ()) if profile}
    cpu, memory = node.source.cpu - node.source.foreign[1], node.source.memory - node.source.foreign[2]
    for member in node.tasks:
        if member.job.nonpreemptible or member.state is STUCK:
            unavailable |= {device for device, _, _ in member.allocs}
            cpu, memory = cpu - member.task.request.cpu, memory - member.task.request.memory
    free = node.after_release
    allocs = [
        (device, free.milli[device], free.mib[device]) for device in range(len(node.sizes)) if device not in unavailable
    ]
    return sorted(allocs, key=lambda alloc: (-alloc[1], alloc[0])), cpu, memory
