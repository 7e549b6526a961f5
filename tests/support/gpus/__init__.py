"""A fake GPU driver whose answers a test chooses, and a node with its GPUs."""

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
    # The driver numbers device files by itself; the number need not be the index.
    return Gpu(device, mib * MIB, f"/dev/nvidia{index + 4}")


ONE, TWO = card(0, "GPU-a"), card(1, "GPU-b")


@dataclass
class FakeDriver:
    listed: tuple[Gpu, ...] = (ONE,)
    used: tuple[ProcessMemory, ...] = ()
    utilization: tuple[ProcessUtilization, ...] = ()
    number: str = "580.159.04"
    # Whether it limits control groups itself, and the limits it has: soft and hard, in bytes.
    supports_limits: bool = False
    group_limits: dict[tuple[Path, str], tuple[int, int]] = field(default_factory=dict)
    # What goes wrong when limits are set: "refused", or "ignored" when it reports success and does nothing.
    fault: str = ""
    # A path, and whether it existed each time that limits were set.
    watched: Path = Path("/nowhere")
    watched_existed: list[bool] = field(default_factory=list)

    def gpus(self) -> tuple[Gpu, ...]:
        return self.listed

    def process_memory(self) -> tuple[ProcessMemory, ...]:
        return self.used

    def process_utilization(self) -> tuple[ProcessUtilization, ...]:
        return self.utilization

    def version(self) -> str:
        return self.number

    def supports_cgroup_limits(self) -> bool:
        return self.supports_limits

    def set_limits(self, group: Path, uuid: str, soft: int, hard: int) -> None:
        self.watched_existed.append(self.watched.exists())
        if self.fault == "refused":
            raise LimitNotSet("Insufficient Permissions")
        if not self.fault:
            self.group_limits[group, uuid] = (soft, hard)

    def limits(self, group: Path, uuid: str) -> tuple[int, int]:
        return self.group_limits.get((group, uuid), (0, (1 << 64) - 1))

    def lose(self, index: int) -> None:
        """A GPU stops answering: the driver lists it without a uuid."""
        lost = Gpu(Device(index=index, healthy=False))
        self.listed = tuple(lost if each.device.index == index else replace(each) for each in self.listed)


def r615(*cards: Gpu) -> FakeDriver:
    """A driver that limits control groups."""
    return FakeDriver(cards or (ONE,), number="615.10", supports_limits=True)


def node_of(
    folder: Path,
    driver: FakeDriver | None = None,
    *,
    library: bool = True,
    settings: GpuSettings = GpuSettings(),  # noqa: B008  # frozen
    cgroups: int = 2,
) -> RealDevices:
    """A node whose library is only a path, or that has none."""
    share_dirs, contexts = ShareDirs(folder / "share_dirs"), ContextSizes(folder / "contexts.json")
    path = Path("/lib/libgpushare.so") if library else None
    return RealDevices(NODE, driver or FakeDriver(), share_dirs, contexts, path, settings=settings, cgroups=cgroups)


def ledger_bytes(refusals: int = 0, requested: int = 0, unknown: str = "", *, magic: int = 0x47505348) -> bytes:
    """A ledger as the library writes it."""
    data = bytearray(131072)
    struct.pack_into("<IIII16s64s4Q", data, 0, magic, 1, 131072, 1, b"b" * 16, b"pod-1", 0, 0, refusals, 0)
    struct.pack_into("<QIIQ", data, 704, requested, 0, 0, 0)
    struct.pack_into("<II64s", data, 728, bool(unknown), 0, unknown.encode())
    return bytes(data)
