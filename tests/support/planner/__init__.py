"""Clusters in a few lines, for tests of the planner. `cluster` is the entry point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from aliquot.planner import (
    Device,
    DeviceShare,
    Job,
    Node,
    Plan,
    Policy,
    PoolQuota,
    Queue,
    Request,
    Snapshot,
    Task,
    TaskState,
    plan,
)
from aliquot.planner.cycle_state import CycleState
from aliquot.planner.model import DEFAULT_POOL

V100_MIB = 32510
_TASK_FIELDS = ("selector", "tolerations", "node_types", "affinity", "subgroup", "order")
_POOL_QUOTA_FIELDS = {field.name for field in fields(PoolQuota)} - {"quota", "limit"}


def gpus(count: int, name: str = "", memory_mib: int = V100_MIB, **more: Any) -> Node:
    devices = tuple(Device(index, memory_mib) for index in range(count))
    return Node(name, devices, **{"cpu": 80_000, "memory": 512 << 30, **more})


def quota(gpu: float | None, limit: float | None = None, **more: Any) -> Queue:
    """A queue with this quota and limit of GPUs; other fields of `PoolQuota` and `Queue` by name."""
    own = {key: more.pop(key) for key in list(more) if key in _POOL_QUOTA_FIELDS}
    if "weight" in own and not isinstance(own["weight"], tuple):
        own["weight"] = (own["weight"],) * 3
    terms = PoolQuota((_milli(gpu), None, None), (_milli(limit), None, None), **own)
    return Queue("", pools={DEFAULT_POOL: terms}, **more)


def _milli(gpu: float | None) -> int | None:
    return None if gpu is None else round(gpu * 1000)


@dataclass
class World:
    nodes: list[Node] = field(default_factory=list)
    queues: list[Queue] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    policy: Policy = field(
        default_factory=lambda: Policy(hold_after=None)
    )  # no capacity reservations, except in tests of them
    now: float = 1000.0
    topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    claims: frozenset[str] | None = None

    def pending(
        self, name: str, queue: str = "a", *, gpu: float = 0, mib: int = 0, on: int = 1, count: int = 1, **more: Any
    ) -> World:
        """Add a job of `count` pending tasks, each with `gpu` GPUs (or a fraction), or with `mib` of GPU memory on
        `on` devices."""
        own = {key: more.pop(key) for key in _TASK_FIELDS if key in more}
        need = replace(request(gpu, mib, on), cpu=more.pop("cpu", 0), memory=more.pop("memory", 0))
        tasks = tuple(Task(f"{name}-{index}-0", need, **own) for index in range(count))
        return self.job(name, queue, *tasks, **more)

    def running(
        self, name: str, node: str, devices: list[int], queue: str = "a", *, gpu: float = 1, **more: Any
    ) -> World:
        """Add a job of one task that runs on these devices."""
        task = self.task(f"{name}-0-0", node, devices, gpu, more.pop("state", TaskState.RUNNING))
        return self.job(name, queue, task, **more)

    def task(
        self, name: str, node: str, devices: list[int], gpu: float = 1, state: TaskState = TaskState.RUNNING
    ) -> Task:
        """A task that runs on these devices."""
        need = request(gpu, 0, len(devices) if gpu < 1 else 1)
        by_index = {device.index: device for n in self.nodes if n.name == node for device in n.devices}
        return Task(name, need, state, node, tuple(need.share_of(by_index[index]) for index in devices))

    def job(self, name: str, queue: str, *tasks: Task, **more: Any) -> World:
        self.jobs.append(Job(name, queue, tasks, **{"created": float(len(self.jobs)), **more}))
        return self

    def snapshot(self) -> Snapshot:
        return Snapshot(tuple(self.nodes), tuple(self.queues), tuple(self.jobs), self.topologies, self.claims)

    def plan(self) -> Plan:
        return plan(self.snapshot(), self.policy, self.now)

    def cycle_state(self) -> CycleState:
        """The state before the first step of a cycle."""
        state = CycleState(self.snapshot(), self.policy, self.now)
        state.add_jobs(sorted(self.jobs, key=lambda job: job.name))
        return state

    def started(self) -> dict[str, tuple[str, list[int]]]:
        """Node and device indices of the jobs that the plan starts."""
        return {bind.job: (bind.node, [share.index for share in bind.shares]) for bind in self.plan().binds}

    def codes(self, job: str) -> list[str]:
        return [reason.code for reason in self.plan().refusals.get(job, ())]


def cluster(nodes: list[Node], queues: dict[str, Queue], **more: Any) -> World:
    named = [node if node.name else replace(node, name=f"n{index + 1}") for index, node in enumerate(nodes)]
    return World(named, [replace(queue, name=name) for name, queue in queues.items()], **more)


def request(gpu: float = 0, mib: int = 0, on: int = 1) -> Request:
    milli = round(gpu * 1000)
    if mib:
        return Request(devices=on, memory_mib=mib)
    if milli >= 1000:
        return Request(devices=milli // 1000, milli=1000)
    return Request(devices=on if milli else 0, milli=milli)


__all__ = ["DeviceShare", "TaskState", "World", "cluster", "gpus", "quota", "request"]
