"""The ledger: shared by all processes of a container, and repaired after any of them was killed at any point."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from native.cu import Ledger
from native.rig import CONTEXT, MIB, SOURCE, Rig, line

FILL = """
cuda = Cuda()
print(flush=True)
input()
frees, code = cuda.fill(cuda.alloc, 2 * MIB)
print(2 * len(frees), code, flush=True)
input()
"""
HOLD = "Cuda().alloc(int(sys.argv[1]) * MIB); print('there', flush=True); input()"


def test_processes_share_the_limit(rig: Rig) -> None:
    """Two processes that allocate at once get the limit together, and the driver holds exactly that."""
    both = [rig.start(FILL, limit=4096) for _ in range(2)]
    assert [line(p) for p in both] == ["", ""]
    for p in both:
        assert p.stdin is not None
        p.stdin.write("\n")
        p.stdin.flush()
    got = [int(line(p).split()[0]) for p in both]
    held, ledger = rig.held(), Ledger(str(rig.ledger))
    for p in both:
        p.communicate("\n")
    assert sum(got) == 4096 - 2 * CONTEXT
    assert held == 4096 == ledger.total() // MIB


def test_memory_of_a_killed_process_is_free(rig: Rig) -> None:
    """The memory of a killed process is free at the next request, and counted as reaped."""
    gone = rig.start(HOLD, 1000, limit=2048)
    assert line(gone) == "there"
    gone.kill()
    gone.communicate()
    assert rig.python("print(Cuda().info()[0] // MIB)", limit=2048) == [str(2048 - CONTEXT)]
    assert Ledger(str(rig.ledger)).counters()[0] == 1


def fault_points() -> list[str]:
    """The fault points in the source: every point between two writes to the ledger."""
    text = "".join(path.read_text() for path in SOURCE.glob("ledger*.c"))
    return sorted(set(re.findall(r'FAULT\("(.*?)"\)', text)))


@pytest.mark.parametrize("passed", [1, 2])
@pytest.mark.parametrize("point", [p for p in fault_points() if not p.startswith("header")])
def test_killed_inside_the_lock(rig: Rig, point: str, passed: int) -> None:
    """A process that was killed between any two writes leaves a ledger that the next one repairs."""
    held = [rig.start(HOLD, mib, limit=4096) for mib in (100, 50, 50)]
    assert [line(p) for p in held] == ["there"] * 3
    survivor, *gone = held
    for process in gone:  # leaves slots to reap
        process.kill()
        process.communicate()
    program = "cuda = Cuda(int(sys.argv[1]))\ncuda.info()\nwhile True: cuda.alloc(20 * MIB)"
    card = int(point == "device-entered")  # the first GPU is in the ledger already
    died = rig.try_python(program, card, limit=4096, GPUSHARE_FAULT=f"{point}:{passed}")
    output = rig.python("print(Cuda().info()[0] // MIB)", limit=4096)
    ledger = Ledger(str(rig.ledger))
    total, parts = ledger.total(), ledger.sum()
    survivor.communicate("\n")
    if passed == 1 or point not in ("slot-taken", "slot-used", "device-entered"):  # these points are passed once only
        assert died.code == -signal.SIGKILL
    assert output == [str(4096 - 2 * CONTEXT - 100)]
    assert total == parts


@pytest.mark.parametrize("point", [p for p in fault_points() if p.startswith("header")])
def test_killed_while_writing_the_header(rig: Rig, point: str) -> None:
    """When a process is killed while it initializes a ledger, the next process initializes it."""
    assert rig.try_python("Cuda()", GPUSHARE_FAULT=f"{point}:1").code == -signal.SIGKILL
    assert rig.python("print(Cuda().info()[0] // MIB)", limit=4096) == [str(4096 - CONTEXT)]


def test_child_keeps_its_parents_memory(rig: Rig) -> None:
    """Memory of a killed parent is charged until its forked child exits, because the driver keeps it that long."""
    program = """
    cuda = Cuda()
    cuda.alloc(1000 * MIB)
    if os.fork() == 0:
        print("forked", flush=True)
        input()
    else:
        os.kill(os.getpid(), 9)
    """
    process = rig.start(program, limit=4096)
    assert line(process) == "forked"
    process.wait(timeout=30)
    free = "print(Cuda().info()[0] // MIB)"
    during, on_card = rig.python(free, limit=4096), rig.held()
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.close()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read()
    process.stdout.close()
    process.stderr.close()
    for _ in range(200):  # the orphaned child cannot be waited for
        if rig.held() == 0:
            break
        time.sleep(0.01)
    assert during == [str(4096 - 2 * CONTEXT - 1000)]
    assert on_card == 1000 + CONTEXT
    assert rig.python(free, limit=4096) == [str(4096 - CONTEXT)]


def test_child_takes_its_own_slot(rig: Rig) -> None:
    """A forked child that uses the GPU itself has a slot of its own."""
    output = rig.python(
        """
        cuda, ledger = Cuda(), Ledger(sys.argv[1])
        child = os.fork()
        if child == 0:
            cuda.physical(64 * MIB)
            slots = ledger.slots()
            print(len(slots), slots[os.getpid()][0] // MIB, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """,
        rig.ledger,
    )
    assert output == ["2", "64"]


def test_closed_descriptors_are_opened_again(rig: Rig) -> None:
    """A program that closes all descriptors that it did not open is still charged, exactly once."""
    output = rig.python(
        """
        cuda, ledger = Cuda(), Ledger(sys.argv[1])
        cuda.alloc(100 * MIB)
        card = [int(fd) for fd in os.listdir("/proc/self/fd") if "card" in os.path.realpath("/proc/self/fd/" + fd)]
        for fd in range(3, 2000):
            if fd not in card:
                try: os.close(fd)
                except OSError: pass
        cuda.alloc(100 * MIB)
        print(len(ledger.slots()), ledger.total() // MIB)
        """,
        rig.ledger,
    )
    assert output == ["1", str(CONTEXT + 200)]


def test_overwriting_the_ledger_does_not_help(rig: Rig) -> None:
    """A program that overwrites its slot and the total with zeros is charged as before at its next allocation."""
    output = rig.python(
        """
        import mmap
        cuda = Cuda()
        cuda.alloc(1000 * MIB)
        with open(sys.argv[1], "r+b") as f:
            raw = mmap.mmap(f.fileno(), 0)
        raw[4096 + 64:4096 + 88] = bytes(24)
        raw[192 + 24:192 + 32] = bytes(8)
        frees, code = cuda.fill(cuda.alloc, 2 * MIB)
        print(2 * len(frees), code)
        """,
        rig.ledger,
        limit=2048,
    )
    assert output == [str(2048 - CONTEXT - 1000), "2"]


def refusal(rig: Rig, **environment: str) -> str:
    result = rig.try_python("Cuda()", **environment)
    assert "cuDevicePrimaryCtxRetain answered 2" in result.err
    lines = [words for words in result.err.splitlines() if words.startswith("gpushare: ")]
    assert len(lines) == 1
    return lines[0]


def test_ledger_of_another_tenant(rig: Rig) -> None:
    """A ledger of another tenant is not used: everything is refused, with one line of explanation."""
    rig.python("Cuda()", GPUSHARE_TENANT="one")
    assert "belongs to another tenant; GPU memory is refused" in refusal(rig, GPUSHARE_TENANT="two")


@pytest.mark.parametrize(
    "start,size,words", [(b"", 1000, "wrong size"), (b"x" * 16, 131072, "damaged or of another version")]
)
def test_damaged_ledger(rig: Rig, start: bytes, size: int, words: str) -> None:
    """A ledger that is truncated or damaged is neither used nor repaired."""
    rig.python("Cuda()")
    rig.ledger.write_bytes((start + rig.ledger.read_bytes()[len(start) :])[:size])
    assert words in refusal(rig)


def test_old_ledger(rig: Rig) -> None:
    """A ledger from before the last boot is not used."""
    rig.python("Cuda()")
    raw = bytearray(rig.ledger.read_bytes())
    raw[16:32] = os.urandom(16)
    rig.ledger.write_bytes(raw)
    assert "from before the last restart" in refusal(rig)


def test_unreachable_ledger(rig: Rig, tmp_path: Path) -> None:
    """A ledger that cannot be opened means no GPU memory."""
    assert "cannot be opened" in refusal(rig, GPUSHARE_LEDGER=str(tmp_path / "none" / "ledger"))


def test_without_limits_memory_is_refused(rig: Rig) -> None:
    """Without any limits, the library refuses all GPU memory."""
    result = rig.try_python("Cuda()", limit=None)
    assert "cuDevicePrimaryCtxRetain answered 2" in result.err
    assert "there is no" in result.err
