"""The administrator's settings for the GPUs of this machine, from the flags of `aliquot up`."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.backends.local.devices.memory_audit import OverrunPolicy
from aliquot.gpu.fractions import ComputeMode


@dataclass(frozen=True, slots=True)
class GpuSettings:
    # What happens to a job that holds more GPU memory than its limit.
    overrun: OverrunPolicy = OverrunPolicy.KILL_PROCESS
    # MiB of every GPU that are not allocated, so that jobs that fill their fractions do not run into a full GPU.
    reserve_mib: int = 0
    # How compute time is shared by jobs that do not ask for a mode.
    compute: ComputeMode = ComputeMode.TIMESHARING
    # Whether jobs may ask for NVIDIA's Multi-Process Service.
    mps: bool = False
