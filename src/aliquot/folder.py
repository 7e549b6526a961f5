"""The data folder of an embedded platform. It contains:

    aliquot.db     the store
    admin.token    the administrator's token, mode 0600
    server.json    address and process id of the running server
    lock           locked by the one process that serves the folder
    stop-jobs      if it exists, the server stops all jobs when it ends (`aliquot down`)

The agent keeps the folders of its pods there too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aliquot import __version__, units
from aliquot.errors import Conflict, Invalid, OutOfSpace, PlatformError

SERVER_FILE = "server.json"
TOKEN_FILE = "admin.token"  # noqa: S105  # a file name


class DataFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / "aliquot.db"
        self.token = path / TOKEN_FILE
        self.server = path / SERVER_FILE
        self._stop_jobs = path / "stop-jobs"

    def prepare(self) -> None:
        """Creates the folder; only its owner may enter it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except FileExistsError:
            raise Invalid(f"--data-dir: {self.path} is a file", hint="name a folder") from None
        except NotADirectoryError:
            raise Invalid(f"--data-dir: a part of {self.path} is a file", hint="name a folder") from None
        except OSError as exc:
            raise unusable(self.path, exc) from exc

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder; `Conflict` names the process that has it. The kernel unlocks it when this process ends."""
        try:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise unusable(self.path, exc) from exc
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._already_served() from None
            yield
        finally:
            os.close(lock)

    def _already_served(self) -> Conflict:
        server = running_server(self.path)
        where = f" by process {server.pid} at {server.url}" if server else " by another process that is starting"
        return Conflict(
            f"{self.path} is already served{where}",
            hint="use that one, `aliquot down` it, or choose another --data-dir",
        )

    def write_server_file(self, url: str, flavour: str, now: float) -> None:
        pid = os.getpid()
        facts = {
            "url": url,
            "pid": pid,
            # A pid may be reused by another process; pid and start time together are unique.
            "startTime": start_time(pid),
            "version": __version__,
            "flavour": flavour,
            "started": units.timestamp_text(int(now)),
        }
        self._write(self.server, json.dumps(facts, indent=2) + "\n", 0o644)

    def stop_jobs(self, wanted: bool) -> None:
        """Sets whether the server stops all jobs when it ends. Otherwise they run on and the next start adopts them."""
        if wanted:
            self._write(self._stop_jobs, "", 0o600)
        else:
            self._stop_jobs.unlink(missing_ok=True)

    @property
    def jobs_must_stop(self) -> bool:
        return self._stop_jobs.exists()

    def remove_server_file(self) -> None:
        self.server.unlink(missing_ok=True)

    def read_token(self) -> str | None:
        try:
            return self.token.read_text().strip() or None
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise unusable(self.token, exc) from exc

    def write_token(self, text: str) -> None:
        self._write(self.token, text + "\n", 0o600)

    def _sync(self) -> None:
        """A renamed file is durable only once its folder is synced."""
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _write(self, path: Path, text: str, mode: int) -> None:
        """Replaces the file atomically. It is on the disk when this returns."""
        try:
            handle, name = tempfile.mkstemp(dir=self.path, prefix=f".{path.name}.")  # 0600 from the start
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(text)
                    file.flush()
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                os.rename(name, path)
                self._sync()
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as exc:
            raise unusable(path, exc) from exc


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The contents of server.json. The server that wrote it may have been killed: see `alive`."""

    url: str
    pid: int
    version: str = ""
    started: str = ""
    # Tells this process from a later one with the same pid.
    start_time: str = ""
    flavour: str = ""  # embedded or kubernetes

    @property
    def alive(self) -> bool:
        current = start_time(self.pid)
        return bool(current) and (not self.start_time or current == self.start_time)


def running_server(folder: Path) -> RunningServer | None:
    """The server named by the folder's server.json; None where there is none or it cannot be read."""
    try:
        data = json.loads((folder / SERVER_FILE).read_text())
        return RunningServer(
            url=str(data["url"]),
            pid=int(data["pid"]),
            version=str(data.get("version", "")),
            started=str(data.get("started", "")),
            start_time=str(data.get("startTime", "")),
            flavour=str(data.get("flavour", "")),
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat; empty if there is no such process or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The second field is the program's name in brackets, and may itself contain spaces and brackets.
    return text.rpartition(")")[2].split()[19]


def unusable(path: Path, exc: OSError) -> PlatformError:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfSpace(f"the disk of {path} is full", hint="free some space and start again")
    return Invalid(
        f"{path} cannot be used: {(exc.strerror or str(exc)).lower()}",
        hint="check its owner and mode, or choose another --data-dir",
    )
