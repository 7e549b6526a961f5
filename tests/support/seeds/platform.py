"""A real platform for tests: `aliquot up` from the installed wheel or this environment, and a shell for its user."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.stores.process import ServerProcess
from support.waiting import wait_until

SECONDS = 60  # timeout of every wait on a busy machine; usually one second is enough
USER = "anna"  # the user that listings show
PREFIX = "/apis/aliquot.dev/v1"

# (pattern, replacement) for all that differs between two runs of the same commands: ages, and the gaps between columns,
# because a column is as wide as its widest cell.
VARYING = tuple(
    (re.compile(pattern, re.MULTILINE), name)
    for pattern, name in ((r"(?<=\s)\d+[smhd]\b", "<age>"), (r"(?<=\S)  +", "  "), (r" +$", ""))
)


@dataclass(frozen=True)
class CommandResult:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class JobInstance:
    """The identity of a running job, which stays the same until the job is stopped or restarted."""

    pod: str
    pid: int
    process_start: str
    restarts: int
    started_at: str


def normalize(text: str) -> str:
    """The text with placeholders for what differs between two runs."""
    for pattern, name in VARYING:
        text = pattern.sub(name, text)
    return text


class Platform:
    """A server with a data folder of its own, and a user with a home folder."""

    def __init__(self, programs: Path, folder: Path, *arguments: str, verb: str = "up") -> None:
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self._data = folder / "data"
        # No other variables: settings of the user who runs the tests must not change the output of a command.
        self.environment = {
            "PATH": os.pathsep.join((str(programs), os.environ["PATH"])),
            "HOME": str(self.home),
            "LOGNAME": USER,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "TERM": "xterm",
            "ALIQUOT_DATA_DIR": str(self._data),
        }
        self.server = ServerProcess(
            self._data, *arguments, environment=self.environment, python=str(programs / "python"), verb=verb
        )

    def up(self) -> Platform:
        self.server.start()
        return self

    def kill(self) -> None:
        """Kill the server with SIGKILL and start it again."""
        self.server.kill()
        self.server.start()

    def down(self) -> None:
        """Stop the server and its jobs."""
        if not self.server.ready():
            self.server.start()
        done = self.sh("aliquot down")
        assert done.status == 0, done
        self.server.stop()

    def sh(self, command: str, typed: str = "", **environment: str) -> CommandResult:
        """Run a line of shell, with `typed` as its standard input."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.home,
            env={**self.environment, **environment},
            input=typed,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    # --- what is so, asked of the server and the machine and not of the command under test

    def get(self, path: str) -> Any:
        """GET a path of the API: an object or a list, or None when it does not exist."""
        headers = {"Authorization": f"Bearer {self.server.token}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.server.url + path, headers=headers)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
            raise

    def job(self, name: str, project: str) -> Any:
        return self.get(f"{PREFIX}/namespaces/runai-{project}/workloads/{name}")

    def phase(self, name: str, project: str) -> str:
        job = self.job(name, project) or {}
        return str(job.get("status", {}).get("phase", ""))

    def wait_for_phase(self, name: str, project: str, *phases: str) -> None:
        wait_until(
            lambda: self.phase(name, project) in phases, f"{name} {'/'.join(phases)}; it is {self.job(name, project)}"
        )

    def wait_until_gone(self, name: str, project: str) -> None:
        """Wait until the job and its pod are gone; the pod may take some time to end, and has its GPUs until then."""
        wait_until(lambda: self.job(name, project) is None and not self._has_pod(name, project), f"{name} gone")

    def _has_pod(self, name: str, project: str) -> bool:
        pods = self.get(f"{PREFIX}/namespaces/runai-{project}/pods")["items"]
        return any(pod["metadata"]["name"] == f"{name}-0-0" for pod in pods)

    def submit(self, name: str, project: str, flags: str, *phases: str) -> None:
        """Submit a job and wait until it is in one of these phases; by default, Running."""
        done = self.sh(f"runai submit {name} -p {project} {flags}")
        assert done.status == 0, done
        self.wait_for_phase(name, project, *(phases or ("Running",)))

    def job_instances(self, except_jobs: Collection[str] = ()) -> dict[str, JobInstance]:
        """The running jobs by name, from their pods and processes; without `except_jobs`, which are ending."""
        running = {
            pod["metadata"]["name"].removesuffix("-0-0"): pod
            for pod in self.get(f"{PREFIX}/pods")["items"]
            if pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }
        return {name: self._instance(pod) for name, pod in running.items() if name not in except_jobs}

    def _instance(self, pod: Any) -> JobInstance:
        uid = pod["metadata"]["uid"]
        state = json.loads((self._data / "pods" / uid / "state.json").read_text())
        container = pod["status"]["containerStatuses"][0]
        return JobInstance(
            uid,
            state["pid"],
            start_of(state["pid"]),
            container.get("restartCount", 0),
            container["state"]["running"]["startedAt"],
        )


def start_of(pid: int) -> str:
    """The start time of a process. Together with the process id it identifies the process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
