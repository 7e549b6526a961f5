"""One node's room: a row per device, and CPU, memory and places for pods.

A node is seen twice: as it is *now*, and as it will be *soon*, when those who are leaving have left and those who are
promised a place have come. What fits soon and now can start; what fits only soon can be promised a place. As long as
nobody leaves, both are one object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aliquot.planner.model import GPU, Device, DeviceShare, Node, mig_slice_count

# (row, milli, MiB): what is taken of one device.
DeviceAlloc = tuple[int, int, int]


class FreeResources:
    """What is free. May be negative where more was given out than there is now."""

    __slots__ = ("cpu", "memory", "mib", "milli", "pods", "whole")

    def __init__(self, cpu: int, memory: int, pods: int, milli: list[int], mib: list[int], whole: int) -> None:
        self.cpu = cpu
        self.memory = memory
        self.pods = pods
        self.milli = milli
        self.mib = mib
        self.whole = whole  # devices that nobody has a part of; slices do not count

    def copy(self) -> FreeResources:
        return FreeResources(self.cpu, self.memory, self.pods, self.milli[:], self.mib[:], self.whole)


class NodeState:
    __slots__ = (
        "after_release",
        "devices",
        "id",
        "name",
        "now",
        "profiles",
        "quota_units",
        "row_of",
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
        self.row_of = {device.index: row for row, device in enumerate(self.devices)}
        self.sizes = [device.memory_mib for device in self.devices]
        sliced = any(device.profile for device in self.devices)
        self.profiles: list[str] | None = [device.profile for device in self.devices] if sliced else None
        self.quota_units = [
            mig_slice_count(device.profile) if device.profile else 1 for device in self.devices
        ]  # against quota
        count = len(self.devices)
        plain = sum(not device.profile for device in self.devices) if sliced else count
        foreign = source.foreign
        self.after_release = FreeResources(
            source.cpu - foreign[1], source.memory - foreign[2], source.pods, [GPU] * count, self.sizes[:], plain
        )
        self.now = self.after_release
        self.version = 0  # counts changes
        self.tasks: dict[Any, None] = {}  # the tasks that have a place here, or are promised one
        self.whole_shares = [(DeviceShare(device.index, GPU, device.memory_mib),) for device in self.devices]

    def split(self) -> FreeResources:
        """The view of now as one of its own, from the moment on in which the two differ."""
        if self.now is self.after_release:
            self.now = self.after_release.copy()
        return self.now

    def merge(self) -> None:
        """One view again, where the two do not differ any more."""
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
        milli, mib, sizes = view.milli, view.mib, self.sizes
        for row, part, size in allocs:
            if milli[row] == GPU and mib[row] == sizes[row] and (self.profiles is None or not self.profiles[row]):
                view.whole -= 1
            milli[row] -= part
            mib[row] -= size

    def release(self, view: FreeResources, cpu: int, memory: int, allocs: Iterable[DeviceAlloc]) -> None:
        view.cpu += cpu
        view.memory += memory
        view.pods += 1
        milli, mib, sizes = view.milli, view.mib, self.sizes
        for row, part, size in allocs:
            milli[row] += part
            mib[row] += size
            if milli[row] == GPU and mib[row] == sizes[row] and (self.profiles is None or not self.profiles[row]):
                view.whole += 1

    def allocs_of(self, shares: Iterable[DeviceShare]) -> tuple[DeviceAlloc, ...]:
        """Shares as rows; those of devices that are gone or broken are left out."""
        allocs = self.row_of
        return tuple((allocs[s.index], s.milli, s.memory_mib) for s in shares if s.index in allocs)

    def shares_of(self, allocs: tuple[DeviceAlloc, ...]) -> tuple[DeviceShare, ...]:
        if len(allocs) == 1 and allocs[0][1] == GPU:
            return self.whole_shares[allocs[0][0]]
        return tuple(DeviceShare(self.devices[row].index, milli, mib) for row, milli, mib in allocs)

    def is_busy(self) -> bool:
        after_release = self.after_release
        return any(
            milli > 0 and mib > 0 and (milli < GPU or mib < size)
            for milli, mib, size in zip(after_release.milli, after_release.mib, self.sizes, strict=True)
        )
