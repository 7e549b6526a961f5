"""The fake driver for a whole machine: the same GPUs for pods, containers and the platform.

Beyond what tests of the library need (native/rig.py), NVIDIA's own binding calls this NVML, and each program sees only
the processes of its own PID namespace, by the pids of that namespace.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from native.rig import HERE, compile_library

OWN = Path(__file__).parent
DRIVER_PATH = "/run/fake-driver"
CARD_MIB = 16384
# The two GPUs in CUDA's order; NVML has the reverse order.
UUIDS = ("GPU-01a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0", "GPU-02a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1")


@dataclass(frozen=True)
class FakeDriverFiles:
    """A folder with the driver's libraries, `cu.py` and the state of the GPUs; pods mount it at DRIVER_PATH."""

    folder: Path

    def environment(self, path: str = DRIVER_PATH) -> dict[str, str]:
        """For programs that see the folder at this path."""
        return {"LD_LIBRARY_PATH": path, "FAKE_CARD": f"{path}/card", "PYTHONPATH": path}


def install_fake_driver(built: Path, folder: Path) -> FakeDriverFiles:
    """A new pair of GPUs in a folder; `built` is what native/rig.py has built."""
    folder.mkdir(parents=True)
    for file in (built / "libcuda.so.1", *_libraries(built).iterdir(), HERE / "cu.py"):
        shutil.copy(file, folder)
    card = folder / "card"
    card.touch()
    card.chmod(0o666)
    return FakeDriverFiles(folder)


def _libraries(built: Path) -> Path:
    """The driver's library for the platform, and programs of jobs; built once for all test processes."""
    finished, fresh = built / "machine", built / "machine.new"
    with (built / "machine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            soname, wrap = "-Wl,-soname,libnvidia-ml.so.1", "-Wl,--wrap=card_clients"
            nvml = [HERE / "fake_nvml.c", HERE / "card.c", OWN / "more_nvml.c", OWN / "visible.c"]
            compile_library(fresh / "libnvidia-ml.so.1", nvml, "-O1", f"-I{HERE}", soname, wrap)
            compile_library(fresh / "libtaker.so", [OWN / "taker.c", built / "libcuda.so.1"], "-O1")
            sources: list[str | Path] = [OWN / "raw.c", HERE / "card.c"]
            subprocess.run(
                ["cc", "-static", "-O1", f"-I{HERE}", *sources, "-o", fresh / "raw"], check=True, timeout=300
            )
            fresh.rename(finished)
    return finished
