"""One node's free devices, CPU, memory and pod slots.

A node has two views: what is free *now*, and what is free *after release*, when all terminating tasks have ended and
all nominated tasks have started. A task that fits both can start; one that fits only after release can be nominated.
As long as no task terminates, both views are one object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aliquot.planner.model import GPU, Device, DeviceShare, Node, mig_slice_count

# What a task takes of one device: the device's position in `NodeState.devices`, milli, MiB.
DeviceAlloc = tuple[int, int, int]


class FreeResources:
    """What is free in one view. Negative where more is allocated than the node now has."""

    __slots__ = ("cpu", "memory", "mib", "milli", "pods", "whole")

    def __init__(self, cpu: int, memory: int, pods: int, milli: list[int], mib: list[int], whole: int) -> None:
        self.cpu = cpu
        self.memory = memory
        self.pods = pods
        self.milli = milli  # by device
        self.mib = mib  # by device
        self.whole = whole  # devices that are entirely free; MIG slices do not count

    def copy(self) -> FreeResources:
        return FreeResources(self.cpu, self.memory, self.pods, self.milli[:], self.mib[:], self.whole)

    def has(self, cpu: int, memory: int, allocs: Iterable[DeviceAlloc]) -> bool:
        """Whether a pod with this much CPU and memory, on these devices, fits."""
        if cpu > self.cpu or memory > self.memory or self.pods < 1:
            return False
        return all(self.milli[device] >= milli and self.mib[device] >= mib for device, milli, mib in allocs)


class NodeState:
    __slots__ = (
        "after_release",
        "devices",
        "id",
        "name",
        "now",
        "position_of",
        "profiles",
        "quota_units",
        "sizes",
        "source",
        "tasks",
        "version",
        "whole_shares",
    )

    def __init__(self, source: Node, number: int) -> None:
        self.source = source
        self.id = number
        self.name = source.name
        self.devices: list[Device] = [device for device in source.devices if device.healthy]
        self.position_of = {device.index: position for position, device in enumerate(self.devices)}
        self.sizes = [device.memory_mib for device in self.devices]
        has_mig = any(device.profile for device in self.devices)
        self.profiles: list[str] | None = [device.profile for device in self.devices] if has_mig else None
        # GPUs that each device counts against quota.
        self.quota_units = [mig_slice_count(device.profile) if device.profile else 1 for device in self.devices]
        count = len(self.devices)
        whole = sum(not device.profile for device in self.devices) if has_mig else count
        foreign = source.foreign
        self.after_release = FreeResources(
            source.cpu - foreign[1], source.memory - foreign[2], source.pods, [GPU] * count, self.sizes[:], whole
        )
        self.now = self.after_release
        self.version = 0  # counts changes
        self.tasks: dict[Any, None] = {}  # the tasks that hold something here, or are nominated
        self.whole_shares = [(DeviceShare(device.index, GPU, device.memory_mib),) for device in self.devices]

    def split(self) -> FreeResources:
        """The view of now, made an object of its own if it is not. Call it before the two views differ."""
        if self.now is self.after_release:
            self.now = self.after_release.copy()
        return self.now

    def merge(self) -> None:
        """Make both views one object again if they are equal."""
        now, after_release = self.now, self.after_release
        if now is not after_release and (
            now.milli == after_release.milli
            and now.mib == after_release.mib
            and (now.cpu, now.memory, now.pods) == (after_release.cpu, after_release.memory, after_release.pods)
        ):
            self.now = after_release

    def allocate(self, view: FreeResources, cpu: int, memory: int, allocs: Iterable[DeviceAlloc]) -> None:
        view.cpu -= cpu
        view.memory -= memory
        view.pods -= 1
        free_milli, free_mib, sizes = view.milli, view.mib, self.sizes
        for device, milli, mib in allocs:
            if (
                free_milli[device] == GPU
                and free_mib[device] == sizes[device]
                and (self.profiles is None or not self.profiles[device])
            ):
                view.whole -= 1
            free_milli[device] -= milli
            free_mib[device] -= mib

    def release(self, view: FreeResources, cpu: int, memory: int, allocs: Iterable[DeviceAlloc]) -> None:
        view.cpu += cpu
        view.memory += memory
        view.pods += 1
        free_milli, free_mib, sizes = view.milli, view.mib, self.sizes
        for device, milli, mib in allocs:
            free_milli[device] += milli
            free_mib[device] += mib
            if (
                free_milli[device] == GPU
                and free_mib[device] == sizes[device]
                and (self.profiles is None or not self.profiles[device])
            ):
                view.whole += 1

    def allocs_of(self, shares: Iterable[DeviceShare]) -> tuple[DeviceAlloc, ...]:
        """Shares as allocs, without those of devices that have gone or are unhealthy."""
        position_of = self.position_of
        return tuple(
            (position_of[share.index], share.milli, share.memory_mib) for share in shares if share.index in position_of
        )

    def shares_of(self, allocs: tuple[DeviceAlloc, ...]) -> tuple[DeviceShare, ...]:
        if len(allocs) == 1 and allocs[0][1] == GPU:
            return self.whole_shares[allocs[0][0]]
        return tuple(DeviceShare(self.devices[device].index, milli, mib) for device, milli, mib in allocs)

    def has_shared_device(self) -> bool:
        """Whether a device is partly allocated and partly free, after release."""
        free = self.after_release
        return any(
            milli > 0 and mib > 0 and (milli < GPU or mib < size)
            for milli, mib, size in zip(free.milli, free.mib, self.sizes, strict=True)
        )
