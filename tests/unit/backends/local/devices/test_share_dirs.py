"""Folders of limits and ledgers: who keeps them over starts of the platform and of the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.backends.local.devices.share_dirs import ShareDirs, boot_id
from support.gpus import book

BOOT, LATER = "62626262-6262-6262-6262-626262626262", "99999999-9999-9999-9999-999999999999"
BEGIN = """
import os, shutil, sys
from pathlib import Path
from aliquot.backends.local.devices.share_dirs import ShareDirs
steps = int(sys.argv[3])

def counted(kind, _, left=[steps]):
    # Killed before the n-th change of a file.
    if kind in ("shutil.rmtree", "os.remove", "os.rmdir", "os.rename", "os.mkdir", "open"):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), 9)

share_dirs = ShareDirs(Path(sys.argv[1]))
sys.addaudithook(counted)
share_dirs.begin(sys.argv[2])
"""


def made(folder: Path, *tenants: str) -> ShareDirs:
    share_dirs = ShareDirs(folder)
    share_dirs.begin(BOOT)
    for tenant in tenants:
        share_dirs.of(tenant).mkdir(parents=True)
        (share_dirs.of(tenant) / "ledger").write_bytes(book())
    share_dirs.gates.mkdir(exist_ok=True)
    (share_dirs.gates / "GPU-a").touch()
    return share_dirs


def left(share_dirs: ShareDirs) -> list[str]:
    return sorted(path.name for path in share_dirs.folder.rglob("*") if path.is_file())


def test_a_platform_that_starts_again_keeps_them(tmp_path: Path) -> None:
    """Pods run on while the platform is away."""
    share_dirs = made(tmp_path, "pod-1")

    ShareDirs(tmp_path).begin(BOOT)

    assert left(share_dirs) == ["GPU-a", "boot", "ledger"]


def test_nobody_else_looks_in(tmp_path: Path) -> None:
    """Other users of the machine pass by on their way to the MPS daemon, and find nothing of pods."""
    share_dirs = made(tmp_path / "share_dirs", "pod-1")

    modes = {
        place: place.stat().st_mode & 0o777
        for place in (share_dirs.folder, share_dirs.folder / "pods", share_dirs.gates)
    }

    assert list(modes.values()) == [0o711, 0o700, 0o700]


def test_a_machine_that_starts_again_makes_them_anew(tmp_path: Path) -> None:
    """Nothing that was alive before is alive now: ledgers and gates of then would be refused by the library."""
    share_dirs = made(tmp_path, "pod-1", "pod-2")

    ShareDirs(tmp_path).begin(LATER)

    assert left(share_dirs) == ["boot"]


@pytest.mark.parametrize("steps", range(8))
def test_killed_while_it_makes_them_anew(tmp_path: Path, steps: int) -> None:
    """Killed before any of its steps, the next start goes on until nothing of then is left."""
    share_dirs = made(tmp_path, "pod-1")
    done = subprocess.run([sys.executable, "-c", BEGIN, str(tmp_path), LATER, str(steps)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL

    ShareDirs(tmp_path).begin(LATER)

    assert left(share_dirs) == ["boot"]


def test_folders_of_pods_that_are_gone(tmp_path: Path) -> None:
    """What a platform that was killed has left of them is removed at the next start."""
    share_dirs = made(tmp_path, "pod-1", "pod-2")

    share_dirs.sweep({"pod-2"})

    assert [path.name for path in (tmp_path / "pods").iterdir()] == ["pod-2"]


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (bytes(131072), True),  # nobody has written to it yet
        (book(), True),
        (book(magic=1), False),
        (book()[:4096], False),
        (os.urandom(131072), False),
        (b"", False),
    ],
    ids=["new", "used", "another magic", "short", "noise", "empty"],
)
def test_a_ledger_that_a_job_has_spoilt(tmp_path: Path, data: bytes, kept: bool) -> None:
    """A pod that starts again gets a new one, or it could never use its GPU again."""
    share_dirs = made(tmp_path, "pod-1")
    path = share_dirs.of("pod-1") / "ledger"
    path.write_bytes(data)

    share_dirs.mend("pod-1", BOOT)

    assert path.exists() == kept


@pytest.mark.parametrize(("tenant", "boot"), [("pod-2", BOOT), ("pod-1", LATER)])
def test_a_ledger_of_another(tmp_path: Path, tenant: str, boot: str) -> None:
    """Of another pod, or from before the machine's last start."""
    share_dirs = made(tmp_path, tenant)

    share_dirs.mend(tenant, boot)

    assert not (share_dirs.of(tenant) / "ledger").exists()


def test_this_machine_names_its_start() -> None:
    """The same one for as long as it runs."""
    assert boot_id() == boot_id() != ""
