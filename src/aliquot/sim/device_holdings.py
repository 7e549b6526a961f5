"""How an exported scenario writes the devices that a task holds, so that reading it gives the same shares.

Usually device indices are enough: the share follows from the request and the device. Where they are not, the export
writes the shares themselves: a pod bypassed our checks, a device has left its node, or a device is overcommitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from aliquot.planner.model import GPU, Snapshot, Task, TaskState

_PLACED = (TaskState.RUNNING, TaskState.RELEASING, TaskState.EVICTED, TaskState.NOMINATED)


class DeviceHoldings:
    def __init__(self, snapshot: Snapshot) -> None:
        self._devices = {
            node.name: {device.index: device for device in node.devices} for node in snapshot.nodes
        }  # fmt: skip
        tasks = [task for job in snapshot.jobs for task in job.tasks if task.state in _PLACED]
        now = [task for task in tasks if task.state is not TaskState.NOMINATED]
        after_release = [task for task in tasks if task.state in (TaskState.RUNNING, TaskState.NOMINATED)]
        self._overcommitted = self._overcommitted_by(now) | self._overcommitted_by(after_release)

    def exists(self, task: Task) -> bool:
        """False for a task that holds devices of a node that has left the cluster."""
        return task.state not in _PLACED or task.state is TaskState.NOMINATED or task.node in self._devices

    def state(self, task: Task) -> TaskState:
        """The task's state; a task nominated to a node that has left the cluster is pending."""
        node_is_gone = task.state is TaskState.NOMINATED and task.node not in self._devices
        return TaskState.PENDING if node_is_gone else task.state

    def indices_suffice(self, task: Task) -> bool:
        """Whether the request and the device indices determine the task's shares."""
        devices = self._devices[task.node]
        indices = [share.index for share in task.shares]
        return (
            len(set(indices)) == len(indices) == task.request.devices
            and all(
                share.index in devices and task.request.share_of(devices[share.index]) == share for share in task.shares
            )
            and not any((task.node, index) in self._overcommitted for index in indices)
        )

    def indices(self, task: Task) -> list[int]:
        """The task's device indices; empty when its shares must be written instead."""
        return [share.index for share in task.shares] if self.indices_suffice(task) else []

    def _overcommitted_by(self, tasks: Iterable[Task]) -> set[tuple[str, int]]:
        milli: Counter[tuple[str, int]] = Counter()
        memory: Counter[tuple[str, int]] = Counter()
        for task in tasks:
            for share in task.shares:
                milli[task.node, share.index] += share.milli
                memory[task.node, share.index] += share.memory_mib
        return {
            (node, index)
            for (node, index), used in milli.items()
            if used > GPU or memory[node, index] > self._device_memory(node, index)
        }

    def _device_memory(self, node: str, index: int) -> int:
        device = self._devices.get(node, {}).get(index)
        return device.memory_mib if device is not None else 0
