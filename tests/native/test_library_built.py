"""The shipped libraries: both architectures, compatible with old images, exporting only what they replace."""

from __future__ import annotations

import fcntl
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from aliquot import native as package
from native.rig import SOURCE
from native.test_entry_points import entries

NEWEST = (2, 17)


@pytest.fixture(scope="module")
def shipped() -> dict[str, Path]:
    """The libraries of `make native`; built when missing or older than their source."""
    folder = Path(package.__file__).parent
    newest = max(p.stat().st_mtime for p in SOURCE.glob("*.[ch]"))
    with (Path(tempfile.gettempdir()) / "aliquot-native.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may find them missing
        built = {m: package.library(m) for m in package.MACHINES}
        if not all(p and p.stat().st_mtime >= newest for p in built.values()):
            subprocess.run([SOURCE / "build.sh", sys.executable, folder], check=True, timeout=300)
            built = {m: package.library(m) for m in package.MACHINES}
    return {m: p for m, p in built.items() if p}


def readelf(*words: object) -> str:
    return subprocess.check_output(["readelf", "-W", *map(str, words)], text=True)


@pytest.mark.parametrize("machine", package.MACHINES)
def test_loads_on_old_systems(shipped: dict[str, Path], machine: str) -> None:
    """No symbol is newer than glibc 2.17: an older image would refuse the library and run without limits."""
    versions = set(re.findall(r"GLIBC_(\d+)\.(\d+)", readelf("-V", shipped[machine])))
    assert versions
    assert max((int(a), int(b)) for a, b in versions) <= NEWEST


@pytest.mark.parametrize("machine", package.MACHINES)
def test_exports_only_what_it_replaces(shipped: dict[str, Path], machine: str) -> None:
    """It exports the names of the driver's functions, dlsym and gpushare_loaded, and nothing else."""
    rows = [line.split() for line in readelf("--dyn-syms", shipped[machine]).splitlines()]
    exported = {r[7].split("@")[0] for r in rows if len(r) == 8 and r[6].isdigit() and r[4] in ("GLOBAL", "WEAK")}
    names = {n for group in ("MEMORY_ENTRIES", "COMPUTE_ENTRIES", "NVML_ENTRIES") for n in entries(group)}
    assert exported - {"_init", "_fini"} == names | {"dlsym", "gpushare_loaded"}


@pytest.mark.parametrize("machine", package.MACHINES)
def test_needs_no_driver(shipped: dict[str, Path], machine: str) -> None:
    """It is not linked to the driver, so it also loads on machines without one."""
    needed = set(re.findall(r"Shared library: \[(.*?)\]", readelf("-d", shipped[machine])))
    assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


@pytest.mark.parametrize("machine", package.MACHINES)
def test_no_test_hooks(shipped: dict[str, Path], machine: str) -> None:
    """The shipped library does not have the environment variables that tests use to move its files or kill it."""
    raw = shipped[machine].read_bytes()
    assert b"GPUSHARE_FOLDER" not in raw
    assert b"GPUSHARE_FAULT" not in raw
    assert b"GPUSHARE_LIMIT_MIB" in raw


def test_harmless_without_a_gpu(shipped: dict[str, Path]) -> None:
    """Programs that use no GPU run as without the library, without output."""
    environment = {"LD_PRELOAD": str(shipped[platform.machine()])}
    done = subprocess.run(["/bin/sh", "-c", "echo fine"], env=environment, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)
