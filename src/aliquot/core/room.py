"""What is free: per device, per node, per queue. A scratch copy that placements write to and take back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aliquot.core.model import GPU, Device, Job, Node, Request, Share, Snapshot, Task, TaskState


@dataclass(slots=True)
class Free:
    """One node's room. May be negative where more was given out than there is now."""

    node: Node
    cpu: int
    memory: int
    pods: int
    milli: dict[int, int]
    memory_mib: dict[int, int]
    devices: dict[int, Device]

    @property
    def gpu(self) -> int:
        return sum(self.milli.values())

    def take(self, request: Request, shares: Iterable[Share], sign: int = 1) -> None:
        self.cpu -= sign * request.cpu
        self.memory -= sign * request.memory
        self.pods -= sign
        for share in shares:
            if share.index in self.milli:
                self.milli[share.index] -= sign * share.milli
                self.memory_mib[share.index] -= sign * share.memory_mib


@dataclass(slots=True)
class Used:
    """What a queue holds."""

    gpu: int = 0
    cpu: int = 0
    memory: int = 0
    # The part that nobody may take away: it must stay within quota.
    fixed_gpu: int = 0
    fixed_cpu: int = 0
    fixed_memory: int = 0


@dataclass(slots=True)
class Room:
    nodes: dict[str, Free]
    queues: dict[str, Used] = field(default_factory=dict)
    smallest_mib: int = 0  # the smallest device there is: what a waiting request for memory is counted by

    @classmethod
    def of(cls, snapshot: Snapshot) -> Room:
        room = cls({node.name: _free(node) for node in sorted(snapshot.nodes, key=lambda node: node.name)})
        room.queues = {queue.name: Used() for queue in snapshot.queues}
        sizes = [device.memory_mib for node in snapshot.nodes for device in node.devices if device.memory_mib]
        room.smallest_mib = min(sizes, default=0)
        for job in snapshot.jobs:
            for task in job.tasks:
                if task.state is not TaskState.PENDING:
                    room.hold(job, task, task.node, task.shares)
        return room

    def hold(self, job: Job, task: Task, node: str, shares: tuple[Share, ...], sign: int = 1) -> None:
        """Give a task its place (or, with sign -1, take it back)."""
        if node in self.nodes:
            self.nodes[node].take(task.request, shares, sign)
        if task.state is TaskState.RELEASING:
            return  # it still stands there, but its queue no longer has it
        used = self.queues.setdefault(job.queue, Used())
        gpu = sign * self.counted(task.request, node, shares)
        cpu, memory = sign * task.request.cpu, sign * task.request.memory
        used.gpu, used.cpu, used.memory = used.gpu + gpu, used.cpu + cpu, used.memory + memory
        if not job.preemptible:
            used.fixed_gpu += gpu
            used.fixed_cpu += cpu
            used.fixed_memory += memory

    def counted(self, request: Request, node: str = "", shares: tuple[Share, ...] = ()) -> int:
        """Milli-GPU against quota: by the devices it has, or by the smallest there is while it waits."""
        free = self.nodes.get(node)
        if free and shares and shares[0].index in free.devices:
            return request.quota(free.devices[shares[0].index].memory_mib)
        return request.quota(self.smallest_mib)


def _free(node: Node) -> Free:
    devices = {device.index: device for device in node.devices if device.healthy}
    return Free(
        node,
        node.cpu,
        node.memory,
        node.pods,
        dict.fromkeys(devices, GPU),
        {index: device.memory_mib for index, device in devices.items()},
        devices,
    )
