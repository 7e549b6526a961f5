"""This machine as a node, with the GPUs that its driver lists; pods with a part of one are fenced.

    RealDevices    the node, and what each pod is given
    backend        who can keep the limits here, and why

What was given is in the limits file of each pod, so nothing is lost when the platform is killed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aliquot
from aliquot.api import Device, DeviceShare
from aliquot.backends.local.devices import node_devices
from aliquot.backends.local.devices.context_memory import ContextSizes
from aliquot.backends.local.devices.gpu_driver import Gpu, GpuDriver
from aliquot.backends.local.devices.mps import MpsDaemons
from aliquot.backends.local.devices.node_devices import NodeFacts
from aliquot.backends.local.devices.share_dirs import ShareDirs, boot_id
from aliquot.backends.local.gpu_settings import GpuSettings
from aliquot.backends.local.runtime import CannotStart
from aliquot.errors import Invalid
from aliquot.gpu.fractions import ComputeMode, Enforcement, GpuAllocation, SharingOptions, gpu_allocation
from aliquot.gpu.injection import HostPaths, Injection, build_injection
from aliquot.units import GPU, MIB

_FIRST_WITH_LIMITS = 615  # the driver's own limits, by control group


@dataclass(frozen=True, slots=True)
class EnforcementChoice:
    enforcement: Enforcement
    reason: str


def choose_enforcement(version: str, keeps_limits: bool, cgroups: int, library: bool) -> EnforcementChoice:
    """Who keeps memory limits on this node. The driver's version alone is no proof that it can.

    `cgroups`: the version of those that every pod can have. Without the library nobody can: the driver does not limit
    managed memory.
    """
    number = int(found[0]) if (found := re.match(r"\d+", version)) else 0
    if not library:
        return EnforcementChoice(Enforcement.NONE, "the sharing library was not built for this machine")
    if not keeps_limits or number < _FIRST_WITH_LIMITS:
        return EnforcementChoice(Enforcement.SHIM, "the driver has no limits of its own")
    if cgroups != 2:
        return EnforcementChoice(
            Enforcement.SHIM, "the driver limits control groups of version 2, which jobs do not have here"
        )
    return EnforcementChoice(Enforcement.CGROUP, "the driver limits control groups, and the library managed memory")


class RealDevices:
    """A GPU that stops answering stays in the list, as one that may not be used."""

    def __init__(
        self,
        name: str,
        driver: GpuDriver,
        share_dirs: ShareDirs,
        contexts: ContextSizes,
        library: Path | None,
        *,
        settings: GpuSettings = GpuSettings(),  # noqa: B008  # frozen
        cgroups: int = 0,
    ) -> None:
        """`cgroups`: the version of those that every pod can have; 0: not every pod can."""
        self._name = name
        self.driver = driver
        self.share_dirs = share_dirs
        self._contexts = contexts
        self._library = library
        self._settings = settings
        self._boot = boot_id()
        self._mps = MpsDaemons(share_dirs.folder / "mps", settings.mps)
        self.choice = choose_enforcement(driver.version(), driver.keeps_limits(), cgroups, library is not None)
        # An entry point of the driver that the library does not know, once a program has met one.
        self.outdated = ""
        # Percent of its time that each GPU computed just now, by uuid; None until somebody has measured.
        self.busy: Mapping[str, int] | None = None
        self._seen: dict[int, Gpu] = {}
        self.nodes()
        self._check_reserve()
        share_dirs.begin(self._boot)

    def nodes(self) -> tuple[NodeFacts, ...]:
        devices = self._look()
        facts = NodeFacts(
            name=self._name,
            devices=devices,
            cpu=node_devices.cores(),
            memory=node_devices.memory(),
            sharing=self.choice.enforcement.value,
            sharing_reason=self._told(self.choice.reason),
            outdated=self._told(f"the driver's {self.outdated} is unknown; update aliquot") if self.outdated else "",
            busy=None if self.busy is None else tuple(self.busy.get(device.uuid, 0) for device in devices),
        )
        return (facts,)

    def _told(self, what: str) -> str:
        library = f"library {aliquot.__version__}" if self._library else "no library"
        return f"{library}, driver {self.driver.version() or 'of unknown version'}: {what}"

    def totals(self) -> dict[str, int]:
        """Bytes of each GPU that parts of it may have together, by uuid."""
        return {card.device.uuid: self._offered(card).total for card in self._seen.values()}

    def whole(self, uuid: str) -> int:
        """Bytes of a GPU for who has it alone; 0 where it is not known."""
        return next((card.total for card in self._seen.values() if card.device.uuid == uuid), 0)

    def uuid(self, share: DeviceShare) -> str:
        card = self._seen.get(share.index)
        return (card.device.uuid if card else "") or share.uuid or str(share.index)

    def injection(self, node: str, shares: Sequence[DeviceShare], options: SharingOptions, pod_uid: str) -> Injection:
        options = replace(options, mode=options.mode or self._settings.compute)
        slices = tuple(self._slice(share, options, pod_uid) for share in shares)
        if not any(one.is_shared for one in slices):
            return build_injection(slices, self.choice.enforcement)
        if self._library is None:
            raise CannotStart("GPUShareNotLoaded", f"a part of a GPU cannot be fenced off: {self.choice.reason}")
        self.share_dirs.mend(pod_uid, self._boot)
        pipe = self._mps_pipe(slices, pod_uid)
        host = HostPaths(str(self._library), str(self.share_dirs.of(pod_uid)), str(self.share_dirs.gates), pipe)
        return build_injection(slices, self.choice.enforcement, host)

    def _mps_pipe(self, slices: Sequence[GpuAllocation], pod_uid: str) -> str:
        """Of the daemon that it shares the GPU by; empty where it does not ask for that."""
        if slices[0].mode is not ComputeMode.MPS:
            return ""
        if len(slices) > 1:
            raise CannotStart("MPSUnavailable", "it asks for MPS (--mps) on several GPUs; a job can use it on one")
        return str(self._mps.join(slices[0].uuid, pod_uid))

    def release(self, pod_uid: str) -> None:
        self._mps.leave(pod_uid)
        self.share_dirs.remove(pod_uid)

    def sweep(self, living: Container[str]) -> None:
        self._mps.sweep(living)
        self.share_dirs.sweep(living)

    def _slice(self, share: DeviceShare, options: SharingOptions, pod_uid: str) -> GpuAllocation:
        card = self._seen.get(share.index, Gpu(Device(index=share.index)))
        if share.milli < GPU:
            card = self._offered(card)
        found = gpu_allocation(
            card.device, share, options if share.milli < GPU else SharingOptions(), card.total, pod_uid
        )
        context = self._contexts.mib(card.device.model, self.driver.version())
        return replace(found, device_file=card.file, context_mib=context)

    def _look(self) -> tuple[Device, ...]:
        found = {card.device.index: card for card in self.driver.cards()}
        lost = {index: replace(card, device=replace(card.device, healthy=False)) for index, card in self._seen.items()}
        # A card that is lost has no name any more; keep the one it had.
        named = {index: card for index, card in found.items() if card.device.uuid or index not in lost}
        self._seen = lost | named
        return tuple(self._offered(self._seen[index]).device for index in sorted(self._seen))

    def _offered(self, card: Gpu) -> Gpu:
        """Less what is given to nobody. A card that does not say how much it has is left as it is."""
        if not self._settings.reserve_mib or not card.total:
            return card
        total = max(0, card.total - self._settings.reserve_mib * MIB)
        return replace(card, total=total, device=replace(card.device, memory_mib=total // MIB))

    def _check_reserve(self) -> None:
        for card in self._seen.values():
            if card.total and not self._offered(card).total:
                raise Invalid(
                    f"--gpu-reserve-mib {self._settings.reserve_mib} leaves nothing of GPU {card.device.index}, "
                    f"which has {card.device.memory_mib} MiB",
                    hint="64 is enough for most cards",
                )


def host_name() -> str:
    """Of this machine, as a node may be called."""
    name = re.sub(r"[^a-z0-9.-]+", "-", os.uname().nodename.lower()).strip("-.")
    return name[:63].strip("-.") or "localhost"  # a label must be able to hold it
