"""Where the limits and ledgers of pods are kept: in memory, one folder per pod, and the gates that they share.

    begin    at the platform's start: what is from before the machine's last start is of nobody
    mend     before a pod starts: a ledger that the library would refuse is made anew
    sweep    once it is known who is there: folders of others go
    leave    when the platform is taken down

Each may be cut off at any point and is done again the next time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Container
from pathlib import Path

from aliquot.gpu import ledger

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class ShareDirs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, pod_uid: str) -> Path:
        return self.folder / "pods" / os.path.basename(pod_uid)

    @property
    def gates(self) -> Path:
        return self.folder / "gates"

    def begin(self, boot: str) -> None:
        """`boot` names the machine's last start. Nothing that was alive before it can be now."""
        self._close()
        if not boot:
            return
        said = self.folder / "boot"
        before = said.read_text() if said.exists() else boot
        if before != boot:
            for place in ("pods", "gates", "mps"):
                shutil.rmtree(self.folder / place, ignore_errors=True)
            self._close()
        # Last, so that being killed before it means to begin again.
        fresh = said.with_suffix(".new")
        fresh.write_text(boot)
        fresh.rename(said)

    def _close(self) -> None:
        """What is of one pod is nobody else's to see; but servers of MPS run as the pods' users, and pass by."""
        for place, mode in ((self.folder, 0o711), (self.folder / "pods", 0o700), (self.folder / "gates", 0o700)):
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(mode)

    def mend(self, pod_uid: str, boot: str) -> None:
        """Nothing of the pod is alive. What it has left in its ledger must not keep it from starting again."""
        path = self.of(pod_uid) / "ledger"
        if ledger.is_damaged(path, pod_uid, boot):
            path.unlink(missing_ok=True)

    def sweep(self, living: Container[str]) -> None:
        pods = self.folder / "pods"
        for path in list(pods.iterdir()) if pods.is_dir() else []:
            if path.name not in living:
                shutil.rmtree(path, ignore_errors=True)

    def leave(self) -> None:
        """The platform is taken down: when nobody is left, nothing is."""
        pods = self.folder / "pods"
        if not pods.is_dir() or not any(pods.iterdir()):
            shutil.rmtree(self.folder, ignore_errors=True)

    def remove(self, pod_uid: str) -> None:
        shutil.rmtree(self.of(pod_uid), ignore_errors=True)


def open_share_dirs(data: Path) -> ShareDirs:
    """In memory where the machine lets us, else in the data folder: slower, but as right."""
    # Short, however long the path of the data folder: sockets of the MPS daemon lie in it, and theirs may not be long.
    name = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:12]
    shared = Path(f"/dev/shm/aliquot-{os.geteuid()}-{name}")  # noqa: S108  # checked below
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        found = shared.lstat()
        # Anybody may make a folder there: it must be one, and our own.
        if found.st_uid == os.geteuid() and shared.is_dir() and not shared.is_symlink():
            return ShareDirs(shared)
    except OSError:
        pass
    return ShareDirs(data / "gpushare")


def boot_id() -> str:
    """Empty where the kernel does not say: then nothing is ever taken for older than the machine's last start."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
