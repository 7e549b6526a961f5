"""Enough of enough devices: whole GPUs, fractions and amounts of memory by the same two numbers."""

from __future__ import annotations

from aliquot.core.model import GPU, Share, Task
from aliquot.core.plan import Refusal, Verdict
from aliquot.core.room import Free


def enough_devices(task: Task, free: Free) -> Refusal | None:
    wanted = task.request.devices
    if wanted == 0:
        return None
    possible = [device for device in free.devices.values() if _fits_empty(task, device.memory_mib)]
    if len(possible) < wanted:
        which = " that are large enough" if task.request.memory_mib else ""
        return Refusal("too-large", Verdict.NEVER, f"with {_spelt(len(possible))}{which}")
    open_ = sum(_fits(task, free, index) for index in free.devices)
    if open_ >= wanted:
        return None
    missing = (wanted - open_) * (task.request.milli or GPU)
    return Refusal("enough-gpu", Verdict.NOT_NOW, f"with {_spelt(open_)} free", missing_gpu=missing)


def choose(task: Task, free: Free) -> tuple[Share, ...]:
    """The devices it gets: the fullest that fit, so that whole ones stay whole; ties by number."""
    fitting = [index for index in free.devices if _fits(task, free, index)]
    fitting.sort(key=lambda index: (free.milli[index], index))
    return tuple(task.request.share_of(free.devices[index]) for index in fitting[: task.request.devices])


def _fits(task: Task, free: Free, index: int) -> bool:
    share = task.request.share_of(free.devices[index])
    return share.milli <= free.milli[index] and share.memory_mib <= free.memory_mib[index]


def _fits_empty(task: Task, memory_mib: int) -> bool:
    return task.request.memory_mib <= memory_mib


def _spelt(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
