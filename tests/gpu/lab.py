"""The card under test, and tenants on it: containers for our purposes, without a container runtime.

Lab       the card, the library, and a folder in memory for what the tenants share
Tenant    limits, ledger and gate of one container; programs are started in it
Program   a started program, and the talk with it (see inside.py)
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
# what would reach past the files that a container is given
PRIVATE = ("GPUSHARE_", "LD_PRELOAD", "CUDA_", "NVIDIA_VISIBLE", "NVIDIA_DRIVER_CAP")
BEGIN = f"import sys\nsys.path += [{str(HERE)!r}, {str(NATIVE)!r}]\nfrom inside import *\n"


class Broken(Exception):
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
        """As this machine counts processes."""
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
                raise Broken(f"said nothing for {timeout:g} s")
            got = os.read(out.fileno(), 65536)
            if not got:
                raise Broken(f"ended with {self.popen.wait()}: {self.last_words()}")
            self.buffer += got
        first, self.buffer = self.buffer.split(b"\n", 1)
        return first.decode(errors="replace")

    def hear(self, timeout: float = 120) -> dict[str, Any]:
        """What it tells next; other lines (frameworks write what they like) are passed over."""
        while True:
            line = self.line(timeout)
            if line.startswith("{"):
                return dict(json.loads(line))

    def go(self, word: object = "") -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{word}\n".encode())
        self.popen.stdin.flush()

    def after(self, word: object = "", timeout: float = 120) -> dict[str, Any]:
        self.go(word)
        return self.hear(timeout)

    def last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " / ".join(lines[-3:])

    def kill(self) -> None:
        """At once, whichever process of the two it is that has the GPU."""
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
    # for files that are run: memory may be mounted so that nothing in it can be
    disk: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="gpu-suite-")))
    # of the card, filled by `measure`
    uuid: str = ""
    total: int = 0
    context: int = 0
    sms: int = 0
    rounds: float = 1.0
    _nvml: Any = None
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def sweep(self) -> None:
        """End what is left of programs: an item that broke off must not disturb the next."""
        for program in _started:
            if program.popen.poll() is None:
                program.kill()
        _started.clear()

    def close(self) -> None:
        self.sweep()
        for folder in (self.folder, self.disk):
            shutil.rmtree(folder, ignore_errors=True)

    def part(self, milli: int) -> int:
        """MiB of a part of the card, as the agent computes it."""
        return milli * self.total // (1000 * MIB)

    @property
    def small(self) -> int:
        """MiB of a limit that is small on this card; 8192 on those that the bounds were written for."""
        return 8192 if self.total > 64 << 30 else 2048

    @property
    def soon(self) -> float:
        """Seconds in which what the dead held must be free; the fake driver is for machines that may be busy."""
        return 9.0 if self.fake_driver else 1.0

    def environment(self, **more: str) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(PRIVATE)}
        if self.fake_driver:
            env |= self.bare() | {"GPU_SUITE_DRIVER": str(self.fake_driver)}
        return env | more

    def bare(self) -> dict[str, str]:
        """The emptiest environment in which this machine's programs find the driver."""
        if self.fake_driver:
            return {"LD_LIBRARY_PATH": str(self.fake_driver), "FAKE_CARD": str(self.folder / "card")}
        look = [sys.executable, "-IS", "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
        found = subprocess.run(look, env={}, capture_output=True, check=False).returncode == 0
        return {} if found else {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}

    def file(self, suffix: str) -> Path:
        return self.folder / f"{next(self.numbers)}.{suffix}"

    def start(self, program: str, *args: object, **env: str) -> Program:
        """A program without the library: as on the machine itself."""
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
        tell(uuid=uuid, total=cuda.total(), context=context, sms=count.value, rounds=rounds_per_us(cuda))
        """
        with self.start(text) as program:
            found = program.hear()
        self.uuid, self.total, self.context = found["uuid"], found["total"], found["context"]
        self.sms, self.rounds = found["sms"], found["rounds"]

    def nvml(self) -> Any:
        if self._nvml is None:
            if self.fake_driver:
                os.environ["FAKE_CARD"] = str(self.folder / "card")
                # by its full path first; then it is found by name, being loaded already
                cu.c.CDLL(str(self.fake_driver / "libnvidia-ml.so.1"))
            self._nvml = cu.Nvml()
        return self._nvml

    def held(self, *programs: Program) -> int:
        """MiB that the driver holds for these programs, or for everybody, as seen from outside any tenant."""
        nvml = self.nvml()
        device = nvml.device(self.uuid)
        if self.fake_driver and any(program.pidfile for program in programs):
            # it knows a process by the number that it has for itself, so two of them may have the same
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
    # of gate files; tenants that share the card by lease have the same
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

    def counted(self) -> int:
        """MiB in the ledger's total."""
        return int(self.ledger.total()) // MIB

    def living(self) -> int:
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
        return [sys.executable, "-IS", str(HERE / "enter.py"), spec, *command]

    def environment(self, **more: str) -> dict[str, str]:
        seen = {"NVIDIA_VISIBLE_DEVICES": self.lab.uuid, "CUDA_VISIBLE_DEVICES": self.lab.uuid}
        return self.lab.environment(**seen | more)

    def start(self, program: str, *args: object, own_pids: bool = False, env: dict[str, str] | None = None) -> Program:
        """Python text with inside.py at hand; `env` is added to the environment."""
        words = [sys.executable, "-c", BEGIN + textwrap.dedent(program), *map(str, args)]
        pidfile = self.lab.file("pid") if own_pids else None
        return Program(self.command(words, pidfile), self.environment(**env or {}), self.lab.file("err"), pidfile)


def zeros(path: Path, size: int) -> None:
    path.write_bytes(bytes(size))
    path.chmod(0o666)


def _slots(ledger: Any) -> list[tuple[int, int]]:
    found = []
    for slot in range(256):
        (state,) = ledger.at("I", 4096 + 448 * slot)
        charged, overhead = ledger.at("2Q", 4096 + 448 * slot + 64)
        if state:
            found.append((slot, charged + overhead))
    return found


def _locked(fd: int, slot: int) -> bool:
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, (1 << 20) + slot, 1, 0)
    answer = fcntl.fcntl(fd, 36, asked)  # F_OFD_GETLK
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


def default_library() -> Path:
    return ROOT / "src" / "aliquot" / "native" / f"libgpushare-{platform.machine()}.so"
