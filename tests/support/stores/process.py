"""A server in a process of its own, which tests may kill at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from aliquot.store.drivers.rest import RestDriver
from aliquot.store.http.transport import Endpoint, Timeouts

START_SECONDS = 180  # on a very busy machine; about one on an idle one


class ServerProcess:
    """`aliquot up`, or another serving command, on a data folder. Restarts keep the port."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        port: int = 0,
        environment: dict[str, str] | None = None,
        python: str = sys.executable,
        verb: str = "up",
    ) -> None:
        self.folder = folder
        self.port = port
        self._python = python
        self._verb = verb
        self._arguments = arguments
        self._verb = verb
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def fell(self) -> bool:
        """Whether the process ended by itself with an error."""
        return self._process is not None and self._process.poll() not in (None, 0, -signal.SIGKILL)

    @property
    def token(self) -> str:
        return (self.folder / "admin.token").read_text().strip()

    @property
    def log(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.log").read_text()

    def spawn(self) -> subprocess.Popen[bytes]:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        command = [
            self._python, "-m", "aliquot.cli.main", self._verb,
            "--data-dir", str(self.folder), "--port", str(self.port), *self._arguments,
        ]  # fmt: skip
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        self.starts += 1
        return self._process

    def start(self) -> ServerProcess:
        process = self.spawn()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise AssertionError(f"the server ended with {process.returncode}:\n{self.log[-2000:]}")
            if self._announced() and self.ready():
                return self
            time.sleep(0.02)
        raise AssertionError(f"the server was not ready in time:\n{self.log[-2000:]}")

    def _announced(self) -> bool:
        try:
            server = json.loads((self.folder / "server.json").read_text())
        except (OSError, ValueError):
            return False
        if server["pid"] != self.pid:
            return False
        self.port = int(server["url"].rpartition(":")[2])
        return True

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.end(signal.SIGKILL)

    def stop(self) -> int:
        return self.end(signal.SIGTERM)

    def end(self, how: signal.Signals) -> int:
        """Sends a signal and returns the exit status."""
        if self._process is None:
            return 0
        self._process.send_signal(how)
        return self._process.wait(30)

    def down(self) -> int:
        """Runs `aliquot down`, also after a kill, so that no job is left; returns its exit status."""
        if not self.ready():
            self.kill()
            self.start()
        command = [self._python, "-m", "aliquot.cli.main", "down", "--data-dir", str(self.folder)]
        ended = subprocess.run(command, timeout=120, check=False, env=self._environment).returncode
        self.stop()
        return ended

    def driver(self, timeouts: Timeouts | None = None) -> RestDriver:
        token = self.token

        async def read_token() -> str:
            return token

        return RestDriver(Endpoint(self.url, token=read_token), timeouts=timeouts)
