"""The folders of limits and ledgers across restarts of the platform and of the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.backends.local.devices.share_dirs import ShareDirs, boot_id
from support.gpus import ledger_bytes

BOOT, LATER = "62626262-6262-6262-6262-626262626262", "99999999-9999-9999-9999-999999999999"
PREPARE = """
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
share_dirs.prepare(sys.argv[2])
"""


def prepared(folder: Path, *pod_uids: str) -> ShareDirs:
    share_dirs = ShareDirs(folder)
    share_dirs.prepare(BOOT)
    for pod_uid in pod_uids:
        share_dirs.pod_dir(pod_uid).mkdir(parents=True)
        (share_dirs.pod_dir(pod_uid) / "ledger").write_bytes(ledger_bytes())
    share_dirs.gates_dir.mkdir(exist_ok=True)
    (share_dirs.gates_dir / "GPU-a").touch()
    return share_dirs


def files(share_dirs: ShareDirs) -> list[str]:
    return sorted(path.name for path in share_dirs.folder.rglob("*") if path.is_file())


def test_a_restart_of_the_platform_keeps_them(tmp_path: Path) -> None:
    """Pods keep running while the platform is down, so their files stay."""
    share_dirs = prepared(tmp_path, "pod-1")

    ShareDirs(tmp_path).prepare(BOOT)

    assert files(share_dirs) == ["GPU-a", "boot", "ledger"]


def test_other_users_cannot_read_them(tmp_path: Path) -> None:
    """Other users reach the MPS daemon's folder, and cannot read the pods' files."""
    share_dirs = prepared(tmp_path / "share_dirs", "pod-1")

    modes = {
        path: path.stat().st_mode & 0o777
        for path in (share_dirs.folder, share_dirs.folder / "pods", share_dirs.gates_dir)
    }

    assert list(modes.values()) == [0o711, 0o700, 0o700]


def test_a_reboot_empties_them(tmp_path: Path) -> None:
    """No process survives a reboot, and the library would refuse ledgers and gates from before it."""
    share_dirs = prepared(tmp_path, "pod-1", "pod-2")

    ShareDirs(tmp_path).prepare(LATER)

    assert files(share_dirs) == ["boot"]


@pytest.mark.parametrize("steps", range(8))
def test_killed_while_emptying_them(tmp_path: Path, steps: int) -> None:
    """At whatever step the platform was killed, the next start removes all old files."""
    share_dirs = prepared(tmp_path, "pod-1")
    done = subprocess.run([sys.executable, "-c", PREPARE, str(tmp_path), LATER, str(steps)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL

    ShareDirs(tmp_path).prepare(LATER)

    assert files(share_dirs) == ["boot"]


def test_folders_of_pods_that_are_gone(tmp_path: Path) -> None:
    """Folders that a killed platform left behind are removed at the next start."""
    share_dirs = prepared(tmp_path, "pod-1", "pod-2")

    share_dirs.sweep({"pod-2"})

    assert [path.name for path in (tmp_path / "pods").iterdir()] == ["pod-2"]


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (bytes(131072), True),  # never written to
        (ledger_bytes(), True),
        (ledger_bytes(magic=1), False),
        (ledger_bytes()[:4096], False),
        (os.urandom(131072), False),
        (b"", False),
    ],
    ids=["new", "used", "another magic", "short", "noise", "empty"],
)
def test_a_damaged_ledger_is_removed(tmp_path: Path, data: bytes, kept: bool) -> None:
    """A restarted pod gets a new ledger, or it could never use its GPU again."""
    share_dirs = prepared(tmp_path, "pod-1")
    path = share_dirs.pod_dir("pod-1") / "ledger"
    path.write_bytes(data)

    share_dirs.remove_damaged_ledger("pod-1", BOOT)

    assert path.exists() == kept


@pytest.mark.parametrize(("pod_uid", "boot"), [("pod-2", BOOT), ("pod-1", LATER)])
def test_a_ledger_of_another_pod_or_boot(tmp_path: Path, pod_uid: str, boot: str) -> None:
    """A ledger of another pod, or from before the last boot, is removed."""
    share_dirs = prepared(tmp_path, pod_uid)

    share_dirs.remove_damaged_ledger(pod_uid, boot)

    assert not (share_dirs.pod_dir(pod_uid) / "ledger").exists()


def test_the_boot_id_is_stable() -> None:
    """The boot id is the same until the next reboot."""
    assert boot_id() == boot_id() != ""
