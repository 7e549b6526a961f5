"""GPUs that do not exist, on nodes that do not exist: everything but the devices is real.

The platform can be tried, taught and tested on a laptop. Nodes say that they are simulated, and a pod on them is
shown no real GPU, even where the machine has one: what was not granted must not be used. `nvidia-smi` in such a pod is
a program of ours (smi.py) that prints the slices it was given.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Container, Sequence
from pathlib import Path

from aliquot.api import DeviceShare
from aliquot.backends.local.devices import simulated_smi
from aliquot.backends.local.devices.mps import check_allowed
from aliquot.backends.local.devices.node_devices import NodeFacts
from aliquot.backends.local.gpu_settings import GpuSettings
from aliquot.gpu.fractions import ComputeMode, Enforcement, GpuAllocation, SharingOptions, gpu_allocations
from aliquot.gpu.injection import File, Injection, build_injection, mps_share

PROGRAMS = "/run/aliquot/bin"
_SMI = Path(simulated_smi.__file__).resolve()


class SimulatedDevices:
    """Nodes as described; their GPUs are always well."""

    def __init__(self, nodes: Sequence[NodeFacts], settings: GpuSettings = GpuSettings()) -> None:  # noqa: B008  # frozen
        self._settings = settings
        self._nodes = tuple(nodes)
        self._devices = {node.name: node.devices for node in nodes}

    def nodes(self) -> tuple[NodeFacts, ...]:
        return self._nodes

    def injection(self, node: str, shares: Sequence[DeviceShare], options: SharingOptions, pod_uid: str) -> Injection:
        slices = gpu_allocations(self._devices.get(node, ()), shares, options)
        serviced = [one for one in slices if one.is_shared and one.mode is ComputeMode.MPS]
        if serviced:
            check_allowed(self._settings.mps)  # as where GPUs are real; no daemon is started
        environment = {
            **build_injection(slices, Enforcement.NONE).environment,
            **(mps_share(serviced[0]) if serviced else {}),
            "CUDA_VISIBLE_DEVICES": "",  # none: CUDA would take the machine's own
            "ALIQUOT_SIMULATED": "true",
        }
        return Injection(environment, files=_files(slices), path_dirs=(PROGRAMS,))

    def release(self, pod_uid: str) -> None:
        return

    def sweep(self, living: Container[str]) -> None:
        return


def _files(slices: Sequence[GpuAllocation]) -> tuple[File, ...]:
    listed = [{"uuid": one.uuid, "model": one.model, "memoryMiB": one.limit_mib} for one in slices]
    program = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(_SMI))}"
    # What it prints lies beside it, wherever a runtime has put both.
    script = f'#!/bin/sh\nexec {program} "${{0%/*}}/gpus.json" "$@"\n'
    return (
        File(f"{PROGRAMS}/nvidia-smi", script, executable=True),
        File(f"{PROGRAMS}/gpus.json", json.dumps(listed) + "\n"),
    )
