"""A cluster in a few lines, for tests of the scheduler's decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from aliquot.core import Device, Job, Node, Plan, Queue, Request, Share, Snapshot, Task, TaskState, plan

V100_MIB = 32510


def gpus(count: int, name: str = "", memory_mib: int = V100_MIB, **fields: Any) -> Node:
    devices = tuple(Device(index, memory_mib) for index in range(count))
    return Node(name, devices, **{"cpu": 80_000, "memory": 512 << 30, **fields})


def quota(count: float, **fields: Any) -> Queue:
    return Queue("", round(count * 1000), **fields)


@dataclass
class World:
    nodes: list[Node] = field(default_factory=list)
    queues: list[Queue] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)

    def pending(
        self, name: str, queue: str = "a", *, gpu: float = 0, mib: int = 0, on: int = 1, **fields: Any
    ) -> World:
        """A job of one waiting task: so many GPUs, a part of one, or an amount of memory (on so many devices)."""
        self.jobs.append(
            self._job(name, queue, Task(f"{name}-0-0", _request(gpu, mib, on), **_of_task(fields)), fields)
        )
        return self

    def running(
        self, name: str, node: str, devices: list[int], queue: str = "a", *, gpu: float = 1, **fields: Any
    ) -> World:
        """A job of one task that holds these devices."""
        request = _request(gpu, 0, len(devices) if gpu < 1 else 1)
        by_index = {device.index: device for one in self.nodes if one.name == node for device in one.devices}
        shares = tuple(request.share_of(by_index[index]) for index in devices)
        task = Task(f"{name}-0-0", request, fields.pop("state", TaskState.RUNNING), node, shares)
        self.jobs.append(self._job(name, queue, task, fields))
        return self

    def _job(self, name: str, queue: str, task: Task, fields: dict[str, Any]) -> Job:
        allowed = {key: value for key, value in fields.items() if key in ("preemptible", "pools", "created")}
        return Job(name, queue, (task,), **{"created": float(len(self.jobs)), **allowed})

    def snapshot(self) -> Snapshot:
        return Snapshot(tuple(self.nodes), tuple(self.queues), tuple(self.jobs))

    def plan(self) -> Plan:
        return plan(self.snapshot())

    def started(self) -> dict[str, tuple[str, list[int]]]:
        """Job -> (node, device indices) of what the plan starts."""
        return {bind.job: (bind.node, [share.index for share in bind.shares]) for bind in self.plan().binds}


def cluster(nodes: list[Node], queues: dict[str, Queue]) -> World:
    named = [node if node.name else replace(node, name=f"n{index + 1}") for index, node in enumerate(nodes)]
    return World(named, [replace(queue, name=name) for name, queue in queues.items()])


def _request(gpu: float, mib: int, on: int) -> Request:
    milli = round(gpu * 1000)
    if mib:
        return Request(devices=on, memory_mib=mib)
    if milli >= 1000:
        return Request(devices=milli // 1000, milli=1000)
    return Request(devices=on if milli else 0, milli=milli)


def _of_task(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key in ("selector", "tolerations", "node_types")}


__all__ = ["Share", "TaskState", "World", "cluster", "gpus", "quota"]
