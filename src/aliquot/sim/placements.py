"""How to write down who holds what, so that it is read again as it is.

Usually the numbers of the GPUs say it all: a request and a device give the share. Where they do not (somebody wrote
past our checks, a device has left, more was given out than there is), the shares themselves are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from aliquot.planner.model import GPU, Snapshot, Task, TaskState

_HOLDING = (TaskState.RUNNING, TaskState.RELEASING, TaskState.EVICTED, TaskState.NOMINATED)


class Places:
    def __init__(self, snapshot: Snapshot) -> None:
        self._devices = {
            node.name: {device.index: device for device in node.devices} for node in snapshot.nodes
        }  # fmt: skip
        tasks = [task for job in snapshot.jobs for task in job.tasks if task.state in _HOLDING]
        now = [task for task in tasks if task.state is not TaskState.NOMINATED]
        soon = [task for task in tasks if task.state in (TaskState.RUNNING, TaskState.NOMINATED)]
        self._crowded = self._too_full(now) | self._too_full(soon)

    def stands(self, task: Task) -> bool:
        """Whether it is there at all: what a node that has left had is nowhere."""
        return task.state not in _HOLDING or task.state is TaskState.NOMINATED or task.node in self._devices

    def state(self, task: Task) -> TaskState:
        """A promise on a node that has left is none."""
        gone = task.state is TaskState.NOMINATED and task.node not in self._devices
        return TaskState.PENDING if gone else task.state

    def is_plain(self, task: Task) -> bool:
        """Whether the numbers of its GPUs are enough."""
        devices = self._devices[task.node]
        indices = [share.index for share in task.shares]
        return (
            len(set(indices)) == len(indices) == task.request.devices
            and all(
                share.index in devices and task.request.share_of(devices[share.index]) == share for share in task.shares
            )
            and not any((task.node, index) in self._crowded for index in indices)
        )

    def named(self, task: Task) -> list[int]:
        return [share.index for share in task.shares] if self.is_plain(task) else []

    def _too_full(self, tasks: Iterable[Task]) -> set[tuple[str, int]]:
        milli: Counter[tuple[str, int]] = Counter()
        memory: Counter[tuple[str, int]] = Counter()
        for task in tasks:
            for share in task.shares:
                milli[task.node, share.index] += share.milli
                memory[task.node, share.index] += share.memory_mib
        return {
            (node, index)
            for (node, index), held in milli.items()
            if held > GPU or memory[node, index] > self._size(node, index)
        }

    def _size(self, node: str, index: int) -> int:
        device = self._devices.get(node, {}).get(index)
        return device.memory_mib if device is not None else 0
