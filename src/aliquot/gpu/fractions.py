"""What a pod is allocated on each GPU, in bytes of memory and thousandths of compute time.

    SharingOptions   what the pod asks for beyond its shares: how far it may grow, how compute time is shared
    GpuAllocation    one GPU as one pod has it
    Enforcement      what enforces the memory limit: the driver itself (`cgroup`), the sharing library (`shim`), nothing

The memory limit of a fraction f of a device with D bytes is floor(f * D / MiB) MiB. It is computed in bytes and rounded
down once, at the end: half of a V100 with 32510 MiB is 16255 MiB, and the fractions of a device never add up to more
than the device has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from aliquot import labels, units
from aliquot.api import Device, DeviceShare
from aliquot.errors import Invalid
from aliquot.units import GPU, MIB


class Enforcement(Enum):
    """What enforces GPU memory limits on a node."""

    CGROUP = "cgroup"
    SHIM = "shim"
    NONE = "none"


class ComputeMode(Enum):
    """How the compute time of a GPU is shared."""

    TIMESHARING = "timesharing"  # by the driver
    FAIR = "fair"
    STRICT = "strict"
    MPS = "mps"  # by NVIDIA's Multi-Process Service

    @property
    def is_leased(self) -> bool:
        """Whether the sharing library hands out the compute time."""
        return self in (ComputeMode.FAIR, ComputeMode.STRICT)


@dataclass(frozen=True, slots=True)
class SharingOptions:
    # How far the pod may grow while others leave memory unused; None: not beyond its share.
    limit_milli: int | None = None
    limit_mib: int | None = None
    # None: the node's default.
    mode: ComputeMode | None = None


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """What one pod has of one GPU."""

    index: int
    uuid: str
    model: str
    milli: int
    # 0 where the device does not report its memory.
    guaranteed_mib: int
    # Never less than guaranteed_mib.
    limit_mib: int
    mode: ComputeMode = ComputeMode.TIMESHARING
    # On the host; empty where the device is simulated.
    device_file: str = ""
    # The library refuses a ledger that belongs to another pod.
    pod_uid: str = ""
    # Measured memory of one CUDA context on this GPU; 0: not measured yet.
    context_mib: int = 0

    @property
    def is_shared(self) -> bool:
        return self.milli < GPU


def fraction_mib(milli: int, total: int) -> int:
    """MiB of a fraction of a device with `total` bytes."""
    return milli * total // (GPU * MIB)


def gpu_allocation(
    device: Device, share: DeviceShare, options: SharingOptions, total: int = 0, pod_uid: str = ""
) -> GpuAllocation:
    """`total` is the device's memory in bytes, where it is known more exactly than in whole MiB."""
    total = total or device.memory_mib * MIB
    # A request in MiB is used as given; a fraction is computed again, from bytes.
    computed = fraction_mib(share.milli, total)
    requested = share.memory_mib if share.memory_mib and abs(share.memory_mib - computed) > 1 else computed
    limits = [requested]
    if options.limit_milli is not None:
        limits.append(fraction_mib(options.limit_milli, total))
    if options.limit_mib is not None:
        limits.append(min(options.limit_mib, total // MIB))
    return GpuAllocation(
        index=share.index,
        uuid=device.uuid or share.uuid or str(share.index),
        model=device.model,
        milli=share.milli,
        guaranteed_mib=requested,
        limit_mib=max(limits),
        mode=options.mode or ComputeMode.TIMESHARING,
        pod_uid=pod_uid,
    )


def gpu_allocations(
    devices: Iterable[Device], shares: Sequence[DeviceShare], options: SharingOptions
) -> tuple[GpuAllocation, ...]:
    """In the order of the shares, which is the order in which the pod numbers its GPUs."""
    by_index = {device.index: device for device in devices}
    return tuple(
        gpu_allocation(by_index.get(share.index, Device(index=share.index)), share, options) for share in shares
    )


def sharing_options(annotations: Mapping[str, str]) -> SharingOptions:
    """The options in a pod's annotations; `Invalid` when they cannot be parsed."""
    fraction, memory = annotations.get(labels.GPU_FRACTION_LIMIT), annotations.get(labels.GPU_MEMORY_LIMIT_MIB)
    mode = annotations.get(labels.GPU_COMPUTE_MODE)
    try:
        return SharingOptions(
            limit_milli=units.milli(fraction) if fraction else None,
            limit_mib=int(memory) if memory else None,
            mode=ComputeMode(mode) if mode else None,
        )
    except ValueError as exc:
        raise Invalid(f"how its GPU is shared cannot be read: {exc}") from exc
