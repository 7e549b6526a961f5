"""The GPUs of this machine, as NVIDIA's driver reports them. The only module that calls the driver.

Pods are given GPUs by UUID: the driver and CUDA may number them differently, UUIDs are the same in both.
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
_PROCESS_LISTS = ("Compute", "Graphics", "MPSCompute")  # a process may be in several
# Drivers 615 and newer have these calls. The Python binding does not have them yet, so they are called by name.
_SET_LIMITS, _GET_LIMITS = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"


class _Limits(ctypes.Structure):
    """The argument of both calls; the one that sets limits ignores `used`."""

    _fields_ = (
        ("group", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class NvmlDriver:
    """See aliquot.backends.local.devices.gpu_driver.GpuDriver."""

    def __init__(self) -> None:
        self._last_sample: dict[str, int] = {}  # the driver's time of each GPU's last utilization sample, by uuid

    def gpus(self) -> tuple[Gpu, ...]:
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as exc:
            # The driver is being replaced, or is gone. Every GPU listed before counts as lost until it answers again.
            log.warning("the GPU driver does not answer", reason=str(exc))
            return ()
        return tuple(map(_gpu, range(count)))

    def process_memory(self) -> tuple[ProcessMemory, ...]:
        return tuple(process for uuid, handle in _handles() for process in _process_memory(uuid, handle))

    def process_utilization(self) -> tuple[ProcessUtilization, ...]:
        return tuple(sample for uuid, handle in _handles() for sample in self._new_samples(uuid, handle))

    def _new_samples(self, uuid: str, handle: Any) -> Iterator[ProcessUtilization]:
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, self._last_sample.get(uuid, 0))
        except pynvml.NVMLError:
            return  # no new samples, or a GPU that has none
        self._last_sample[uuid] = max((sample.timeStamp for sample in samples), default=0)
        for sample in samples:
            if sample.timeStamp:  # the driver pads its answer with zeros
                yield ProcessUtilization(uuid, int(sample.pid), int(sample.smUtil), int(sample.memUtil))

    def version(self) -> str:
        return _or_default(lambda: _text(pynvml.nvmlSystemGetDriverVersion()), "")

    def supports_cgroup_limits(self) -> bool:
        try:
            pynvml._nvmlGetFunctionPointer(_SET_LIMITS)  # looked up, not called
        except pynvml.NVMLError:
            return False
        return True

    def set_limits(self, group: Path, uuid: str, soft: int, hard: int) -> None:
        _call(_SET_LIMITS, uuid, _Limits(str(group).encode(), soft, hard))

    def limits(self, group: Path, uuid: str) -> tuple[int, int]:
        limits = _call(_GET_LIMITS, uuid, _Limits(str(group).encode()))
        return int(limits.soft), int(limits.hard)


def open_driver() -> NvmlDriver | None:
    """The driver of this machine; None where there is no driver or no GPU, and the log says which."""
    try:
        pynvml.nvmlInit()  # counted by the library: opening twice is harmless
    except pynvml.NVMLError as exc:
        log.info("no NVIDIA GPU found", reason=str(exc))
        return None
    driver = NvmlDriver()
    if not driver.gpus():
        log.info("no NVIDIA GPU found", reason="the driver lists none")
        return None
    return driver


def _call(name: str, uuid: str, limits: _Limits) -> _Limits:
    try:
        function = pynvml._nvmlGetFunctionPointer(name)
        pynvml._nvmlCheckReturn(function(pynvml.nvmlDeviceGetHandleByUUID(uuid), ctypes.byref(limits)))
    except pynvml.NVMLError as exc:
        raise LimitNotSet(f"{name}: {exc}") from exc
    return limits


def _handles() -> Iterator[tuple[str, Any]]:
    for index in range(_or_default(pynvml.nvmlDeviceGetCount, 0)):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            yield _text(pynvml.nvmlDeviceGetUUID(handle)), handle
        except pynvml.NVMLError:
            continue  # `gpus` lists it as unhealthy


def _process_memory(uuid: str, handle: Any) -> Iterator[ProcessMemory]:
    used_by_pid: dict[int, int] = {}
    for kind in _PROCESS_LISTS:
        for process in _processes(kind, handle):
            pid, used = int(process.pid), int(process.usedGpuMemory or 0)
            used_by_pid[pid] = max(used_by_pid.get(pid, 0), used)
    for pid, used in used_by_pid.items():
        yield ProcessMemory(uuid, pid, used)


def _processes(kind: str, handle: Any) -> list[Any]:
    """Drivers before 510 have only the older call, and the binding does not fall back by itself."""
    for version in ("_v3", "_v2"):
        with suppress(pynvml.NVMLError):
            return list(getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")(handle))
    return []  # this GPU does not have the list


def _gpu(index: int) -> Gpu:
    device = _device(index)
    if not device.uuid:
        return Gpu(device)
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    number = _or_default(lambda: int(pynvml.nvmlDeviceGetMinorNumber(handle)), index)
    return Gpu(device, _total(handle), f"/dev/nvidia{number}")


def _or_default(call: Callable[[], T], default: T) -> T:
    try:
        return call()
    except pynvml.NVMLError:
        return default


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
    """Bytes that programs can use: all but what the driver reserves. Equals CUDA's total memory of the device."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return int(memory.total) - int(memory.reserved)
    except pynvml.NVMLError:
        # Drivers before 510. Boards that share the host's memory report none at all.
        return _or_default(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), 0)


def _mig(handle: Any) -> Mig | None:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return None  # a GPU without MIG
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    profiles = (_mig_profile(handle, index) for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)))
    return Mig(profiles=dict(Counter(profile for profile in profiles if profile)))


def _mig_profile(handle: Any, index: int) -> str:
    """The profile of one MIG device, from the end of its name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb"."""
    try:
        mig_device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        match = _PROFILE.search(_text(pynvml.nvmlDeviceGetName(mig_device)))
    except pynvml.NVMLError:
        return ""  # no MIG device at this index
    return match[1] if match else ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older bindings give bytes
