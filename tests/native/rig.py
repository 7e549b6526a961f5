"""Builds the sharing library and the fake driver once per test run, and runs programs with both.

`Rig.python` runs a few lines of Python in a new interpreter: `cu` is imported, the library is preloaded as in a
container, and the fake driver takes the place of the real one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from support.crash.disk import need

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "native" / "gpushare"
MIB = 1 << 20
CONTEXT = 518  # MiB, as measured on an H200
FLAGS = ["-std=gnu11", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-pthread"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]


def compile_library(out: Path, sources: list[Path], *flags: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", *FLAGS, *flags, f"-I{SOURCE}", *sources, "-ldl", "-o", out], check=True, timeout=300)


def build(into: Path) -> Path:
    """Builds all libraries once; the other test processes wait for the first."""
    need(shutil.which("cc") is not None, "install a C compiler to run the tests of the sharing library")
    into.mkdir(parents=True, exist_ok=True)
    with (into / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (into / "done").exists():
            for name, flags in (("plain", ["-O1"]), ("sanitized", ["-O1", *SANITIZE])):
                library = sorted(SOURCE.glob("*.c"))
                compile_library(into / name / "libgpushare.so", library, *flags, "-DGPUSHARE_TEST", "-Wl,-Bsymbolic")
            card = HERE / "card.c"
            driver = [HERE / f"fake_{part}.c" for part in ("cuda", "memory", "graph")]
            soname = "-Wl,-soname,"
            compile_library(into / "libcuda.so.1", [*driver, card], "-O1", soname + "libcuda.so.1")
            compile_library(
                into / "libnvidia-ml.so.1", [HERE / "fake_nvml.c", card], "-O1", soname + "libnvidia-ml.so.1"
            )
            (into / "done").touch()
    return into


def sanitizer() -> str:
    paths = [
        subprocess.check_output(["cc", f"-print-file-name=lib{n}.so"], text=True).strip() for n in ("asan", "ubsan")
    ]
    return " ".join(str(Path(f).resolve()) for f in paths)


@dataclass
class Result:
    out: str
    err: str
    code: int


@dataclass
class Rig:
    """One container on the fake driver's GPUs. The folder holds the GPUs' state, the ledger and the gates."""

    built: Path
    folder: Path
    sanitized: bool = False
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def environment(self, limit: int | None = 8192, preload: bool = True, **more: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUSHARE_", "FAKE_", "LD_"))}
        env |= {"LD_LIBRARY_PATH": str(self.built), "FAKE_CARD": str(self.folder / "card"), "PYTHONPATH": str(HERE)}
        if preload:
            library = self.built / ("sanitized" if self.sanitized else "plain") / "libgpushare.so"
            env["LD_PRELOAD"] = f"{sanitizer()} {library}" if self.sanitized else str(library)
            env["GPUSHARE_FOLDER"] = str(self.folder / "absent")
            env["GPUSHARE_LEDGER"] = str(self.ledger)
            env["GPUSHARE_GATE"] = str(self.folder)
        if self.sanitized:
            env["ASAN_OPTIONS"] = "detect_leaks=0:verify_asan_link_order=0"
        if limit is not None:
            env["GPUSHARE_LIMIT_MIB"] = str(limit)
        return env | self.extra | more

    def start(self, program: str, *args: object, **environment: object) -> subprocess.Popen[str]:
        text = "from cu import *\n" + textwrap.dedent(program)
        return subprocess.Popen(
            [sys.executable, "-c", text, *map(str, args)],
            env=self.environment(**environment),  # type: ignore[arg-type]  # passed on unchanged
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def try_python(self, program: str, *args: object, **environment: object) -> Result:
        process = self.start(program, *args, **environment)
        out, err = process.communicate(timeout=120)
        return Result(out, err, process.returncode)

    def python(self, program: str, *args: object, **environment: object) -> list[str]:
        """Runs a program; returns the words of its output. Fails with its stderr."""
        result = self.try_python(program, *args, **environment)
        assert result.code == 0, result.err
        return result.out.split()

    def held(self, card: int = 0) -> int:
        """MiB in use on a GPU by all processes, as the fake NVML reports to a program without the library."""
        text = "print(Nvml().memory_v2(Nvml().device(Cuda(int(sys.argv[1]), context=False).uuid())).used // MIB)"
        return int(self.python("import sys\n" + text, card, limit=None, preload=False)[0])


def line(process: subprocess.Popen[str]) -> str:
    """The next line of a started program's output."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
