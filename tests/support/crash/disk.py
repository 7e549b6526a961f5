"""Faulty disks: a small one that fills up, one whose calls fail, and one that loses power."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "native" / "failing_disk.c"


def need(available: bool, message: str) -> None:
    """Skips the test if a requirement is missing. In CI the test runs and fails instead."""
    if not available and os.environ.get("CI") != "true":
        pytest.skip(message)


def build_shim(into: Path) -> Path:
    need(shutil.which("cc") is not None, "install a C compiler to run the tests on failing disks")
    shim = into / "failing_disk.so"
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", shim, SOURCE, "-ldl", "-lpthread"],
        check=True,
    )
    return shim


class Disk:
    """A disk under one folder, for programs that run with `environment`."""

    def __init__(self, shim: Path, folder: Path, control: Path, *, seed: int = 1, shadow: bool = False) -> None:
        control.mkdir(parents=True)
        self._switch = control / "failing"
        self._shadow = control / "shadow"
        self._shadow.mkdir()
        self.environment = {
            "LD_PRELOAD": str(shim),
            # The path as it appears in /proc/self/fd.
            "DISK_FOLDER": str(folder.parent.resolve() / folder.name),
            "DISK_SWITCH": str(self._switch),
            "DISK_SEED": str(seed),
            **({"DISK_SHADOW": str(self._shadow)} if shadow else {}),
        }

    def fail(self, per_mille: int, error: str, calls: str) -> None:
        """Fail calls from now on; `error` is EIO, ENOSPC or both, `calls` is all or syncs."""
        draft = self._switch.with_suffix(".new")
        draft.write_text(f"{per_mille} {error} {calls}")
        draft.replace(self._switch)

    def repair(self) -> None:
        self._switch.unlink(missing_ok=True)

    def after_power_cut(self, into: Path) -> Path:
        """Writes to a folder what the disk would hold after a power cut."""
        into.mkdir(mode=0o700, parents=True)
        names = self._shadow / "names"
        for line in names.read_text().splitlines() if names.exists() else ():
            inode, _, name = line.partition(" ")
            content = self._shadow / inode
            (into / name).write_bytes(content.read_bytes() if content.exists() else b"")
        return into


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[Path]:
    """A tmpfs of this size."""
    need(os.geteuid() == 0, "run as root to test on a disk that fills (it mounts a tmpfs)")
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k,mode=700", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
