"""Programs of every kind are limited: compiled, linked, wrapped, forked, many threads at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from native.rig import CONTEXT, HERE, SOURCE, Rig, compile_library

STEPS = str((2048 - CONTEXT) // 64)


def run(rig: Rig, *command: object, **environment: Any) -> list[str]:
    done = subprocess.run(
        list(map(str, command)),
        env=rig.environment(limit=2048, **environment),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def program(into: Path, source: str, *flags: object) -> Path:
    warnings = ["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"]
    command = ["cc", *warnings, HERE / source, *flags, "-ldl", "-o", into / "program"]
    subprocess.run(list(map(str, command)), check=True, timeout=60)
    return into / "program"


@pytest.mark.parametrize("way", ["procaddr", "dlsym", "default", "next"])
def test_compiled_programs(rig: Rig, tmp_path: Path, way: str) -> None:
    """A C program that opens the driver is limited, whether it asks the driver, its handle, or the whole process."""
    assert run(rig, program(tmp_path, "programs.c"), way) == [STEPS, "2"]


def test_linked_programs(rig: Rig, tmp_path: Path) -> None:
    """A program that is linked to the driver calls the library's functions."""
    assert run(rig, program(tmp_path, "linked.c", rig.built / "libcuda.so.1")) == [STEPS, "2"]


@pytest.mark.parametrize("first,seen", [(True, int(STEPS) + 1), (False, 0)])
def test_a_second_library_that_wraps(rig: Rig, tmp_path: Path, first: bool, seen: int) -> None:
    """A profiler preloaded before ours sees every call and passes it on to us; one after ours sees none."""
    compile_library(tmp_path / "libprofiler.so", [HERE / "wrapper.c"])
    both = [str(tmp_path / "libprofiler.so"), rig.environment()["LD_PRELOAD"]]
    linked = program(tmp_path, "linked.c", rig.built / "libcuda.so.1")
    told = run(rig, linked, LD_PRELOAD=" ".join(both if first else reversed(both)))
    assert told == [STEPS, "2", "wrapped", str(seen)]


def test_a_foreign_library_of_our_name(rig: Rig, tmp_path: Path) -> None:
    """A library that is called like ours, but is not, keeps its own functions and changes nothing for the program."""
    source = tmp_path / "foreign.c"
    source.write_text('__attribute__((visibility("default"))) int cuMemAlloc_v2(void) { return 77; }')
    compile_library(tmp_path / "libgpushare.so", [source])
    told = rig.python(
        """
        foreign, cuda = c.CDLL(sys.argv[1]), Cuda()
        frees, code = cuda.fill(cuda.alloc, 64 * MIB)
        print(foreign.cuMemAlloc_v2(), len(frees), code)
        """,
        tmp_path / "libgpushare.so",
        limit=2048,
    )
    assert told == ["77", STEPS, "2"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(rig: Rig, tmp_path: Path, method: str) -> None:
    """Workers of Python's multiprocessing share their container's limit, however they are started."""
    file = tmp_path / "work.py"
    file.write_text(
        """
import multiprocessing, sys
from cu import MIB, Cuda

def work(ready, full):
    cuda = Cuda()
    ready.wait()
    frees, code = cuda.fill(cuda.alloc, 2 * MIB)
    full.put((2 * len(frees), code))
    ready.wait()

if __name__ == "__main__":
    many = multiprocessing.get_context(sys.argv[1])
    ready, full = many.Barrier(2), many.Queue()
    workers = [many.Process(target=work, args=(ready, full)) for _ in range(2)]
    for w in workers: w.start()
    got = [full.get(timeout=60) for _ in workers]
    for w in workers: w.join()
    print(sum(n for n, _ in got), *(code for _, code in got), *(w.exitcode for w in workers))
"""
    )
    told = run(rig, sys.executable, file, method)
    assert told == [str(2048 - 2 * CONTEXT), "2", "2", "0", "0"]


def test_threads_race_under_the_thread_sanitizer(rig: Rig, tmp_path: Path) -> None:
    """Eight threads racing for the last block end at the limit, and ThreadSanitizer sees no race in the library."""
    watch = "-fsanitize=thread"
    library = tmp_path / "libgpushare.so"
    compile_library(library, sorted(SOURCE.glob("*.c")), "-O1", watch, "-DGPUSHARE_TEST", "-Wl,-Bsymbolic")
    told = run(rig, program(tmp_path, "programs.c", watch), "dlsym", 8, LD_PRELOAD=str(library))
    assert told == [str((2048 - CONTEXT) // 2), "2"]
