"""The GPUs of this machine, as NVIDIA's driver lists them. The only module that talks to the driver.

GPUs are named by UUID wherever a pod is told of them: indices of the driver and of CUDA may differ, UUIDs do not.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import structlog

from aliquot.agent.devices import base
from aliquot.agent.devices.base import NodeFacts, held
from aliquot.types import Device, DeviceShare, Mig
from aliquot.units import MIB

log = structlog.get_logger()
Scan = Callable[[], tuple[Device, ...]]
_PROFILE = re.compile(r"\b([0-9]g\.[0-9]+gb)\b")


class NvmlDevices:
    """This machine as one node. A GPU that stops answering stays in the list, as one that may not be used."""

    def __init__(self, name: str, scan: Scan) -> None:
        self._name = name
        self._scan = scan
        self._seen: dict[int, Device] = {}
        self.nodes()

    def nodes(self) -> tuple[NodeFacts, ...]:
        facts = NodeFacts(name=self._name, devices=self._look(), cpu=base.cores(), memory=base.memory())
        return (facts,)

    def environment(self, node: str, shares: Sequence[DeviceShare]) -> dict[str, str]:
        names = [self._uuid(share) for share in shares]
        return {
            "NVIDIA_VISIBLE_DEVICES": ",".join(names) or "void",
            "CUDA_VISIBLE_DEVICES": ",".join(names),  # empty hides them all
            "RUNAI_NUM_OF_GPUS": held(shares),
        }

    def path_entries(self, node: str, shares: Sequence[DeviceShare]) -> tuple[Path, ...]:
        return ()

    def _uuid(self, share: DeviceShare) -> str:
        known = self._seen.get(share.index)
        return share.uuid or (known.uuid if known else "") or str(share.index)

    def _look(self) -> tuple[Device, ...]:
        found = {device.index: device for device in self._scan()}
        lost = {index: replace(device, healthy=False) for index, device in self._seen.items()}
        # A card that is lost has no name any more; keep the one it had.
        named = {index: device for index, device in found.items() if device.uuid or index not in lost}
        self._seen = lost | named
        return tuple(self._seen[index] for index in sorted(self._seen))


def open_devices(name: str = "") -> NvmlDevices | None:
    """The GPUs of this machine under a node of this name (its host name unless given).

    None where there is no driver or no GPU; the log says which.
    """
    try:
        pynvml.nvmlInit()  # counted by the library: opening twice is harmless
    except pynvml.NVMLError as exc:
        log.info("no GPU of NVIDIA here", reason=str(exc))
        return None
    if not scan():
        log.info("no GPU of NVIDIA here", reason="the driver lists none")
        return None
    return NvmlDevices(name or _host_name(), scan)


def scan() -> tuple[Device, ...]:
    """What the driver lists now. A GPU that does not answer is there without a name and is not well."""
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as exc:
        # The driver is being replaced, or is gone: every GPU seen before counts as lost until it answers again.
        log.warning("the GPU driver does not answer", reason=str(exc))
        return ()
    return tuple(map(_device, range(count)))


def _device(index: int) -> Device:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return Device(
            index=index,
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            model=_text(pynvml.nvmlDeviceGetName(handle)),
            memory_mib=_memory_mib(handle),
            mig=_mig(handle),
        )
    except pynvml.NVMLError as exc:
        log.warning("a GPU does not answer", gpu=index, reason=str(exc))
        return Device(index=index, healthy=False)


def _memory_mib(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB
    except pynvml.NVMLError_NotSupported:
        return 0  # not known: boards that share the host's memory do not say


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


def _host_name() -> str:
    name = re.sub(r"[^a-z0-9.-]+", "-", os.uname().nodename.lower()).strip("-.")
    return name[:63].strip("-.") or "localhost"  # a label must be able to hold it
