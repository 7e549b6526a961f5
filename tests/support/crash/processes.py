"""What really runs: pods as the kernel and their folders show them, without asking the platform.

A look takes time, and pods come and go meanwhile. So everything that was seen is looked at a second time, and only
what is still there counts: all of it was alive together, at the moment between both looks.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.backends.local.runtimes import syscalls
from aliquot.backends.local.runtimes.pod_folder import PodFolder, folders
from aliquot.units import GPU

_SUPERVISOR = b"aliquot-pod"  # the name of a pod's first process


@dataclass(frozen=True, slots=True)
class PodProcess:
    """The first process of a pod."""

    uid: str
    job: tuple[str, str]  # project and name
    pid: int
    start_time: str

    @property
    def alive(self) -> bool:
        return syscalls.start_time(self.pid) == self.start_time


@dataclass
class PodProcessMonitor:
    """Checks the processes of the pods of one data folder, and remembers every process it has seen."""

    data: Path
    processes: dict[str, PodProcess] = field(default_factory=dict)  # by pod uid: every pod ever seen alive
    collectors: dict[int, str] = field(default_factory=dict)  # log writers: start time by pid
    checks: int = 0
    most_alive: int = 0  # most pods alive at the same time
    shared: int = 0  # checks that found a device with more than one pod

    def check(self) -> dict[str, PodProcess]:
        """The pods that are alive now. Fails when one runs twice, or a device is overcommitted."""
        alive = {main.uid: main for main in self._scan() if main.alive}
        self.checks += 1
        self.most_alive = max(self.most_alive, len(alive))
        jobs = Counter(main.job for main in alive.values())
        assert not [job for job, count in jobs.items() if count > 1], f"two pods of one job: {jobs}"
        for uid, main in alive.items():
            assert self.processes.setdefault(uid, main) == main, f"pod {uid} was started again"
        self._check_shares(alive)
        return alive

    def _scan(self) -> list[PodProcess]:
        """The first process of each pod, from one pass over /proc."""
        by_pod: dict[str, list[PodProcess]] = defaultdict(list)
        for pid in syscalls.pids():
            main = _main(pid)
            if main is not None and (main.uid in self.processes or (self.data / "pods" / main.uid).is_dir()):
                by_pod[main.uid].append(main)
        for processes in by_pod.values():
            still = [main for main in processes if main.alive]
            assert len(still) <= 1, f"a pod runs twice: {still}"
        return [processes[0] for processes in by_pod.values() if len(processes) == 1]

    def _check_shares(self, alive: dict[str, PodProcess]) -> None:
        """Checks the shares of the pods that are alive, from the agent's files in their folders."""
        allocated: Counter[tuple[str, int]] = Counter()
        pods: Counter[tuple[str, int]] = Counter()
        for folder in folders(self.data / "pods"):
            assignment, process = folder.assignment(), folder.process()
            main = alive.get(folder.uid)
            if main is None or assignment is None or process is None:
                continue
            self.collectors[process.collector] = process.collector_start
            assert (process.pid, process.start_time) == (main.pid, main.start_time), (
                "the agent recorded another process"
            )
            assert process.attempt == 0, f"pod {assignment.name} was restarted"
            for share in assignment.shares:
                allocated[assignment.node, share.index] += share.milli
                pods[assignment.node, share.index] += 1
        over = {device: milli for device, milli in allocated.items() if milli > GPU}
        assert not over, f"more than a whole device is allocated: {over}"
        self.shared += any(count > 1 for count in pods.values())

    def surviving_processes(self) -> list[str]:
        """The processes alive of all pods ever seen, and processes whose command names the data folder."""
        pods = [f"pod {main.uid} ({'/'.join(main.job)})" for main in self.processes.values() if main.alive]
        logs = [
            f"log writer {pid}" for pid, start in self.collectors.items() if start and syscalls.start_time(pid) == start
        ]
        folder = os.fsencode(self.data)
        return pods + logs + [f"process {pid}" for pid in syscalls.pids() if folder in _read(pid, "cmdline")]

    def folder(self, uid: str) -> PodFolder:
        return PodFolder(self.data / "pods" / uid)


def _main(pid: int) -> PodProcess | None:
    env = _environment(pid)
    uid = env.get("ALIQUOT_POD", "")
    if not uid or _SUPERVISOR not in _read(pid, "cmdline").split(b"\0"):
        return None
    if _environment(_parent(pid)).get("ALIQUOT_POD") == uid:
        return None  # a child that is about to become the command
    start = syscalls.start_time(pid)
    return PodProcess(uid, (env.get("RUNAI_PROJECT", ""), env.get("RUNAI_JOB_NAME", "")), pid, start) if start else None


def _environment(pid: int) -> dict[str, str]:
    pairs = (entry.decode(errors="replace").partition("=") for entry in _read(pid, "environ").split(b"\0"))
    return {name: value for name, _, value in pairs}


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
