"""A driver whose answers a test chooses, and a node made of it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

from aliquot.api import Device
from aliquot.backends.local.devices.context_memory import ContextSizes
from aliquot.backends.local.devices.gpu_driver import Gpu, LimitNotSet, ProcessMemory, ProcessUtilization
from aliquot.backends.local.devices.real import RealDevices
from aliquot.backends.local.devices.share_dirs import ShareDirs
from aliquot.backends.local.gpu_settings import GpuSettings
from aliquot.units import MIB

NODE = "here"
A10_MIB = 23028


def card(index: int, uuid: str, model: str = "NVIDIA A10", mib: int = A10_MIB) -> Gpu:
    device = Device(index=index, uuid=uuid, model=model, memory_mib=mib)
    # The number of the file is the driver's own; it need not be the index.
    return Gpu(device, mib * MIB, f"/dev/nvidia{index + 4}")


ONE, TWO = card(0, "GPU-a"), card(1, "GPU-b")


@dataclass
class FakeDriver:
    listed: tuple[Gpu, ...] = (ONE,)
    used: tuple[ProcessMemory, ...] = ()
    did: tuple[ProcessUtilization, ...] = ()
    number: str = "580.159.04"
    # Whether it limits control groups itself, and what it was told; soft and hard, in bytes.
    keeps: bool = False
    kept: dict[tuple[Path, str], tuple[int, int]] = field(default_factory=dict)
    # What goes wrong with that: "refused", or "ignored" when it says yes and does nothing.
    fault: str = ""
    # A path, and whether it was there each time that limits were set.
    watched: Path = Path("/nowhere")
    was_there: list[bool] = field(default_factory=list)

    def cards(self) -> tuple[Gpu, ...]:
        return self.listed

    def uses(self) -> tuple[ProcessMemory, ...]:
        return self.used

    def activity(self) -> tuple[ProcessUtilization, ...]:
        return self.did

    def version(self) -> str:
        return self.number

    def keeps_limits(self) -> bool:
        return self.keeps

    def set_limits(self, group: Path, uuid: str, soft: int, hard: int) -> None:
        self.was_there.append(self.watched.exists())
        if self.fault == "refused":
            raise LimitNotSet("Insufficient Permissions")
        if not self.fault:
            self.kept[group, uuid] = (soft, hard)

    def limits(self, group: Path, uuid: str) -> tuple[int, int]:
        return self.kept.get((group, uuid), (0, (1 << 64) - 1))

    def lose(self, index: int) -> None:
        """A card stops answering: it is listed without a name."""
        lost = Gpu(Device(index=index, healthy=False))
        self.listed = tuple(lost if each.device.index == index else replace(each) for each in self.listed)


def r615(*cards: Gpu) -> FakeDriver:
    """A driver that limits control groups."""
    return FakeDriver(cards or (ONE,), number="615.10", keeps=True)


def node_of(
    folder: Path,
    driver: FakeDriver | None = None,
    *,
    library: bool = True,
    settings: GpuSettings = GpuSettings(),  # noqa: B008  # frozen
    cgroups: int = 2,
) -> RealDevices:
    """A node with a library that is only a name, or with none."""
    share_dirs, contexts = ShareDirs(folder / "share_dirs"), ContextSizes(folder / "contexts.json")
    path = Path("/lib/libgpushare.so") if library else None
    return RealDevices(NODE, driver or FakeDriver(), share_dirs, contexts, path, settings=settings, cgroups=cgroups)


def book(refusals: int = 0, asked: int = 0, unknown: str = "", *, magic: int = 0x47505348) -> bytes:
    """A ledger as the library writes it."""
    data = bytearray(131072)
    struct.pack_into("<IIII16s64s4Q", data, 0, magic, 1, 131072, 1, b"b" * 16, b"pod-1", 0, 0, refusals, 0)
    struct.pack_into("<QIIQ", data, 704, asked, 0, 0, 0)
    struct.pack_into("<II64s", data, 728, bool(unknown), 0, unknown.encode())
    return bytes(data)
