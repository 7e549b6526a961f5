"""A driver whose answers a test chooses, and a node made of it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path

from aliquot.agent.devices.calibration import Contexts
from aliquot.agent.devices.driver import Activity, Card, Use
from aliquot.agent.devices.real import Fences, RealDevices
from aliquot.types import Device
from aliquot.units import MIB

NODE = "here"
A10_MIB = 23028


def card(index: int, uuid: str, model: str = "NVIDIA A10", mib: int = A10_MIB) -> Card:
    device = Device(index=index, uuid=uuid, model=model, memory_mib=mib)
    # The number of the file is the driver's own; it need not be the index.
    return Card(device, mib * MIB, f"/dev/nvidia{index + 4}")


ONE, TWO = card(0, "GPU-a"), card(1, "GPU-b")


@dataclass
class FakeDriver:
    listed: tuple[Card, ...] = (ONE,)
    used: tuple[Use, ...] = ()
    number: str = "580.159.04"
    limits: bool = False

    def cards(self) -> tuple[Card, ...]:
        return self.listed

    def uses(self) -> tuple[Use, ...]:
        return self.used

    def activity(self) -> tuple[Activity, ...]:
        return ()

    def version(self) -> str:
        return self.number

    def keeps_limits(self) -> bool:
        return self.limits

    def lose(self, index: int) -> None:
        """A card stops answering: it is listed without a name."""
        lost = Card(Device(index=index, healthy=False))
        self.listed = tuple(lost if each.device.index == index else replace(each) for each in self.listed)


def node(folder: Path, driver: FakeDriver | None = None, *, library: bool = True) -> RealDevices:
    """A node with a library that is only a name, or with none."""
    fences, contexts = Fences(folder / "fences"), Contexts(folder / "contexts.json")
    return RealDevices(NODE, driver or FakeDriver(), fences, contexts, Path("/lib/libgpushare.so") if library else None)


def book(refusals: int = 0, asked: int = 0, unknown: str = "", *, magic: int = 0x47505348) -> bytes:
    """A ledger as the library writes it."""
    data = bytearray(131072)
    struct.pack_into("<IIII16s64s4Q", data, 0, magic, 1, 131072, 1, b"b" * 16, b"pod-1", 0, 0, refusals, 0)
    struct.pack_into("<QIIQ", data, 704, asked, 0, 0, 0)
    struct.pack_into("<II64s", data, 728, bool(unknown), 0, unknown.encode())
    return bytes(data)
