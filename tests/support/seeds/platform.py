"""The demo cluster as a person has it: `aliquot up` from the installed wheel, and a shell in a second terminal."""

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

SECONDS = 60  # for anything to happen on a busy machine; usually it takes one
USER = "anna"  # whom listings show
PREFIX = "/apis/aliquot.dev/v1"

# (what, by what): all that two runs of the same commands may differ in. A column is as wide as its widest cell, so the
# gaps between columns differ with the ages.
VARYING = tuple(
    (re.compile(pattern, re.MULTILINE), name)
    for pattern, name in ((r"(?<=\s)\d+[smhd]\b", "<age>"), (r"(?<=\S)  +", "  "), (r" +$", ""))
)


@dataclass(frozen=True)
class CommandResult:
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class JobInstance:
    """What stays the same as long as a job runs on: its pod, its process, how often it was started, and since when."""

    pod: str
    pid: int
    process_start: str
    restarts: int
    started_at: str


def normalize(text: str) -> str:
    for pattern, name in VARYING:
        text = pattern.sub(name, text)
    return text


class Platform:
    """A server on a folder of its own, and one person with a home folder of hers."""

    def __init__(self, programs: Path, folder: Path, *arguments: str, verb: str = "up") -> None:
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self._data = folder / "data"
        # Only what is named here: a setting of whoever runs the tests must not change what a command shows.
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
        """`kill -9`, and up again."""
        self.server.kill()
        self.server.start()

    def down(self) -> None:
        """Stop it with all its jobs."""
        if not self.server.ready():
            self.server.start()
        done = self.sh("aliquot down")
        assert done.status == 0, done
        self.server.stop()

    def sh(self, command: str, typed: str = "", **environment: str) -> CommandResult:
        """Run a line of shell, with what is typed as its input."""
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
        """An object or a list; None when there is none."""
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
        found = self.job(name, project) or {}
        return str(found.get("status", {}).get("phase", ""))

    def wait_for_phase(self, name: str, project: str, *phases: str) -> None:
        wait_until(
            lambda: self.phase(name, project) in phases, f"{name} {'/'.join(phases)}; it is {self.job(name, project)}"
        )

    def wait_until_gone(self, name: str, project: str) -> None:
        """With its pod, which may take some time to end and holds its GPUs until then."""
        wait_until(lambda: self.job(name, project) is None and not self._has_pod(name, project), f"{name} gone")

    def _has_pod(self, name: str, project: str) -> bool:
        pods = self.get(f"{PREFIX}/namespaces/runai-{project}/pods")["items"]
        return any(pod["metadata"]["name"] == f"{name}-0-0" for pod in pods)

    def submit(self, name: str, project: str, how: str, *phases: str) -> None:
        """Submit a job and wait until it is in one of these phases."""
        done = self.sh(f"runai submit {name} -p {project} {how}")
        assert done.status == 0, done
        self.wait_for_phase(name, project, *(phases or ("Running",)))

    def job_instances(self, but: Collection[str] = ()) -> dict[str, JobInstance]:
        """Every job that runs, by name, as its processes tell it; of those in `but`, which just end, nobody can say."""
        running = {
            pod["metadata"]["name"].removesuffix("-0-0"): pod
            for pod in self.get(f"{PREFIX}/pods")["items"]
            if pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }
        return {name: self._life(pod) for name, pod in running.items() if name not in but}

    def _life(self, pod: Any) -> JobInstance:
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
    """When a process began; with its number, what tells it from all others."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
