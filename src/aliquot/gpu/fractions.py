"""What a pod holds of each GPU, in bytes of memory and parts of its time; and how the sharing library is told.

    Wish      what the pod said beyond its shares: how far it may grow, how compute is shared
    Slice     one GPU as one pod has it
    Backend   who keeps the memory limit: the driver itself (`cgroup`), our library (`shim`), nobody (`none`)

The limit of a fraction f of a device of D bytes is floor(f * D / MiB) MiB: taken in bytes, rounded down once, at the
end. So half of a V100 of 32510 MiB is 16255 MiB, and the parts of a device never add up to more than it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from aliquot import labels, units
from aliquot.api import Device, DeviceShare
from aliquot.errors import Invalid
from aliquot.units import GPU, MIB


class Backend(Enum):
    CGROUP = "cgroup"
    SHIM = "shim"
    NONE = "none"


class Mode(Enum):
    """How the time of a GPU is shared."""

    TIMESHARING = "timesharing"  # as the driver does
    FAIR = "fair"
    STRICT = "strict"
    MPS = "mps"  # by NVIDIA's Multi-Process Service: see devices/mps.py

    @property
    def is_leased(self) -> bool:
        """Whether the sharing library hands out the time."""
        return self in (Mode.FAIR, Mode.STRICT)


@dataclass(frozen=True, slots=True)
class SharingOptions:
    # How far it may grow while others leave memory idle; None: not beyond its share.
    limit_milli: int | None = None
    limit_mib: int | None = None
    # None: as the node does by default.
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class DeviceShareLimit:
    index: int
    uuid: str
    model: str
    milli: int
    # 0 where the device does not say how much it has.
    guaranteed_mib: int
    # Never less than what is guaranteed.
    limit_mib: int
    mode: Mode = Mode.TIMESHARING
    # Of the host; empty where the device is simulated.
    device_file: str = ""
    # Who holds it: the pod's uid. The ledger of another tenant is refused by it.
    tenant: str = ""
    # What one context takes on this GPU, as measured; 0: not measured yet.
    context_mib: int = 0

    @property
    def is_shared(self) -> bool:
        return self.milli < GPU


def part_mib(milli: int, total: int) -> int:
    """MiB of a part of a device of `total` bytes."""
    return milli * total // (GPU * MIB)


def slice_of(
    device: Device, share: DeviceShare, wish: SharingOptions, total: int = 0, tenant: str = ""
) -> DeviceShareLimit:
    """`total` in bytes, where it is known more exactly than in the device's whole MiB."""
    total = total or device.memory_mib * MIB
    # A request in MiB is used as given; a fraction is computed anew, from bytes.
    computed = part_mib(share.milli, total)
    asked = share.memory_mib if share.memory_mib and abs(share.memory_mib - computed) > 1 else computed
    limits = [asked]
    if wish.limit_milli is not None:
        limits.append(part_mib(wish.limit_milli, total))
    if wish.limit_mib is not None:
        limits.append(min(wish.limit_mib, total // MIB))
    return DeviceShareLimit(
        index=share.index,
        uuid=device.uuid or share.uuid or str(share.index),
        model=device.model,
        milli=share.milli,
        guaranteed_mib=asked,
        limit_mib=max(limits),
        mode=wish.mode or Mode.TIMESHARING,
        tenant=tenant,
    )


def slices_of(
    devices: Iterable[Device], shares: Sequence[DeviceShare], wish: SharingOptions
) -> tuple[DeviceShareLimit, ...]:
    """In the order of the shares, which is the order the pod counts them in."""
    known = {device.index: device for device in devices}
    return tuple(slice_of(known.get(one.index, Device(index=one.index)), one, wish) for one in shares)


def limits_text(slices: Sequence[DeviceShareLimit], backend: Backend = Backend.SHIM) -> str:
    """The file that the library reads; its form is in native/gpushare/README.md."""
    mode = slices[0].mode if slices[0].mode.is_leased else Mode.TIMESHARING
    # Where the driver keeps the limit, the library watches only what the driver does not: managed memory.
    keeper = ["keeper driver"] if backend is Backend.CGROUP else []
    head = ["gpushare 1", f"tenant {slices[0].tenant}", f"mode {mode.value}", *keeper]
    return "".join(line + "\n" for line in [*head, *map(_line, slices), "end"])


def _line(one: DeviceShareLimit) -> str:
    limit, guaranteed, context = (mib * MIB for mib in (one.limit_mib, one.guaranteed_mib, one.context_mib))
    # `cap` is for the agent: the library passes over it, and `limit` may be lowered meanwhile.
    amounts = {"limit": limit, "guaranteed": guaranteed, "weight": max(1, one.milli), "context": context, "cap": limit}
    return " ".join([f"gpu {one.uuid}", *(f"{name}={amount}" for name, amount in amounts.items())])


def sharing_options(marks: Mapping[str, str]) -> SharingOptions:
    """What a pod's annotations say; `Invalid` when they cannot be read."""
    fraction, memory = marks.get(labels.GPU_FRACTION_LIMIT), marks.get(labels.GPU_MEMORY_LIMIT_MIB)
    mode = marks.get(labels.GPU_COMPUTE_MODE)
    try:
        return SharingOptions(
            limit_milli=units.milli(fraction) if fraction else None,
            limit_mib=int(memory) if memory else None,
            mode=Mode(mode) if mode else None,
        )
    except ValueError as exc:
        raise Invalid(f"how its GPU is shared cannot be read: {exc}") from exc
