"""What is stored on disk of a pod: <data>/pods/<uid>/.

spec.json       the launch spec, which the launcher reads, and the pod's assignment (key `ticket`)
lock            held by the pod's supervisor: held means alive
state.json      attempt, pids and start times; written before the pod may run
exit.N          exit status of attempt N
log             the output of all attempts, one after the other (see log_file.py); state.json has their offsets
injected        files that are injected into the pod, each below here at its own path
talk            preemption notice and save reports (see preemption_files.py)
work, tmp, home, volumes    the pod's own files: /workload, /tmp, /root and emptyDir volumes
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aliquot.api import DeviceShare, Json
from aliquot.backends.local.runtime import PodAssignment
from aliquot.backends.local.runtimes import syscalls
from aliquot.gpu.injection import CgroupLimit, File

POD_WRITABLE = ("work", "tmp", "home", "talk")


@dataclass(frozen=True, slots=True)
class Process:
    """The last attempt that was started."""

    attempt: int
    pid: int
    start_time: str
    collector: int
    collector_start: str
    started: float
    # Log offsets at which this attempt and the one before begin; None when there was none before.
    log_start: int = 0
    previous_start: int | None = None

    @property
    def supervised(self) -> bool:
        return bool(self.start_time) and syscalls.start_time(self.pid) == self.start_time

    @property
    def collected(self) -> bool:
        """Whether all output of the pod is in its log."""
        return not self.collector_start or syscalls.start_time(self.collector) != self.collector_start


class PodFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log"
        self.spec_file = path / "spec.json"
        self.preemption_dir = path / "talk"

    @property
    def uid(self) -> str:
        return self.path.name

    def prepare(self, owner: int | None, bashrc: str, host_name: str) -> None:
        """Create the folders; `owner` gets those that the pod may write to."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in POD_WRITABLE:
            if make_folder(self.path / name, owner) and name == "home":
                _write(self.path / name / ".bashrc", bashrc, owner)
        _write(self.path / "hosts", f"127.0.0.1 localhost {host_name}\n::1 localhost\n")
        _write(self.path / "hostname", host_name + "\n")

    def injected(self, pod_path: str) -> Path:
        """Where a file that the pod sees at this path is stored."""
        return self.path / "injected" / pod_path.lstrip("/")

    def inject(self, file: File, text: str) -> Path:
        """Store a file that only the platform can write."""
        path = self.injected(file.path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        path.write_text(text)
        path.chmod(0o755 if file.executable else 0o644)
        return path

    def volume(self, name: str, owner: int | None) -> Path:
        path = self.path / "volumes" / name
        path.parent.mkdir(exist_ok=True, mode=0o700)
        make_folder(path, owner)
        return path

    def write_spec(self, spec: Json, assignment: PodAssignment) -> None:
        text = json.dumps({**spec, "ticket": asdict(assignment)})
        temporary = self.spec_file.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(text)
        temporary.rename(self.spec_file)

    def spec(self) -> Json | None:
        spec: Json | None = _read(self.spec_file)
        return spec

    def cgroups(self) -> list[Path]:
        """The control groups of the pod, wherever the platform that created them had its own."""
        return [Path(group["path"]) for group in (self.spec() or {}).get("cgroups", ())]

    def limited_group(self) -> Path | None:
        """The control group on which the driver limits the pod's GPU memory."""
        paths = (group["path"] for group in (self.spec() or {}).get("cgroups", ()) if group.get("needed"))
        return next(map(Path, paths), None)

    def gpu_limits(self) -> list[CgroupLimit]:
        return [CgroupLimit(**limit) for limit in (self.spec() or {}).get("gpuLimits", ())]

    def assignment(self) -> PodAssignment | None:
        try:
            stored = (self.spec() or {})["ticket"]
            return PodAssignment(**{**stored, "shares": tuple(DeviceShare(**share) for share in stored["shares"])})
        except (KeyError, TypeError):
            return None

    def process(self) -> Process | None:
        state = _read(self.path / "state.json")
        if state is None:
            return None
        return Process(
            attempt=state["attempt"],
            pid=state["pid"],
            start_time=state["startTime"],
            collector=state["collector"],
            collector_start=state["collectorStart"],
            started=state["started"],
            log_start=state.get("logStart", 0),
            previous_start=state.get("previousStart"),
        )

    def exit_status(self, attempt: int) -> tuple[int, float] | None:
        """Exit status and when it was written; None when the supervisor was killed before."""
        path = self.path / f"exit.{attempt}"
        try:
            return int(path.read_text()), path.stat().st_mtime
        except (OSError, ValueError):
            return None

    def remove(self) -> None:
        # The spec is removed last: while it exists, the next platform finds the folder and removes it again.
        entries = self.path.iterdir() if self.path.exists() else ()
        for entry in sorted(entries, key=lambda entry: entry == self.spec_file):
            if entry.is_dir() and not entry.is_symlink():
                remove_tree(entry)
            else:
                entry.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def folders(root: Path) -> Iterator[PodFolder]:
    if root.is_dir():
        yield from (PodFolder(path) for path in sorted(root.iterdir()) if path.is_dir())


def make_folder(path: Path, owner: int | None) -> bool:
    """Create a folder that a pod may write to; False when it exists already."""
    try:
        path.mkdir(mode=0o755)
    except FileExistsError:
        return False
    path.chmod(0o755)  # whatever the umask; the folder above keeps other users out
    if owner is not None:
        os.chown(path, owner, owner)
    return True


def _write(path: Path, text: str, owner: int | None = None) -> None:
    path.write_text(text)
    path.chmod(0o644)
    if owner is not None:
        os.chown(path, owner, owner)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def remove_tree(path: Path) -> None:
    _make_removable(path)
    shutil.rmtree(path, ignore_errors=True)


def _make_removable(path: Path) -> None:
    """A job may have created folders that not even their owner can empty; root can anyway."""
    if os.geteuid() == 0:
        return
    for parent, names, _ in os.walk(path):
        for folder in (os.path.join(parent, name) for name in names):
            if not os.path.islink(folder):
                os.chmod(folder, 0o700)
