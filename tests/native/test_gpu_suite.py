"""The suite for real GPUs (tests/gpu) on the fake driver, so that it still runs when a GPU is available again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native.rig import HERE, compile_library
from support.crash.disk import need

SUITE = HERE.parent / "gpu"


def run_suite(driver: Path, *args: object, library: Path | None = None) -> subprocess.CompletedProcess[str]:
    need(os.geteuid() == 0, "run as root: the suite mounts the library as in a container")
    need(Path("/dev/shm").is_dir(), "mount /dev/shm: the suite keeps its files there")
    library = library or driver / "plain" / "libgpushare.so"
    command = [sys.executable, str(SUITE), *map(str, args), "--library", str(library)]
    env = os.environ | {"GPU_SUITE_DRIVER": str(driver)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("item", ["procaddr", "exact", "apis", "hidden", "smi", "together", "tries", "kill"])
def test_items_pass_on_the_fake_driver(native_build: Path, tmp_path: Path, item: str) -> None:
    """Every item that needs no real GPU passes on the fake driver, and the report says so."""
    report = tmp_path / "report.md"
    done = run_suite(native_build, item, "--report", report)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{item}: ok" in report.read_text()
    assert "NOT A REAL GPU" in report.read_text()


def test_a_library_that_does_nothing_fails(native_build: Path, tmp_path: Path) -> None:
    """The suite notices when nothing is limited."""
    source = tmp_path / "empty.c"
    source.write_text("int nothing;")
    compile_library(tmp_path / "libgpushare.so", [source])
    done = run_suite(native_build, "exact", library=tmp_path / "libgpushare.so")
    assert done.returncode == 1
    assert "exact: " in done.stdout
    assert "FAILED" in done.stdout


def test_missing_frameworks_fail(native_build: Path) -> None:
    """A missing framework fails the item, unless it was excluded by name."""
    done = run_suite(native_build, "frameworks", "--without", "torch", "--without", "jax")
    assert done.returncode == 1
    assert "not tested: no cupy here" in done.stdout
    assert "no torch here" not in done.stdout


def test_unknown_items_are_named(native_build: Path) -> None:
    """The error for an unknown item lists the known ones."""
    done = run_suite(native_build, "exakt")
    assert done.returncode == 2
    assert "there is no item exakt; choose from procaddr, exact" in done.stderr
