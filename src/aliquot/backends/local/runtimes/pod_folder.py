"""What is kept on disk of a pod: <data>/pods/<uid>/.

spec.json       the launcher's orders, and the assignment: who it is and what it holds
lock            held by the pod's supervisor: held means alive
state.json      attempt, process numbers and start times; written before the pod may run
exit.N          exit status of attempt N
log             what all attempts printed, one after the other (see logfile.py); state.json says where each began
injected        files of ours that are shown to it, each below here at its own path
talk            what the pod and the platform tell each other (see talk.py)
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

OWN = ("work", "tmp", "home", "talk")


@dataclass(frozen=True, slots=True)
class Process:
    """The last attempt that was started."""

    attempt: int
    pid: int
    start_time: str
    collector: int
    collector_start: str
    started: float
    # Where in the log this attempt begins, and the one before it; None when there was none.
    log_start: int = 0
    previous_start: int | None = None

    @property
    def supervised(self) -> bool:
        return bool(self.start_time) and syscalls.start_time(self.pid) == self.start_time

    @property
    def collected(self) -> bool:
        """Whether everything it printed is in its log."""
        return not self.collector_start or syscalls.start_time(self.collector) != self.collector_start


class PodFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log"
        self.spec_file = path / "spec.json"
        self.talk = path / "talk"

    @property
    def uid(self) -> str:
        return self.path.name

    def prepare(self, owner: int | None, bashrc: str, host_name: str) -> None:
        """Make the folders; `owner` gets those that the pod may write to."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in OWN:
            if make(self.path / name, owner) and name == "home":
                _write(self.path / name / ".bashrc", bashrc, owner)
        _write(self.path / "hosts", f"127.0.0.1 localhost {host_name}\n::1 localhost\n")
        _write(self.path / "hostname", host_name + "\n")

    def injected(self, place: str) -> Path:
        """Where a file that the pod sees at this place is kept."""
        return self.path / "injected" / place.lstrip("/")

    def inject(self, file: File, text: str) -> Path:
        """Nobody's to write but ours."""
        path = self.injected(file.path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        path.write_text(text)
        path.chmod(0o755 if file.executable else 0o644)
        return path

    def volume(self, name: str, owner: int | None) -> Path:
        path = self.path / "volumes" / name
        path.parent.mkdir(exist_ok=True, mode=0o700)
        make(path, owner)
        return path

    def write_spec(self, spec: Json, assignment: PodAssignment) -> None:
        text = json.dumps({**spec, "ticket": asdict(assignment)})
        fresh = self.spec_file.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(text)
        fresh.rename(self.spec_file)

    def spec(self) -> Json | None:
        found: Json | None = _read(self.spec_file)
        return found

    def cgroups(self) -> list[Path]:
        """The control groups that were made for it, wherever the platform that did had its own."""
        return [Path(group["path"]) for group in (self.spec() or {}).get("cgroups", ())]

    def limited_group(self) -> Path | None:
        """The control group on which the driver limits its GPU memory."""
        found = (group["path"] for group in (self.spec() or {}).get("cgroups", ()) if group.get("needed"))
        return next(map(Path, found), None)

    def gpu_limits(self) -> list[CgroupLimit]:
        return [CgroupLimit(**limit) for limit in (self.spec() or {}).get("gpuLimits", ())]

    def assignment(self) -> PodAssignment | None:
        try:
            found = (self.spec() or {})["ticket"]
            return PodAssignment(**{**found, "shares": tuple(DeviceShare(**share) for share in found["shares"])})
        except (KeyError, TypeError):
            return None

    def process(self) -> Process | None:
        found = _read(self.path / "state.json")
        if found is None:
            return None
        return Process(
            attempt=found["attempt"],
            pid=found["pid"],
            start_time=found["startTime"],
            collector=found["collector"],
            collector_start=found["collectorStart"],
            started=found["started"],
            log_start=found.get("logStart", 0),
            previous_start=found.get("previousStart"),
        )

    def exit_status(self, attempt: int) -> tuple[int, float] | None:
        """Exit status and when it was written; None when the supervisor did not get to it."""
        path = self.path / f"exit.{attempt}"
        try:
            return int(path.read_text()), path.stat().st_mtime
        except (OSError, ValueError):
            return None

    def remove(self) -> None:
        # The spec goes last: while it is there the folder is found again and removed again.
        found = self.path.iterdir() if self.path.exists() else ()
        for entry in sorted(found, key=lambda entry: entry == self.spec_file):
            if entry.is_dir() and not entry.is_symlink():
                remove_tree(entry)
            else:
                entry.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def folders(root: Path) -> Iterator[PodFolder]:
    if root.is_dir():
        yield from (PodFolder(path) for path in sorted(root.iterdir()) if path.is_dir())


def make(path: Path, owner: int | None) -> bool:
    """A folder for a pod to write to; False when it is there already."""
    try:
        path.mkdir(mode=0o755)
    except FileExistsError:
        return False
    path.chmod(0o755)  # whatever the umask: others are kept out by the folder above
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
    _open_up(path)
    shutil.rmtree(path, ignore_errors=True)


def _open_up(path: Path) -> None:
    """A job may have made folders that not even their owner can empty; root can anyway."""
    if os.geteuid() == 0:
        return
    for place, names, _ in os.walk(path):
        for folder in (os.path.join(place, name) for name in names):
            if not os.path.islink(folder):
                os.chmod(folder, 0o700)
