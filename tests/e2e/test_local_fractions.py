"""Pods with GPU fractions on the fake driver: the real library and the real runtime, without a GPU."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.api import DeviceShare
from aliquot.backends.local.devices.context_memory import ContextSizes
from aliquot.backends.local.devices.real import RealDevices
from aliquot.backends.local.devices.share_dirs import ShareDirs
from aliquot.gpu.fractions import SharingOptions
from aliquot.gpu.injection import Injection, Mount
from native.rig import CONTEXT, HERE, SOURCE, compile_library
from support.gpus import NODE, FakeDriver, card
from support.pods.agent_harness import AgentHarness, needs_root
from support.pods.single_pod import UID, pod_output

pytestmark = needs_root
# The first GPU of the fake driver, in CUDA's order.
CARD = card(0, "GPU-01a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0", "Fake 16GB", 16384)
DRIVER_PATH = "/run/fake-driver"
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
    """The library as it is shipped, without test hooks."""
    made = tmp_path_factory.mktemp("gpushare") / "libgpushare.so"
    compile_library(made, sorted(SOURCE.glob("*.c")), "-O1", "-Wl,-Bsymbolic")
    return made


class Pod:
    """A pod with half of the GPU, and what it needs to find the fake driver."""

    def __init__(self, harness: AgentHarness, built: Path, library: Path, folder: Path) -> None:
        self._harness = harness
        share_dirs, contexts = ShareDirs(folder / "share_dirs"), ContextSizes(folder / "contexts.json")
        devices = RealDevices(NODE, FakeDriver((CARD,)), share_dirs, contexts, library)
        injection = devices.injection(NODE, [DeviceShare(index=0, milli=500)], SharingOptions(), UID)
        state = folder / "card"
        state.touch()
        state.chmod(0o666)
        mounts = [Mount(f"{DRIVER_PATH}/{name}", str(built / name)) for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
        mounts += [
            Mount(f"{DRIVER_PATH}/cu.py", str(HERE / "cu.py")),
            Mount(f"{DRIVER_PATH}/card", str(state), read_only=False),
        ]
        self.injection: Injection = replace(injection, mounts=(*injection.mounts, *mounts))

    async def run(self, program: str, before: str = "") -> list[str]:
        """Runs a Python program in the pod; returns the words of its output. `before` precedes it in the shell."""
        env = f"env LD_LIBRARY_PATH={DRIVER_PATH} FAKE_CARD={DRIVER_PATH}/card PYTHONPATH={DRIVER_PATH}"
        text = shlex.quote("from cu import *\n" + program)
        return (await pod_output(self._harness, f"{env} {before} {sys.executable} -c {text}", self.injection)).split()


@pytest.fixture
def half_gpu_pod(isolated_harness: AgentHarness, native_build: Path, library: Path, tmp_path: Path) -> Pod:
    return Pod(isolated_harness, native_build, library, tmp_path)


async def test_a_greedy_program_gets_its_fraction(half_gpu_pod: Pod) -> None:
    """F2, F6: a greedy program gets exactly its fraction minus its context, then the driver's own error."""
    assert await half_gpu_pod.run(FILL) == [str(8192 - CONTEXT), "2", "8192"]


async def test_every_view_shows_the_fraction(half_gpu_pod: Pod) -> None:
    """CUDA and NVML report the same total, used and free memory inside the pod."""
    used = CONTEXT + 64

    assert await half_gpu_pod.run(VIEWS) == ["8192", "8192", str(used), str(8192 - used), str(8192 - used)]


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
async def test_a_pod_cannot_enlarge_its_fraction(half_gpu_pod: Pod, before: str) -> None:
    """Environment variables, another preload, another session or new namespaces do not change the limit."""
    *_, got, code, total = await half_gpu_pod.run(FILL, before)

    assert (int(got) <= 8192 - CONTEXT, code, total) == (True, "2", "8192")


async def test_children_share_the_fraction(half_gpu_pod: Pod) -> None:
    """Four processes that race for memory get one fraction together, minus one context each."""
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
    assert await half_gpu_pod.run("import sys\n" + race) == [str(8192 - 4 * CONTEXT)]
