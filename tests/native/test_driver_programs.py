"""Programs of every kind are limited: compiled, linked, wrapped by a profiler, forked, multithreaded."""

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


@pytest.mark.parametrize("lookup", ["procaddr", "dlsym", "default", "next"])
def test_compiled_programs(rig: Rig, tmp_path: Path, lookup: str) -> None:
    """A C program is limited, whether it uses cuGetProcAddress, dlsym on a handle, RTLD_DEFAULT or RTLD_NEXT."""
    assert run(rig, program(tmp_path, "programs.c"), lookup) == [STEPS, "2"]


def test_linked_programs(rig: Rig, tmp_path: Path) -> None:
    """A program that is linked to the driver calls the library's functions."""
    assert run(rig, program(tmp_path, "linked.c", rig.built / "libcuda.so.1")) == [STEPS, "2"]


@pytest.mark.parametrize("first,calls", [(True, int(STEPS) + 1), (False, 0)])
def test_a_second_library_that_wraps(rig: Rig, tmp_path: Path, first: bool, calls: int) -> None:
    """A profiler preloaded before the library sees every call and forwards it; one preloaded after it sees none."""
    compile_library(tmp_path / "libprofiler.so", [HERE / "wrapper.c"])
    both = [str(tmp_path / "libprofiler.so"), rig.environment()["LD_PRELOAD"]]
    linked = program(tmp_path, "linked.c", rig.built / "libcuda.so.1")
    output = run(rig, linked, LD_PRELOAD=" ".join(both if first else reversed(both)))
    assert output == [STEPS, "2", "wrapped", str(calls)]


def test_another_library_with_our_file_name(rig: Rig, tmp_path: Path) -> None:
    """Another library with the file name libgpushare.so keeps its own functions and does not affect the limit."""
    source = tmp_path / "foreign.c"
    source.write_text('__attribute__((visibility("default"))) int cuMemAlloc_v2(void) { return 77; }')
    compile_library(tmp_path / "libgpushare.so", [source])
    output = rig.python(
        """
        foreign, cuda = c.CDLL(sys.argv[1]), Cuda()
        frees, code = cuda.fill(cuda.alloc, 64 * MIB)
        print(foreign.cuMemAlloc_v2(), len(frees), code)
        """,
        tmp_path / "libgpushare.so",
        limit=2048,
    )
    assert output == ["77", STEPS, "2"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(rig: Rig, tmp_path: Path, method: str) -> None:
    """Workers of Python's multiprocessing share the limit of their container with every start method."""
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
    output = run(rig, sys.executable, file, method)
    assert output == [str(2048 - 2 * CONTEXT), "2", "2", "0", "0"]


def test_threads_race_under_the_thread_sanitizer(rig: Rig, tmp_path: Path) -> None:
    """Eight threads that race for the last block stop at the limit; ThreadSanitizer finds no data race."""
    sanitize = "-fsanitize=thread"
    library = tmp_path / "libgpushare.so"
    compile_library(library, sorted(SOURCE.glob("*.c")), "-O1", sanitize, "-DGPUSHARE_TEST", "-Wl,-Bsymbolic")
    output = run(rig, program(tmp_path, "programs.c", sanitize), "dlsym", 8, LD_PRELOAD=str(library))
    assert output == [str((2048 - CONTEXT) // 2), "2"]
