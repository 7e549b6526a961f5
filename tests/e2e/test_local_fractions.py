"""Pods with parts of a GPU, on the stand-in driver: the real library, the real runtime, only the card is not there."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.api import DeviceShare
from aliquot.backends.local.devices.context_memory import ContextSizes
from aliquot.backends.local.devices.real import RealDevices, ShareDirs
from aliquot.gpu.fractions import SharingOptions
from aliquot.gpu.injection import Injection, Mount
from native.rig import CONTEXT, HERE, SOURCE, compile_library
from support.gpus import NODE, FakeDriver, card
from support.pods.single import UID, said
from support.pods.world import World, needs_root

pytestmark = needs_root
# The first card of the stand-in, as CUDA counts them.
CARD = card(0, "GPU-01a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0", "Stand-in 16GB", 16384)
PLACE = "/run/standin"
FILL = """
cuda = Cuda()
frees, code = cuda.fill(cuda.alloc, 2 * MIB)
print(2 * len(frees), code, cuda.total() // MIB)
"""
VIEWS = """
cuda = Cuda()
cuda.alloc(64 * MIB)
seen = Nvml().memory_v2(Nvml().device(cuda.uuid()))
print(cuda.total() // MIB, seen.total // MIB, seen.used // MIB, seen.free // MIB, cuda.info()[0] // MIB)
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As it is shipped: without the doors that its own tests use."""
    made = tmp_path_factory.mktemp("gpushare") / "libgpushare.so"
    compile_library(made, sorted(SOURCE.glob("*.c")), "-O1", "-Wl,-Bsymbolic")
    return made


class Pod:
    """A pod with half of the card, and what it needs to find the stand-in."""

    def __init__(self, world: World, built: Path, library: Path, folder: Path) -> None:
        self._world = world
        share_dirs, contexts = ShareDirs(folder / "share_dirs"), ContextSizes(folder / "contexts.json")
        devices = RealDevices(NODE, FakeDriver((CARD,)), share_dirs, contexts, library)
        found = devices.injection(NODE, [DeviceShare(index=0, milli=500)], SharingOptions(), UID)
        state = folder / "card"
        state.touch()
        state.chmod(0o666)
        mounts = [Mount(f"{PLACE}/{name}", str(built / name)) for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
        mounts += [Mount(f"{PLACE}/cu.py", str(HERE / "cu.py")), Mount(f"{PLACE}/card", str(state), read_only=False)]
        self.injection: Injection = replace(found, mounts=(*found.mounts, *mounts))

    async def runs(self, program: str, before: str = "") -> list[str]:
        """What a Python program prints there, in words; `before` stands before it in the shell."""
        env = f"env LD_LIBRARY_PATH={PLACE} FAKE_CARD={PLACE}/card PYTHONPATH={PLACE}"
        text = shlex.quote("from cu import *\n" + program)
        return (await said(self._world, f"{env} {before} {sys.executable} -c {text}", self.injection)).split()


@pytest.fixture
def pod(island: World, native_build: Path, library: Path, tmp_path: Path) -> Pod:
    return Pod(island, native_build, library, tmp_path)


async def test_the_slice_is_all_there_is(pod: Pod) -> None:
    """F2, F6: a greedy program gets its slice but its context, to the last block, then the driver's own error."""
    assert await pod.runs(FILL) == [str(8192 - CONTEXT), "2", "8192"]


async def test_every_view_shows_the_slice(pod: Pod) -> None:
    """CUDA and NVML agree on total, used and free, inside the pod's own namespaces."""
    used = CONTEXT + 64

    assert await pod.runs(VIEWS) == ["8192", "8192", str(used), str(8192 - used), str(8192 - used)]


@pytest.mark.parametrize(
    "before",
    [
        "GPUSHARE_LIMIT_MIB=16384 GPUSHARE_LEDGER=/tmp/mine GPUSHARE_FOLDER=/tmp",
        "LD_PRELOAD=/usr/lib/none.so",
        "LD_PRELOAD=",
        "setsid",
        "unshare -Urpf",
    ],
)
async def test_no_way_to_a_larger_slice(pod: Pod, before: str) -> None:
    """Variables, a preload of its own, another session or namespaces of its own: the slice stays what it is."""
    *_, got, code, total = await pod.runs(FILL, before)

    assert (int(got) <= 8192 - CONTEXT, code, total) == (True, "2", "8192")


async def test_children_share_the_slice(pod: Pod) -> None:
    """Four processes that race for the last byte get one slice together, less a context each."""
    race = """
import os
children = []
for _ in range(4):
    reading, writing = os.pipe()
    if not os.fork():
        cuda = Cuda()
        frees, code = cuda.fill(cuda.alloc, 2 * MIB)
        os.write(writing, str(2 * len(frees)).encode() + b" ")
        os.close(writing)
        sys.stdin.read()
        import time; time.sleep(3)
        os._exit(0)
    os.close(writing)
    children.append(reading)
print(sum(int(os.read(reading, 99)) for reading in children))
"""
    assert await pod.runs("import sys\n" + race) == [str(8192 - 4 * CONTEXT)]
