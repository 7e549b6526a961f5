"""Simulated GPUs on simulated nodes: everything but the nodes and their devices is real.

With them the platform can be tried and tested on a laptop. The nodes carry a label that says they are simulated. A pod
on them sees no real GPU, even where the machine has one. `nvidia-smi` in such a pod is a program of ours
(simulated_smi.py) that prints the GPUs and fractions the pod was given.
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
    """Nodes as described; their GPUs are always healthy."""

    def __init__(self, nodes: Sequence[NodeFacts], settings: GpuSettings = GpuSettings()) -> None:  # noqa: B008  # frozen
        self._settings = settings
        self._nodes = tuple(nodes)
        self._devices = {node.name: node.devices for node in nodes}

    def nodes(self) -> tuple[NodeFacts, ...]:
        return self._nodes

    def injection(self, node: str, shares: Sequence[DeviceShare], options: SharingOptions, pod_uid: str) -> Injection:
        allocations = gpu_allocations(self._devices.get(node, ()), shares, options)
        with_mps = [gpu for gpu in allocations if gpu.is_shared and gpu.mode is ComputeMode.MPS]
        if with_mps:
            check_allowed(self._settings.mps)  # the same rule as for real GPUs; no daemon is started
        environment = {
            **build_injection(allocations, Enforcement.NONE).environment,
            **(mps_share(with_mps[0]) if with_mps else {}),
            "CUDA_VISIBLE_DEVICES": "",  # none, or CUDA would use the machine's own
            "ALIQUOT_SIMULATED": "true",
        }
        return Injection(environment, files=_files(allocations), path_dirs=(PROGRAMS,))

    def release(self, pod_uid: str) -> None:
        return

    def sweep(self, live_pods: Container[str]) -> None:
        return


def _files(allocations: Sequence[GpuAllocation]) -> tuple[File, ...]:
    gpus = [{"uuid": gpu.uuid, "model": gpu.model, "memoryMiB": gpu.limit_mib} for gpu in allocations]
    program = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(_SMI))}"
    # The file it prints is next to it, wherever the runtime has put both.
    script = f'#!/bin/sh\nexec {program} "${{0%/*}}/gpus.json" "$@"\n'
    return (
        File(f"{PROGRAMS}/nvidia-smi", script, executable=True),
        File(f"{PROGRAMS}/gpus.json", json.dumps(gpus) + "\n"),
    )
