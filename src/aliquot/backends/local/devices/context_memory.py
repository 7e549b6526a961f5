"""How much memory a CUDA context takes: measured once for each model and driver, by making one and asking the driver.

A process pays it before its first byte, and the sharing library must know it before it can be measured. Where it
cannot be measured it is 0, and the library learns it from the driver after the first context.
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

_SECONDS = 30.0  # a card that was asleep takes a few to wake
Measure = Callable[[GpuDriver, str], int]


class ContextSizes:
    """What is known, kept in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known = _read(file)

    def mib(self, model: str, version: str) -> int:
        return self._known.get(_key(model, version), 0)

    def learn(self, driver: GpuDriver, measure: Measure) -> None:
        """Measure on one GPU of each model that is not known yet. Takes seconds: not for the event loop."""
        version = driver.version()
        for card in driver.cards():
            key = _key(card.device.model, version)
            # MIG devices are other devices, which CUDA does not find by the card's name.
            usable = card.device.healthy and card.device.uuid and card.device.mig is None
            if usable and key not in self._known and (found := measure(driver, card.device.uuid)):
                self._known[key] = found
        self._file.write_text(json.dumps(self._known, indent=2) + "\n")


def measure(driver: GpuDriver, uuid: str) -> int:
    """MiB of one context on this GPU; 0 where none can be made."""
    command = [sys.executable, "-I", "-S", str(Path(context_probe.__file__).resolve())]
    # A setting of CUDA's, such as when kernels are loaded, could change what it takes.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "NVIDIA_", "LD_PRELOAD"))}
    env["CUDA_VISIBLE_DEVICES"] = uuid
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as child:
        alarm = threading.Timer(_SECONDS, child.kill)
        alarm.start()
        try:
            assert child.stdout is not None
            made = child.stdout.readline() == b"made\n"
            held = [use.used for use in driver.uses() if (use.uuid, use.pid) == (uuid, child.pid)] if made else []
        finally:
            child.communicate()
            alarm.cancel()
    return max(held, default=0) // MIB


def _key(model: str, version: str) -> str:
    return f"{model} / {version}"


def _read(file: Path) -> dict[str, int]:
    try:
        found = json.loads(file.read_text())
        return {str(key): int(value) for key, value in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
