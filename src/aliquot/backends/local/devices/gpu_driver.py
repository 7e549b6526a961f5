"""What we ask of a GPU driver: the seam between our rules and NVIDIA's library (nvml.py), or a test's own answers.

Card       one GPU, with its exact size and its device file
Use        memory that one process holds on one GPU
Activity   the part of a GPU's time that one process had
Keeper     who sets limits on control groups: a driver of release 615 or newer
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aliquot.api import Device


@dataclass(frozen=True, slots=True)
class Gpu:
    device: Device
    # Bytes that programs can have: all but what the driver keeps for itself. 0: not known.
    total: int = 0
    # Such as /dev/nvidia0; the number is not always the index.
    file: str = ""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    uuid: str
    # As this machine counts processes.
    pid: int
    # 0 where the driver does not say.
    used: int


@dataclass(frozen=True, slots=True)
class ProcessUtilization:
    uuid: str
    pid: int
    # Percent of the GPU's time in which it computed, and in which it read or wrote memory.
    compute: int
    memory: int


class LimitNotSet(Exception):
    """The driver did not do it; the text says why."""


class CgroupLimiter(Protocol):
    def set_limits(self, group: Path, uuid: str, soft: int, hard: int) -> None:
        """Bytes that the processes of a control group are guaranteed, and may have at most, on one GPU. `NotKept`."""
        ...

    def limits(self, group: Path, uuid: str) -> tuple[int, int]:
        """What is set there, soft and hard. `NotKept` when the driver does not say."""
        ...


def gpu_utilization(activities: Iterable[ProcessUtilization]) -> dict[str, int]:
    """Percent of its time that each GPU computed, by uuid; those that did nothing are left out.

    There may be several samples of a process: their mean counts.
    """
    samples: dict[tuple[str, int], list[int]] = {}
    for one in activities:
        samples.setdefault((one.uuid, one.pid), []).append(one.compute)
    found: dict[str, float] = {}
    for (uuid, _), each in samples.items():
        found[uuid] = found.get(uuid, 0.0) + sum(each) / len(each)
    return {uuid: min(100, round(percent)) for uuid, percent in found.items()}


class GpuDriver(CgroupLimiter, Protocol):
    def cards(self) -> tuple[Gpu, ...]:
        """What the driver lists now. A GPU that does not answer is there without a name and is not well."""
        ...

    def uses(self) -> tuple[ProcessMemory, ...]:
        """Every process on every GPU. A GPU that does not answer has none."""
        ...

    def activity(self) -> tuple[ProcessUtilization, ...]:
        """Since the last time it was asked for; processes that did nothing are left out."""
        ...

    def version(self) -> str:
        """Such as 580.159.04; empty where it does not say."""
        ...

    def keeps_limits(self) -> bool:
        """Whether the driver can itself limit the memory of a control group."""
        ...
