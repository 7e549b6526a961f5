"""The folders that hold the pods' limits files and ledgers, and the gate files that pods on one GPU share.

They are kept in memory, one folder per pod:

    <folder>/pods/<uid>/limits, ledger
             gates/<GPU uuid>
             mps                          see mps.py
             boot                         the boot id under which all this was written

Every operation may be interrupted at any point and completes when it is repeated.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Container
from pathlib import Path

from aliquot.gpu import ledger

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ShareDirs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pod_dir(self, pod_uid: str) -> Path:
        return self.folder / "pods" / os.path.basename(pod_uid)

    def limits_file(self, pod_uid: str) -> Path:
        return self.pod_dir(pod_uid) / "limits"

    def ledger_file(self, pod_uid: str) -> Path:
        return self.pod_dir(pod_uid) / "ledger"

    @property
    def gates_dir(self) -> Path:
        return self.folder / "gates"

    def prepare(self, boot: str) -> None:
        """Create the folders at the platform's start, and empty them when they are from before the last boot.

        `boot` is the boot id. No process from an earlier boot can be alive.
        """
        self._make_folders()
        if not boot:
            return
        boot_file = self.folder / "boot"
        written_boot = boot_file.read_text() if boot_file.exists() else boot
        if written_boot != boot:
            for name in ("pods", "gates", "mps"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            self._make_folders()
        # Written last: if we are killed before, the next start empties the folders again.
        temporary = boot_file.with_suffix(".new")
        temporary.write_text(boot)
        temporary.rename(boot_file)

    def _make_folders(self) -> None:
        """Pods cannot see each other's files. MPS servers run as the pods' users and must reach the `mps` folder."""
        for path, mode in ((self.folder, 0o711), (self.folder / "pods", 0o700), (self.folder / "gates", 0o700)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)

    def remove_damaged_ledger(self, pod_uid: str, boot: str) -> None:
        """Before a pod starts, while nothing of it is alive: a ledger that the library would refuse is removed."""
        path = self.ledger_file(pod_uid)
        if ledger.is_damaged(path, pod_uid, boot):
            path.unlink(missing_ok=True)

    def sweep(self, live_pods: Container[str]) -> None:
        """Remove the folders of pods that are not live."""
        pods = self.folder / "pods"
        for path in list(pods.iterdir()) if pods.is_dir() else []:
            if path.name not in live_pods:
                shutil.rmtree(path, ignore_errors=True)

    def remove_if_unused(self) -> None:
        """When the platform is taken down: remove everything, unless a pod still has a folder."""
        pods = self.folder / "pods"
        if not pods.is_dir() or not any(pods.iterdir()):
            shutil.rmtree(self.folder, ignore_errors=True)

    def remove_pod(self, pod_uid: str) -> None:
        shutil.rmtree(self.pod_dir(pod_uid), ignore_errors=True)


def open_share_dirs(data: Path) -> ShareDirs:
    """In memory where the machine allows it, else in the data folder, which is slower."""
    # A short name, however long the path of the data folder: the MPS daemon's sockets are in here, and the path of a
    # socket has a small limit.
    name = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:12]
    shared = Path(f"/dev/shm/aliquot-{os.geteuid()}-{name}")  # noqa: S108  # checked below
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        status = shared.lstat()
        # Any user may create a folder there: it must be a folder, and ours.
        if status.st_uid == os.geteuid() and shared.is_dir() and not shared.is_symlink():
            return ShareDirs(shared)
    except OSError:
        pass
    return ShareDirs(data / "gpushare")


def boot_id() -> str:
    """Empty where the kernel has none: then no file is ever taken to be from an earlier boot."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
