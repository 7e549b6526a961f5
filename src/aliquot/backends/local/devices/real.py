"""This machine as a node, with the GPUs that its driver lists; pods with a GPU fraction are limited to it.

    RealDevices          the node, and what each pod is given
    choose_enforcement   what can enforce memory limits here, and why

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

_FIRST_WITH_CGROUP_LIMITS = 615  # driver release


@dataclass(frozen=True, slots=True)
class EnforcementChoice:
    enforcement: Enforcement
    reason: str


def choose_enforcement(version: str, supports_limits: bool, cgroups: int, library: bool) -> EnforcementChoice:
    """What enforces memory limits on this node. The driver's version alone does not prove that the driver can.

    `cgroups`: the version of the control groups that every pod can have. Without the library nothing is enforced,
    because the driver does not limit managed memory.
    """
    release = int(match[0]) if (match := re.match(r"\d+", version)) else 0
    if not library:
        return EnforcementChoice(Enforcement.NONE, "the sharing library was not built for this machine")
    if not supports_limits or release < _FIRST_WITH_CGROUP_LIMITS:
        return EnforcementChoice(Enforcement.SHIM, "the driver has no limits of its own")
    if cgroups != 2:
        reason = "the driver limits control groups of version 2, which jobs do not have here"
        return EnforcementChoice(Enforcement.SHIM, reason)
    return EnforcementChoice(Enforcement.CGROUP, "the driver limits control groups, and the library managed memory")


class RealDevices:
    """A GPU that stops answering stays in the list, as unhealthy."""

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
        """`cgroups`: the version of the control groups that every pod can have; 0: not every pod can have one."""
        self._name = name
        self.driver = driver
        self.share_dirs = share_dirs
        self._contexts = contexts
        self._library = library
        self._settings = settings
        self._boot = boot_id()
        self._mps = MpsDaemons(share_dirs.folder / "mps", settings.mps)
        self.choice = choose_enforcement(
            driver.version(), driver.supports_cgroup_limits(), cgroups, library is not None
        )
        # An entry point of the driver that a program called and the library does not know; empty: none yet.
        self.unknown_entry_point = ""
        # Compute utilization of each GPU in percent, by uuid; None until it was measured.
        self.utilization: Mapping[str, int] | None = None
        self._gpus: dict[int, Gpu] = {}
        self.nodes()
        self._check_reserve()
        share_dirs.prepare(self._boot)

    def nodes(self) -> tuple[NodeFacts, ...]:
        devices = self._read_devices()
        unknown = self.unknown_entry_point
        utilization = self.utilization
        facts = NodeFacts(
            name=self._name,
            devices=devices,
            cpu=node_devices.cpu_milli(),
            memory=node_devices.memory_bytes(),
            sharing=self.choice.enforcement.value,
            sharing_reason=self._with_versions(self.choice.reason),
            shim_outdated=self._with_versions(f"the driver's {unknown} is unknown; update aliquot") if unknown else "",
            utilization=None if utilization is None else tuple(utilization.get(gpu.uuid, 0) for gpu in devices),
        )
        return (facts,)

    def _with_versions(self, message: str) -> str:
        library = f"library {aliquot.__version__}" if self._library else "no library"
        return f"{library}, driver {self.driver.version() or 'of unknown version'}: {message}"

    def shareable_bytes(self) -> dict[str, int]:
        """Memory of each GPU that its fractions may have together, by uuid."""
        return {gpu.device.uuid: self._without_reserve(gpu).total for gpu in self._gpus.values()}

    def total_bytes(self, uuid: str) -> int:
        """Memory of a GPU for a pod that has it alone; 0 where it is not known."""
        return next((gpu.total for gpu in self._gpus.values() if gpu.device.uuid == uuid), 0)

    def uuid(self, share: DeviceShare) -> str:
        gpu = self._gpus.get(share.index)
        return (gpu.device.uuid if gpu else "") or share.uuid or str(share.index)

    def injection(self, node: str, shares: Sequence[DeviceShare], options: SharingOptions, pod_uid: str) -> Injection:
        options = replace(options, mode=options.mode or self._settings.compute)
        allocations = tuple(self._allocation(share, options, pod_uid) for share in shares)
        if not any(gpu.is_shared for gpu in allocations):
            return build_injection(allocations, self.choice.enforcement)
        if self._library is None:
            raise CannotStart("GPUShareNotLoaded", f"a GPU fraction cannot be enforced: {self.choice.reason}")
        self.share_dirs.remove_damaged_ledger(pod_uid, self._boot)
        host = HostPaths(
            library=str(self._library),
            pod_dir=str(self.share_dirs.pod_dir(pod_uid)),
            gates_dir=str(self.share_dirs.gates_dir),
            mps_dir=self._mps_dir(allocations, pod_uid),
        )
        return build_injection(allocations, self.choice.enforcement, host)

    def _mps_dir(self, allocations: Sequence[GpuAllocation], pod_uid: str) -> str:
        """The pipe directory of the GPU's MPS daemon; empty where the pod does not ask for MPS."""
        if allocations[0].mode is not ComputeMode.MPS:
            return ""
        if len(allocations) > 1:
            raise CannotStart("MPSUnavailable", "it asks for MPS (--mps) on several GPUs; a job can use it on one")
        return str(self._mps.join(allocations[0].uuid, pod_uid))

    def release(self, pod_uid: str) -> None:
        self._mps.leave(pod_uid)
        self.share_dirs.remove_pod(pod_uid)

    def sweep(self, live_pods: Container[str]) -> None:
        self._mps.sweep(live_pods)
        self.share_dirs.sweep(live_pods)

    def _allocation(self, share: DeviceShare, options: SharingOptions, pod_uid: str) -> GpuAllocation:
        gpu = self._gpus.get(share.index, Gpu(Device(index=share.index)))
        if share.milli < GPU:
            gpu = self._without_reserve(gpu)
        else:
            options = SharingOptions()
        allocation = gpu_allocation(gpu.device, share, options, gpu.total, pod_uid)
        context_mib = self._contexts.mib(gpu.device.model, self.driver.version())
        return replace(allocation, device_file=gpu.device_file, context_mib=context_mib)

    def _read_devices(self) -> tuple[Device, ...]:
        listed = {gpu.device.index: gpu for gpu in self.driver.gpus()}
        lost = {index: replace(gpu, device=replace(gpu.device, healthy=False)) for index, gpu in self._gpus.items()}
        # A lost GPU is listed without a uuid; keep the one it had.
        identified = {index: gpu for index, gpu in listed.items() if gpu.device.uuid or index not in lost}
        self._gpus = lost | identified
        return tuple(self._without_reserve(self._gpus[index]).device for index in sorted(self._gpus))

    def _without_reserve(self, gpu: Gpu) -> Gpu:
        """The GPU less the memory that is reserved on it. One that does not report its memory stays as it is."""
        if not self._settings.reserve_mib or not gpu.total:
            return gpu
        total = max(0, gpu.total - self._settings.reserve_mib * MIB)
        return replace(gpu, total=total, device=replace(gpu.device, memory_mib=total // MIB))

    def _check_reserve(self) -> None:
        for gpu in self._gpus.values():
            if gpu.total and not self._without_reserve(gpu).total:
                raise Invalid(
                    f"--gpu-reserve-mib {self._settings.reserve_mib} leaves nothing of GPU {gpu.device.index}, "
                    f"which has {gpu.device.memory_mib} MiB",
                    hint="64 is enough for most cards",
                )


def host_name() -> str:
    """This machine's host name as a valid node name."""
    name = re.sub(r"[^a-z0-9.-]+", "-", os.uname().nodename.lower()).strip("-.")
    return name[:63].strip("-.") or "localhost"  # a label value must be able to hold it
