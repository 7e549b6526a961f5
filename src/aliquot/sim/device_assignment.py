"""Which devices the placed tasks of a scenario hold, where the file does not say.

Tasks that list their shares are assigned first, then tasks that list device indices, then the rest. Fractions of one
share group use the same device, a fraction without a group gets a device of its own, and whole GPUs take the first
free devices. Reserved tasks come last; they may use devices that terminating and evicted tasks still hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aliquot.planner.model import GPU, Device, DeviceShare, Node, Request
from aliquot.sim.field_readers import FieldPath
from aliquot.sim.scenario_spec import TaskSpec


class PlacedTask(NamedTuple):
    """A task that has a node; `key` identifies it to the caller."""

    key: tuple[int, int]
    spec: TaskSpec
    request: Request
    path: FieldPath


class _DeviceCapacity:
    """What is left of a device."""

    __slots__ = ("device", "memory", "milli")

    def __init__(self, device: Device) -> None:
        self.device, self.milli, self.memory = device, GPU, device.memory_mib

    @property
    def unused(self) -> bool:
        return self.milli == GPU and self.memory == self.device.memory_mib

    def take(self, request: Request) -> DeviceShare | None:
        share = request.share_of(self.device)
        if share.milli > self.milli or (self.device.memory_mib and share.memory_mib > self.memory):
            return None
        self.milli -= share.milli
        self.memory -= share.memory_mib
        return share


class _NodeDevices:
    """The devices of a node. Keeps a stack of unused ones, so that a search does not pass all used ones each time."""

    def __init__(self, node: Node) -> None:
        self.by_index = {device.index: _DeviceCapacity(device) for device in node.devices}
        self._unused: dict[str, list[int]] = {}
        for device in sorted(node.devices, key=lambda device: -device.index):
            self._unused.setdefault(device.profile, []).append(device.index)

    def take_unused(self, profile: str, count: int) -> list[int] | None:
        """The indices of the first unused devices; None when there are too few."""
        stack = self._unused.get(profile, [])
        indices: list[int] = []
        while stack and len(indices) < count:
            index = stack.pop()
            if self.by_index[index].unused:
                indices.append(index)
        if len(indices) < count:
            stack.extend(reversed(indices))
            return None
        return indices


def assign_devices(
    nodes: Mapping[str, Node], tasks: Iterable[PlacedTask]
) -> dict[tuple[int, int], tuple[DeviceShare, ...]]:
    """The shares of each task, by key; a task whose node lacks the capacity gets a fault and no shares."""
    on_known_nodes = [task for task in tasks if task.spec.node in nodes]
    reserved = [task for task in on_known_nodes if task.spec.state == "reserved"]
    shares = _assign(_Allocator(nodes), [task for task in on_known_nodes if task.spec.state != "reserved"])
    if not reserved:
        return shares
    after_release = _Allocator(nodes)
    for task in on_known_nodes:
        # Only running tasks count: terminating and evicted ones release their devices to the reserved tasks.
        if task.spec.state == "running":
            after_release.record(task.spec.node, shares[task.key])
    return shares | _assign(after_release, reserved)


def _assign(allocator: _Allocator, tasks: list[PlacedTask]) -> dict[tuple[int, int], tuple[DeviceShare, ...]]:
    """The most specific tasks first: listed shares, then listed devices, then the rest."""
    with_shares = [task for task in tasks if task.spec.shares is not None]
    shares = {task.key: allocator.record(task.spec.node, task.spec.shares or ()) for task in with_shares}
    shares |= {task.key: allocator.take_listed(task) for task in tasks if task.key not in shares and task.spec.devices}
    return shares | {task.key: allocator.take_free(task) for task in tasks if task.key not in shares}


class _Allocator:
    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._devices: dict[str, _NodeDevices] = {}
        self._share_groups: dict[str, tuple[str, list[int]]] = {}

    def _devices_of(self, node: str) -> _NodeDevices:
        if node not in self._devices:
            self._devices[node] = _NodeDevices(self._nodes[node])
        return self._devices[node]

    def record(self, node: str, shares: tuple[DeviceShare, ...]) -> tuple[DeviceShare, ...]:
        """Take the shares as listed, even beyond a device's capacity."""
        for share in shares:
            device = self._devices_of(node).by_index.get(share.index)
            if device is None:
                continue  # the device has left the node
            device.milli -= share.milli
            device.memory -= share.memory_mib
        return shares

    def take_listed(self, task: PlacedTask) -> tuple[DeviceShare, ...]:
        indices, path, devices = task.spec.devices, task.path.at("devices"), self._devices_of(task.spec.node).by_index
        count = sum(number for _, number in task.request.mig) if task.request.mig else task.request.devices
        if len(indices) != count or len(set(indices)) != count:
            path.fault(f"must be {count} different GPUs, as the request says")
            return ()
        for position, index in enumerate(indices):
            if index not in devices:
                path.at(position).fault(f"node {task.spec.node} has no GPU {index}")
                return ()
        if task.spec.share_group:
            self._join_group(task, list(indices))
        return self._take(task, indices)

    def take_free(self, task: PlacedTask) -> tuple[DeviceShare, ...]:
        request, devices = task.request, self._devices_of(task.spec.node)
        if task.spec.share_group:
            group = self._share_groups.get(task.spec.share_group)
            indices = group[1] if group else devices.take_unused("", request.devices)
            self._join_group(task, indices or [])
        elif request.mig:
            per_profile = [devices.take_unused(profile, count) for profile, count in request.mig]
            indices = None if None in per_profile else [index for part in per_profile if part for index in part]
        else:
            indices = devices.take_unused("", request.devices)
        if indices is None:
            task.path.at("node").fault(f"node {task.spec.node} has too few free GPUs for what it is said to hold")
            return ()
        return self._take(task, indices)

    def _join_group(self, task: PlacedTask, indices: list[int]) -> None:
        node, known = self._share_groups.setdefault(task.spec.share_group, (task.spec.node, indices))
        if node != task.spec.node or known != indices:
            task.path.at("shareGroup").fault(f"belongs to GPU {', '.join(map(str, known))} of node {node}")

    def _take(self, task: PlacedTask, indices: Iterable[int]) -> tuple[DeviceShare, ...]:
        devices, shares = self._devices_of(task.spec.node).by_index, []
        for index in indices:
            share = devices[index].take(task.request) if index in devices else None
            if share is None:
                task.path.at("node").fault(f"GPU {index} of node {task.spec.node} does not have as much left")
                return ()
            shares.append(share)
        return tuple(shares)
