"""The GPUs of this machine, as NVIDIA's driver lists them. The only module that talks to the driver.

GPUs are named by UUID wherever a pod is told of them: indices of the driver and of CUDA may differ, UUIDs do not.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pynvml
import structlog

from aliquot.api import Device, Mig
from aliquot.backends.local.devices.gpu_driver import Gpu, LimitNotSet, ProcessMemory, ProcessUtilization
from aliquot.units import MIB

T = TypeVar("T")
log = structlog.get_logger()
_PROFILE = re.compile(r"\b([0-9]g\.[0-9]+gb)\b")
_LISTS = ("Compute", "Graphics", "MPSCompute")  # of processes; one may be in several


# Of driver 615 and newer. The binding does not have them yet, so they are called by name.
_SET_LIMITS, _GET_LIMITS = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"


class _Limits(ctypes.Structure):
    """As both calls take it; the one that sets does not look at `used`."""

    _fields_ = (
        ("group", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class NvmlDriver:
    """See aliquot.backends.local.devices.gpu_driver.GpuDriver."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}  # when each GPU's last sample of activity was taken, as the driver counts

    def cards(self) -> tuple[Gpu, ...]:
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as exc:
            # The driver is being replaced, or is gone: every GPU seen before counts as lost until it answers again.
            log.warning("the GPU driver does not answer", reason=str(exc))
            return ()
        return tuple(map(_card, range(count)))

    def uses(self) -> tuple[ProcessMemory, ...]:
        return tuple(use for uuid, handle in _handles() for use in _uses(uuid, handle))

    def activity(self) -> tuple[ProcessUtilization, ...]:
        return tuple(one for uuid, handle in _handles() for one in self._activity(uuid, handle))

    def _activity(self, uuid: str, handle: Any) -> Iterator[ProcessUtilization]:
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, self._asked.get(uuid, 0))
        except pynvml.NVMLError:
            return  # none since, or a card that does not say
        self._asked[uuid] = max((sample.timeStamp for sample in samples), default=0)
        for sample in samples:
            if sample.timeStamp:  # the driver pads its answer
                yield ProcessUtilization(uuid, int(sample.pid), int(sample.smUtil), int(sample.memUtil))

    def version(self) -> str:
        return _asked(lambda: _text(pynvml.nvmlSystemGetDriverVersion()), "")

    def keeps_limits(self) -> bool:
        try:
            pynvml._nvmlGetFunctionPointer(_SET_LIMITS)  # the name alone; it is not called
        except pynvml.NVMLError:
            return False
        return True

    def set_limits(self, group: Path, uuid: str, soft: int, hard: int) -> None:
        _limits(_SET_LIMITS, uuid, _Limits(str(group).encode(), soft, hard))

    def limits(self, group: Path, uuid: str) -> tuple[int, int]:
        found = _limits(_GET_LIMITS, uuid, _Limits(str(group).encode()))
        return int(found.soft), int(found.hard)


def open_driver() -> NvmlDriver | None:
    """The driver of this machine; None where there is none or it lists no GPU, and the log says which."""
    try:
        pynvml.nvmlInit()  # counted by the library: opening twice is harmless
    except pynvml.NVMLError as exc:
        log.info("no GPU of NVIDIA here", reason=str(exc))
        return None
    driver = NvmlDriver()
    if not driver.cards():
        log.info("no GPU of NVIDIA here", reason="the driver lists none")
        return None
    return driver


def _limits(call: str, uuid: str, words: _Limits) -> _Limits:
    try:
        function = pynvml._nvmlGetFunctionPointer(call)
        pynvml._nvmlCheckReturn(function(pynvml.nvmlDeviceGetHandleByUUID(uuid), ctypes.byref(words)))
    except pynvml.NVMLError as exc:
        raise LimitNotSet(f"{call}: {exc}") from exc
    return words


def _handles() -> Iterator[tuple[str, Any]]:
    for index in range(_asked(pynvml.nvmlDeviceGetCount, 0)):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            yield _text(pynvml.nvmlDeviceGetUUID(handle)), handle
        except pynvml.NVMLError:
            continue  # `cards` says that it is not well


def _uses(uuid: str, handle: Any) -> Iterator[ProcessMemory]:
    found: dict[int, int] = {}
    for kind in _LISTS:
        for process in _processes(kind, handle):
            found[int(process.pid)] = max(found.get(int(process.pid), 0), int(process.usedGpuMemory or 0))
    for pid, used in found.items():
        yield ProcessMemory(uuid, pid, used)


def _processes(kind: str, handle: Any) -> list[Any]:
    """Drivers before 510 have only the older form of the question, and the binding does not fall back by itself."""
    for version in ("_v3", "_v2"):
        with suppress(pynvml.NVMLError):
            return list(getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")(handle))
    return []  # a list that this card does not have


def _card(index: int) -> Gpu:
    device = _device(index)
    if not device.uuid:
        return Gpu(device)
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    number = _asked(lambda: int(pynvml.nvmlDeviceGetMinorNumber(handle)), index)
    return Gpu(device, _total(handle), f"/dev/nvidia{number}")


def _asked(question: Callable[[], T], otherwise: T) -> T:
    try:
        return question()
    except pynvml.NVMLError:
        return otherwise


def _device(index: int) -> Device:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return Device(
            index=index,
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            model=_text(pynvml.nvmlDeviceGetName(handle)),
            memory_mib=_total(handle) // MIB,
            mig=_mig(handle),
        )
    except pynvml.NVMLError as exc:
        log.warning("a GPU does not answer", gpu=index, reason=str(exc))
        return Device(index=index, healthy=False)


def _total(handle: Any) -> int:
    """What programs can have: all but what the driver keeps. Equals what CUDA calls the device's memory."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return int(memory.total) - int(memory.reserved)
    except pynvml.NVMLError:
        # Before driver 510. Boards that share the host's memory do not say at all.
        return _asked(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), 0)


def _mig(handle: Any) -> Mig | None:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return None  # a card that has no such mode
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    slices = (_slice(handle, place) for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)))
    return Mig(profiles=dict(Counter(profile for profile in slices if profile)))


def _slice(handle: Any, place: int) -> str:
    """The profile of one slice, as the end of its name says: "NVIDIA A100-SXM4-40GB MIG 1g.5gb"."""
    try:
        slot = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        found = _PROFILE.search(_text(pynvml.nvmlDeviceGetName(slot)))
    except pynvml.NVMLError:
        return ""  # nothing at this place
    return found[1] if found else ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older bindings give bytes
