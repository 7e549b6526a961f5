"""How much GPU memory a CUDA context takes: measured once per model and driver version, by creating one.

A process pays for its context before its first allocation, and the sharing library must know the size before it can
measure it. Where it cannot be measured here it is 0, and the library asks the driver after the first context.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from aliquot.backends.local.devices import context_probe
from aliquot.backends.local.devices.gpu_driver import GpuDriver
from aliquot.units import MIB

_TIMEOUT_SECONDS = 30.0  # an idle GPU takes a few seconds to wake up
Measure = Callable[[GpuDriver, str], int]


class ContextSizes:
    """Measured sizes, stored in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._mib_by_key = _read(file)

    def mib(self, model: str, version: str) -> int:
        return self._mib_by_key.get(_key(model, version), 0)

    def measure_missing(self, driver: GpuDriver, measure: Measure) -> None:
        """Measure on one GPU of each model that is not known yet. Takes seconds: not for the event loop."""
        version = driver.version()
        for gpu in driver.gpus():
            key = _key(gpu.device.model, version)
            # CUDA does not find a GPU in MIG mode by the UUID of the whole GPU.
            usable = gpu.device.healthy and gpu.device.uuid and gpu.device.mig is None
            if usable and key not in self._mib_by_key and (mib := measure(driver, gpu.device.uuid)):
                self._mib_by_key[key] = mib
        self._file.write_text(json.dumps(self._mib_by_key, indent=2) + "\n")


def measure(driver: GpuDriver, uuid: str) -> int:
    """MiB of one context on this GPU; 0 where none can be created."""
    command = [sys.executable, "-I", "-S", str(Path(context_probe.__file__).resolve())]
    # CUDA settings, such as lazy kernel loading, change the size.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "NVIDIA_", "LD_PRELOAD"))}
    env["CUDA_VISIBLE_DEVICES"] = uuid
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as child:
        timeout = threading.Timer(_TIMEOUT_SECONDS, child.kill)
        timeout.start()
        try:
            assert child.stdout is not None
            created = child.stdout.readline() == b"made\n"
            processes = driver.process_memory() if created else ()
            used = [process.used for process in processes if (process.uuid, process.pid) == (uuid, child.pid)]
        finally:
            child.communicate()
            timeout.cancel()
    return max(used, default=0) // MIB


def _key(model: str, version: str) -> str:
    return f"{model} / {version}"


def _read(file: Path) -> dict[str, int]:
    try:
        stored = json.loads(file.read_text())
        return {str(key): int(value) for key, value in stored.items()}
    except (OSError, ValueError, AttributeError):
        return {}
