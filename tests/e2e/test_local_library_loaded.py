"""The sharing library in local pods: every program loads it, whatever the pod does to its environment."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aliquot.api import DeviceShare
from aliquot.backends.local.devices.context_memory import ContextSizes
from aliquot.backends.local.devices.real import RealDevices
from aliquot.backends.local.devices.share_dirs import ShareDirs
from aliquot.backends.local.runtime import CannotStart
from aliquot.gpu.fractions import SharingOptions
from aliquot.gpu.injection import LIBRARY, Injection
from aliquot.units import MIB
from support.gpus import NODE, FakeDriver
from support.pods.agent_harness import AgentHarness, needs_root
from support.pods.single_pod import UID, pod_output

SOURCES = Path(__file__).parents[2] / "native" / "gpushare"
LOADED = "grep -c libgpushare.so /proc/self/maps >/dev/null && echo loaded || echo absent"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built for this machine; the wheel contains builds for older systems."""
    made = tmp_path_factory.mktemp("gpushare") / "libgpushare.so"
    sources = sorted(map(str, SOURCES.glob("*.c")))
    compiler = shutil.which("cc") or "cc"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-fvisibility=hidden",
        "-o",
        str(made),
        *sources,
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True, timeout=120)
    return made


def half_a_gpu(folder: Path, library: Path) -> Injection:
    devices = RealDevices(
        NODE, FakeDriver(), ShareDirs(folder / "share_dirs"), ContextSizes(folder / "contexts.json"), library
    )
    return devices.injection(NODE, [DeviceShare(index=0, milli=500)], SharingOptions(), UID)


async def test_every_program_loads_it(harness: AgentHarness, tmp_path: Path, library: Path) -> None:
    """The pod's command and its children load the library, also where nothing can be mounted."""
    assert await pod_output(harness, f"{LOADED}; sh -c '{LOADED}'", half_a_gpu(tmp_path, library)) == "loaded\nloaded\n"


@needs_root
@pytest.mark.parametrize(
    "script",
    [
        f"env -i sh -c '{LOADED}'",
        f"unset LD_PRELOAD; {LOADED}",
        f"LD_PRELOAD=/usr/lib/none.so sh -c '{LOADED}'",
        f"rm -f /etc/ld.so.preload; echo > /etc/ld.so.preload; mv /etc /e; {LOADED}",
        f"mv /usr/local/gpushare /usr/local/x; umount {LIBRARY}; {LOADED}",
        f"unshare -Ur sh -c 'umount -l /etc/ld.so.preload; {LOADED}'",
        f"unshare -Urm sh -c 'umount -l /etc/ld.so.preload; umount -l /etc; {LOADED}'",
    ],
)
async def test_a_pod_cannot_avoid_it(
    isolated_harness: AgentHarness, tmp_path: Path, library: Path, script: str
) -> None:
    """An empty environment, another preload or changed files do not keep a program from loading it."""
    assert (await pod_output(isolated_harness, script, half_a_gpu(tmp_path, library))).endswith("loaded\n")


@needs_root
async def test_the_limits_are_where_the_library_reads_them(
    isolated_harness: AgentHarness, tmp_path: Path, library: Path
) -> None:
    """The limits file has the pod's limits, and a variable does not change them."""
    output = await pod_output(
        isolated_harness, "GPUSHARE_LIMIT_MIB=1 cat /run/gpushare/limits", half_a_gpu(tmp_path, library)
    )

    assert output.splitlines()[:3] == ["gpushare 1", f"tenant {UID}", "mode timesharing"]
    assert f"limit={11514 * MIB} " in output


@needs_root
async def test_the_ledger_is_shared_by_the_pods_processes(
    isolated_harness: AgentHarness, tmp_path: Path, library: Path
) -> None:
    """The ledger has the size that the library expects, and every user of the pod may write it."""
    script = "stat -c '%s %a' /run/gpushare/ledger; dd if=/dev/zero of=/run/gpushare/ledger bs=1 count=1 conv=notrunc"

    assert (await pod_output(isolated_harness, script, half_a_gpu(tmp_path, library))).startswith(
        "131072 666\n1+0 records in"
    )


@needs_root
@pytest.mark.parametrize("text", ["", "not a library\n"], ids=["empty", "broken"])
async def test_a_pod_without_the_library_is_not_started(
    isolated_harness: AgentHarness, tmp_path: Path, text: str
) -> None:
    """When programs do not load the library, the pod is not started, with the reason GPUShareNotLoaded."""
    broken = tmp_path / "libgpushare.so"
    broken.write_text(text)

    with pytest.raises(CannotStart, match="programs do not load") as caught:
        await pod_output(isolated_harness, "echo ran", half_a_gpu(tmp_path, broken))

    assert caught.value.reason == "GPUShareNotLoaded"
