"""The stand-in driver as a whole machine has it: the same card for pods, containers and the platform beside them.

Beyond what tests of the library need (native/rig.py), NVML is asked by NVIDIA's own binding, and each program sees
the processes of its own PID namespace only, by its own numbers.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from native.rig import HERE, compile_library

OWN = Path(__file__).parent
PLACE = "/run/standin"
CARD_MIB = 16384
# The two cards as CUDA counts them; NVML counts the other way round.
UUIDS = ("GPU-01a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0", "GPU-02a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1")


@dataclass(frozen=True)
class StandIn:
    """A folder with the driver's libraries, `cu.py` and the state of the cards; mounted as it is at PLACE."""

    folder: Path

    def environment(self, place: str = PLACE) -> dict[str, str]:
        """For programs that see the folder at a place."""
        return {"LD_LIBRARY_PATH": place, "FAKE_CARD": f"{place}/card", "PYTHONPATH": place}


def standin(built: Path, folder: Path) -> StandIn:
    """A fresh pair of cards in a folder; `built` is what native/rig.py has made."""
    folder.mkdir(parents=True)
    for file in (built / "libcuda.so.1", *_made(built).iterdir(), HERE / "cu.py"):
        shutil.copy(file, folder)
    card = folder / "card"
    card.touch()
    card.chmod(0o666)
    return StandIn(folder)


def _made(built: Path) -> Path:
    """The driver's library for the platform, and programs of tenants; once for all test processes."""
    made, fresh = built / "machine", built / "machine.new"
    with (built / "machine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            soname, wrap = "-Wl,-soname,libnvidia-ml.so.1", "-Wl,--wrap=card_clients"
            nvml = [HERE / "fake_nvml.c", HERE / "card.c", OWN / "more_nvml.c", OWN / "visible.c"]
            compile_library(fresh / "libnvidia-ml.so.1", nvml, "-O1", f"-I{HERE}", soname, wrap)
            compile_library(fresh / "libtaker.so", [OWN / "taker.c", built / "libcuda.so.1"], "-O1")
            raw = ["cc", "-static", "-O1", f"-I{HERE}", OWN / "raw.c", HERE / "card.c", "-o", fresh / "raw"]
            subprocess.run(raw, check=True, timeout=300)
            fresh.rename(made)
    return made
