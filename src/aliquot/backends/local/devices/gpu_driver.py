"""What we ask of a GPU driver: the seam between our rules and NVIDIA's library (nvml.py) or a test's fake.

Gpu                  one GPU, with its exact memory size and its device file
ProcessMemory        memory that one process holds on one GPU
ProcessUtilization   the share of a GPU's time that one process used
CgroupLimiter        sets memory limits on control groups: a driver of release 615 or newer
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
    # Bytes that programs can use: all but what the driver reserves for itself. 0: not known.
    total: int = 0
    # Such as /dev/nvidia0; the number is not always the index.
    device_file: str = ""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    uuid: str
    # In the host's PID namespace.
    pid: int
    # Bytes; 0 where the driver does not report it.
    used: int


@dataclass(frozen=True, slots=True)
class ProcessUtilization:
    uuid: str
    pid: int
    # Percent of the time in which the process ran kernels, and in which it read or wrote memory.
    compute: int
    memory: int


class LimitNotSet(Exception):
    """The driver did not set the limit; the text is the reason."""


class CgroupLimiter(Protocol):
    def set_limits(self, group: Path, uuid: str, soft: int, hard: int) -> None:
        """Set the bytes that a control group is guaranteed, and may use at most, on one GPU. `LimitNotSet`."""
        ...

    def limits(self, group: Path, uuid: str) -> tuple[int, int]:
        """The soft and the hard limit of a control group. `LimitNotSet` when the driver does not report them."""
        ...


def gpu_utilization(samples: Iterable[ProcessUtilization]) -> dict[str, int]:
    """Compute utilization of each GPU in percent, by uuid; idle GPUs are left out.

    Where a process has several samples, their mean counts.
    """
    by_process: dict[tuple[str, int], list[int]] = {}
    for sample in samples:
        by_process.setdefault((sample.uuid, sample.pid), []).append(sample.compute)
    percent_by_gpu: dict[str, float] = {}
    for (uuid, _), values in by_process.items():
        percent_by_gpu[uuid] = percent_by_gpu.get(uuid, 0.0) + sum(values) / len(values)
    return {uuid: min(100, round(percent)) for uuid, percent in percent_by_gpu.items()}


class GpuDriver(CgroupLimiter, Protocol):
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the driver lists now. One that does not answer is listed as unhealthy and without a uuid."""
        ...

    def process_memory(self) -> tuple[ProcessMemory, ...]:
        """Every process on every GPU. A GPU that does not answer is skipped."""
        ...

    def process_utilization(self) -> tuple[ProcessUtilization, ...]:
        """Samples since the previous call; idle processes are left out."""
        ...

    def version(self) -> str:
        """Such as 580.159.04; empty where the driver does not report it."""
        ...

    def supports_cgroup_limits(self) -> bool:
        """Whether the driver itself can limit the memory of a control group."""
        ...
