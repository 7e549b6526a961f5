"""A whole platform on the fake driver: `aliquot up` finds its GPUs as it finds real ones, and jobs use them.

There are two GPUs of 16384 MiB. A job mounts the driver from the host, as the container toolkit does, and runs a few
lines of Python that import `cu`; `cuda()` there is the GPU that the job was given.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

from aliquot.backends.local.runtimes import syscalls
from aliquot.gpu.injection import LIMITS
from aliquot.labels import DEVICES
from aliquot.units import MIB
from support.gpus.fake_driver import DRIVER_PATH, UUIDS, FakeDriverFiles
from support.seeds.platform import PREFIX, SECONDS, Platform
from support.stores.process import ServerProcess
from support.waiting import wait_until

PROJECT = "team-a"
KILLED = 137
# The interpreter itself: pods see it, but not every virtual environment.
PYTHON = str(Path(sys.executable).resolve())
START = """
import os, random, sys, threading, time
from cu import *

def cuda():
    # The fake driver does not read CUDA_VISIBLE_DEVICES. A GPU that was not given is refused.
    for index in range(2):
        gpu = Cuda(index, context=False)
        if gpu.uuid() in os.environ.get("NVIDIA_VISIBLE_DEVICES", gpu.uuid()):
            try:
                return Cuda(index)
            except CudaError as refused:
                print(index, refused, file=sys.stderr)
    sys.exit("no card")

def fill(gpu, step=2):
    # MiB that were allocated until the driver refused, and its error code.
    frees, code = gpu.fill(gpu.alloc, step * MIB)
    return step * len(frees), code

def hold():
    # Keeps the memory until stdin ends or the process is killed.
    sys.stdin.read()
"""


class Program:
    """A program that runs in a job, by `runai exec`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.errors = ""

    def read_words(self) -> list[str]:
        """The words of its next output line; fails when it ends without one."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise AssertionError(f"ended with {self.end()}: {self.errors}")
        return line.split()

    def write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_for_output(self) -> None:
        """Waits until it prints a line or ends."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> int:
        """Closes its input, which ends the program. Returns its exit status."""
        self.errors = self._process.communicate(timeout=120)[1]
        return self._process.returncode

    def killed(self) -> bool:
        """Waits until it ends; True when it was killed."""
        return self._process.wait(SECONDS) == KILLED

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


class Node(Platform):
    def __init__(self, folder: Path, machine: FakeDriverFiles, **environment: str) -> None:
        super().__init__(Path(sys.executable).parent, folder)
        self.machine = machine
        self.environment |= environment
        driver = machine.environment(str(machine.folder))
        del driver["PYTHONPATH"]
        allowed = ("--allow-host-path", str(machine.folder))
        self.server = ServerProcess(self._data, *allowed, environment={**self.environment, **driver})
        self._files = 0
        self._jobs: list[str] = []
        self._programs: list[Program] = []

    def up(self) -> Node:
        super().up()
        done = self.sh(f"aliquot project create {PROJECT} --gpu 2 --wait && runai project set {PROJECT}")
        assert done.status == 0, done
        return self

    @property
    def data(self) -> Path:
        return self._data

    # --- jobs

    def submit_job(
        self,
        name: str,
        how: str = "-g 0.5",
        *,
        command: str = "--command sleep --args infinity",
        phases: tuple[str, ...] = ("Running",),
    ) -> None:
        """Submits a job that mounts the driver, and waits until it is in one of these phases."""
        self._jobs.append(name)
        variables = " ".join(f"-e {key}={value}" for key, value in self.machine.environment().items())
        mount = f"--host-path path={self.machine.folder},mount={DRIVER_PATH},readwrite"
        self.submit(name, PROJECT, f"{how} --cpu 0.1 -i ubuntu --interactive {variables} {mount} {command}", *phases)

    def program(self, text: str) -> str:
        """The path of a program's file, as jobs see it."""
        self._files += 1
        file = self.machine.folder / f"program{self._files}.py"
        file.write_text(START + textwrap.dedent(text))
        return f"{DRIVER_PATH}/{file.name}"

    def start(self, job: str, program: str, before: str = "") -> Program:
        """`runai exec` of a program in a job; `before` precedes it in the job's shell."""
        return self.execute(job, f"exec {before} {PYTHON} {self.program(program)}")

    def execute(self, job: str, script: str) -> Program:
        command = f"exec runai exec {job} -p {PROJECT} -i -- sh -c {shlex.quote(script)}"
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.home,
            env=self.environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        self._programs.append(Program(process))
        return self._programs[-1]

    def run_program(self, job: str, program: str) -> list[str]:
        """Runs a program that ends by itself; returns the words of its first line."""
        started = self.start(job, program)
        words = started.read_words()
        assert started.end() == 0
        return words

    def clean(self) -> None:
        """Deletes all jobs and ends all programs."""
        for program in self._programs:
            program.close()
        for name in self._jobs:
            self.sh(f"runai delete {name} -p {PROJECT}")
        for name in self._jobs:
            self.wait_until_gone(name, PROJECT)
        self._programs, self._jobs = [], []

    # --- facts from outside the jobs

    def card(self, job: str) -> int:
        """The index of the GPU on which a job has a fraction."""
        pod = self.get(f"{PREFIX}/namespaces/runai-{PROJECT}/pods/{job}-0-0")
        (share,) = json.loads(pod["metadata"]["annotations"][DEVICES])
        return int(share["index"])

    def uid(self, job: str) -> str:
        return str(self.get(f"{PREFIX}/namespaces/runai-{PROJECT}/pods/{job}-0-0")["metadata"]["uid"])

    def held(self, job: str) -> dict[int, int]:
        """MiB by process of a job, as the driver reports them."""
        namespace = syscalls.pid_namespace(self.job_instances()[job].pid)
        return {pid: mib for pid, mib in self.process_memory().items() if _is_in(pid, namespace)}

    def limit(self, job: str) -> int:
        """The job's current limit in MiB."""
        spec = json.loads((self._data / "pods" / self.uid(job) / "spec.json").read_text())
        text = next(Path(file["source"]).read_text() for file in spec["injected"] if file["place"] == LIMITS)
        match = re.search(r"limit=(\d+)", text)
        assert match, text
        return int(match[1]) // MIB

    def events(self, job: str) -> str:
        """The job's events, as its user sees them."""
        return self.sh(f"runai describe job {job} -p {PROJECT}").out

    def wait_for_event(self, job: str, pattern: str) -> None:
        """Waits until an event matches."""
        output = ""

        def matches() -> bool:
            nonlocal output
            output = self.events(job)
            return re.search(pattern, output) is not None

        try:
            wait_until(matches, pattern)
        except AssertionError:
            raise AssertionError(f"no {pattern} in\n{output}") from None

    def process_memory(self) -> dict[int, int]:
        """MiB by process of the machine, as the driver reports them."""
        query = (
            "n = Nvml(); print_line(*(w for u in sys.argv[1:] for p in n.processes(n.device(u)).items() for w in p))"
        )
        command = [PYTHON, "-c", f"from cu import *; {query}", *UUIDS]
        environment = {**os.environ, **self.machine.environment(str(self.machine.folder))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        words = [int(word) for word in done.stdout.split()]
        return {pid: used // MIB for pid, used in zip(words[::2], words[1::2], strict=True)}


def _is_in(pid: int, namespace: str) -> bool:
    while pid > 1:
        if syscalls.pid_namespace(pid) == namespace:
            return True
        pid = syscalls.parent(pid)
    return False
