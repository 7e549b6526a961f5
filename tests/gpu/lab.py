"""The GPU under test and tenants on it. A tenant is a container without a container runtime.

Lab       the GPU, the library, and a folder in memory for the files that tenants share
Tenant    limits, ledger and gate of one container; programs are started in it
Program   a started program and the communication with it (see tenant_program.py)
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import platform
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NATIVE = HERE.parent / "native"
sys.path.append(str(NATIVE))
cu = importlib.import_module("cu")

MIB = 1 << 20
LIBRARY, PRELOAD = "/usr/local/gpushare/libgpushare.so", "/etc/ld.so.preload"
LEDGER_BYTES, GATE_BYTES = 131072, 16384
# variables that would bypass the files of a container
PRIVATE = ("GPUSHARE_", "LD_PRELOAD", "CUDA_", "NVIDIA_VISIBLE", "NVIDIA_DRIVER_CAP")
BEGIN = f"import sys\nsys.path += [{str(HERE)!r}, {str(NATIVE)!r}]\nfrom tenant_program import *\n"


class ProgramFailed(Exception):
    """A program of the suite failed; the text is for the report."""


_started: list[Program] = []


class Program:
    """A program that prints lines of JSON and reads lines."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path, pidfile: Path | None = None) -> None:
        self.log, self.pidfile, self.buffer = log, pidfile, b""
        _started.append(self)
        with log.open("wb") as stderr:
            self.popen = subprocess.Popen(
                command, env=env, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )

    @property
    def pid(self) -> int:
        """The pid in the host's PID namespace."""
        if self.pidfile is None:
            return self.popen.pid
        deadline = time.monotonic() + 20
        while not self.pidfile.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return int(self.pidfile.read_text())

    def line(self, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        out = self.popen.stdout
        assert out is not None
        while b"\n" not in self.buffer:
            if not select.select([out], [], [], max(0, deadline - time.monotonic()))[0]:
                raise ProgramFailed(f"no output for {timeout:g} s")
            got = os.read(out.fileno(), 65536)
            if not got:
                raise ProgramFailed(f"ended with {self.popen.wait()}: {self.stderr_tail()}")
            self.buffer += got
        first, self.buffer = self.buffer.split(b"\n", 1)
        return first.decode(errors="replace")

    def receive(self, timeout: float = 120) -> dict[str, Any]:
        """The next report; skips other lines, which frameworks print."""
        while True:
            line = self.line(timeout)
            if line.startswith("{"):
                return dict(json.loads(line))

    def resume(self, word: object = "") -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{word}\n".encode())
        self.popen.stdin.flush()

    def resume_and_receive(self, word: object = "", timeout: float = 120) -> dict[str, Any]:
        self.resume(word)
        return self.receive(timeout)

    def stderr_tail(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " / ".join(lines[-3:])

    def kill(self) -> None:
        """Kills the process that uses the GPU, also when it is process 1 of a PID namespace."""
        if self.popen.poll() is None:
            os.kill(self.pid, 9)
        self.end()

    def end(self) -> int:
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        try:
            return self.popen.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            return self.popen.wait()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@dataclass
class Lab:
    library: Path
    without: frozenset[str] = frozenset()
    fake_driver: Path | None = None
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="gpu-suite-", dir="/dev/shm")))
    # for files that are executed: /dev/shm may be mounted noexec
    disk: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="gpu-suite-")))
    # facts about the GPU, set by `measure`
    uuid: str = ""
    total: int = 0
    context: int = 0
    sms: int = 0
    rounds: float = 1.0
    _nvml: Any = None
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def kill_programs(self) -> None:
        """Kills all programs: an item that failed must not affect the next one."""
        for program in _started:
            if program.popen.poll() is None:
                program.kill()
        _started.clear()

    def close(self) -> None:
        self.kill_programs()
        for folder in (self.folder, self.disk):
            shutil.rmtree(folder, ignore_errors=True)

    def fraction_mib(self, milli: int) -> int:
        """MiB of a fraction of the GPU, as the agent computes it."""
        return milli * self.total // (1000 * MIB)

    @property
    def small_limit(self) -> int:
        """MiB of a small limit on this GPU; 8192 on the large GPUs for which the bounds were chosen."""
        return 8192 if self.total > 64 << 30 else 2048

    @property
    def release_timeout(self) -> float:
        """Seconds within which memory of a dead process must be free; longer on the fake driver, on a busy machine."""
        return 9.0 if self.fake_driver else 1.0

    def environment(self, **more: str) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(PRIVATE)}
        if self.fake_driver:
            env |= self.minimal_environment() | {"GPU_SUITE_DRIVER": str(self.fake_driver)}
        return env | more

    def minimal_environment(self) -> dict[str, str]:
        """The smallest environment in which programs find the driver on this machine."""
        if self.fake_driver:
            return {"LD_LIBRARY_PATH": str(self.fake_driver), "FAKE_CARD": str(self.folder / "card")}
        probe = [sys.executable, "-IS", "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
        found_without = subprocess.run(probe, env={}, capture_output=True, check=False).returncode == 0
        return {} if found_without else {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}

    def file(self, suffix: str) -> Path:
        return self.folder / f"{next(self.numbers)}.{suffix}"

    def start(self, program: str, *args: object, **env: str) -> Program:
        """Starts a program without the library, on the host."""
        command = [sys.executable, "-c", BEGIN + textwrap.dedent(program), *map(str, args)]
        return Program(command, self.environment(**env), self.file("err"))

    def tenant(self, limit: int, **how: Any) -> Tenant:
        return Tenant(self, f"tenant-{next(self.numbers)}", limit, **how)

    def measure(self) -> None:
        text = """
        cuda = Cuda()
        nvml = Nvml()
        uuid = cuda.uuid()
        context, count = nvml.self_bytes(nvml.device(uuid)), c.c_int()
        cuda.call("cuDeviceGetAttribute", c.byref(count), SMS, 0)
        report(uuid=uuid, total=cuda.total(), context=context, sms=count.value, rounds=rounds_per_us(cuda))
        """
        with self.start(text) as program:
            facts = program.receive()
        self.uuid, self.total, self.context = facts["uuid"], facts["total"], facts["context"]
        self.sms, self.rounds = facts["sms"], facts["rounds"]

    def nvml(self) -> Any:
        if self._nvml is None:
            if self.fake_driver:
                os.environ["FAKE_CARD"] = str(self.folder / "card")
                # loaded by its full path first, so that it is found by name afterwards
                cu.c.CDLL(str(self.fake_driver / "libnvidia-ml.so.1"))
            self._nvml = cu.Nvml()
        return self._nvml

    def held(self, *programs: Program) -> int:
        """MiB that the driver holds for these programs, or for all processes, as seen from the host."""
        nvml = self.nvml()
        device = nvml.device(self.uuid)
        if self.fake_driver and any(program.pidfile for program in programs):
            # the fake driver ignores PID namespaces, so two processes may have the same pid
            return int(nvml.memory_v2(device).used) // MIB
        pids = {program.pid for program in programs}
        every = nvml.processes(device)
        return int(sum(held for pid, held in every.items() if not pids or pid in pids)) // MIB


@dataclass
class Tenant:
    lab: Lab
    name: str
    limit: int  # MiB
    mode: str = "timesharing"
    weight: int = 1000
    # folder of gate files; tenants that share the GPU by lease use the same folder
    gates: Path | None = None

    def __post_init__(self) -> None:
        self.folder = self.lab.folder / self.name
        self.folder.mkdir()
        self.ledger_path = self.folder / "ledger"
        zeros(self.ledger_path, LEDGER_BYTES)
        (self.folder / "preload").write_text(LIBRARY + "\n")
        own = Path(PRELOAD)
        if own.exists():
            (self.folder / "preload").write_text(own.read_text() + LIBRARY + "\n")
        amounts = (
            f"limit={self.limit * MIB} guaranteed={self.limit * MIB} weight={self.weight} context={self.lab.context}"
        )
        lines = ["gpushare 1", f"tenant {self.name}", f"mode {self.mode}", f"gpu {self.lab.uuid} {amounts}", "end", ""]
        (self.folder / "limits").write_text("\n".join(lines))
        if self.mode != "timesharing":
            self.gates = self.gates or self.folder
            if not self.gate_path.exists():
                zeros(self.gate_path, GATE_BYTES)

    @property
    def gate_path(self) -> Path:
        assert self.gates is not None
        return self.gates / self.lab.uuid

    @property
    def ledger(self) -> Any:
        return cu.Ledger(str(self.ledger_path))

    def ledger_mib(self) -> int:
        """MiB in the ledger's total."""
        return int(self.ledger.total()) // MIB

    def live_mib(self) -> int:
        """MiB in the slots of processes that are alive."""
        with self.ledger_path.open("rb") as file:
            return sum(bytes_ for slot, bytes_ in _slots(self.ledger) if _locked(file.fileno(), slot)) // MIB

    def command(self, command: list[str], pidfile: Path | None = None) -> list[str]:
        mounts = [
            (str(self.lab.library), LIBRARY, True),
            (str(self.folder / "limits"), "/run/gpushare/limits", True),
            (str(self.ledger_path), "/run/gpushare/ledger", False),
            (str(self.folder / "preload"), PRELOAD, True),
        ]
        if self.gates:
            mounts.append((str(self.gate_path), f"/run/gpushare/gate/{self.lab.uuid}", False))
        spec = json.dumps({"mounts": mounts, "pidfile": str(pidfile) if pidfile else None})
        return [sys.executable, "-IS", str(HERE / "container_exec.py"), spec, *command]

    def environment(self, **more: str) -> dict[str, str]:
        seen = {"NVIDIA_VISIBLE_DEVICES": self.lab.uuid, "CUDA_VISIBLE_DEVICES": self.lab.uuid}
        return self.lab.environment(**seen | more)

    def start(self, program: str, *args: object, own_pids: bool = False, env: dict[str, str] | None = None) -> Program:
        """Starts a Python program that has tenant_program.py imported; `env` is added to the environment."""
        words = [sys.executable, "-c", BEGIN + textwrap.dedent(program), *map(str, args)]
        pidfile = self.lab.file("pid") if own_pids else None
        return Program(self.command(words, pidfile), self.environment(**env or {}), self.lab.file("err"), pidfile)


def zeros(path: Path, size: int) -> None:
    path.write_bytes(bytes(size))
    path.chmod(0o666)


def _slots(ledger: Any) -> list[tuple[int, int]]:
    used = []
    for slot in range(256):
        (state,) = ledger.at("I", 4096 + 448 * slot)
        charged, overhead = ledger.at("2Q", 4096 + 448 * slot + 64)
        if state:
            used.append((slot, charged + overhead))
    return used


def _locked(fd: int, slot: int) -> bool:
    query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, (1 << 20) + slot, 1, 0)
    answer = fcntl.fcntl(fd, 36, query)  # F_OFD_GETLK
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


def default_library() -> Path:
    return ROOT / "src" / "aliquot" / "native" / f"libgpushare-{platform.machine()}.so"
