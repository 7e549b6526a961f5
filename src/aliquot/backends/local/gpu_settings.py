"""What an administrator decides about the GPUs of this machine, as `aliquot up` takes it."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.backends.local.devices.memory_audit import OverrunPolicy
from aliquot.gpu.fractions import ComputeMode


@dataclass(frozen=True, slots=True)
class GpuSettings:
    # What is done about a job that holds more GPU memory than it may.
    overrun: OverrunPolicy = OverrunPolicy.KILL_PROCESS
    # MiB of every GPU that are given to nobody, so that jobs that fill their parts do not meet a full card.
    reserve_mib: int = 0
    # How the time of a GPU is shared by jobs that do not say.
    compute: ComputeMode = ComputeMode.TIMESHARING
    # Whether jobs may ask for NVIDIA's Multi-Process Service.
    mps: bool = False
