"""Hostile jobs: no job gets more than its fraction, or not for longer than the audit takes to notice.

On a whole platform with the fake driver. Every job has half of a GPU of 16384 MiB.
"""

from __future__ import annotations

import pytest

from native.rig import CONTEXT
from support.gpus.fake_driver import DRIVER_PATH, UUIDS
from support.gpus.node import PROJECT, PYTHON, Node, Program
from support.pods.agent_harness import needs_root
from support.waiting import wait_until

pytestmark = [needs_root, pytest.mark.xdist_group("fake-driver")]
HALF_MIB = 8192
BLOCK = 2  # one more allocation may be in progress when the ledger is damaged
TOLERANCE = 81  # the audit tolerates 1 % above the limit
GREEDY = """
gpu = cuda()
print_line("got", fill(gpu)[0])
hold()
"""
# An environment with only what the fake driver needs; a real driver needs none of it.
_DRIVER = f"LD_LIBRARY_PATH={DRIVER_PATH} FAKE_CARD={DRIVER_PATH}/card PYTHONPATH={DRIVER_PATH}"
EMPTY = f"env -i {_DRIVER} NVIDIA_VISIBLE_DEVICES={UUIDS[1]}"
# Uses another copy of the driver's library, which the sharing library does not intercept.
INSTEAD = """
def instead(lib):
    real = c.CDLL
    c.CDLL = lambda name, *more: lib if name == "libcuda.so.1" else real(name, *more)
dlmopen = c.CDLL(None).dlmopen
dlmopen.restype = ptr
"""
DLMOPEN = INSTEAD + 'instead(c.CDLL("libcuda.so.1", handle=dlmopen(c.c_long(-1), b"libcuda.so.1", 2)))' + GREEDY
COPIED = (
    INSTEAD
    + f"""
import shutil
shutil.copy("{DRIVER_PATH}/libcuda.so.1", "/tmp/libmine.so")
instead(c.CDLL("/tmp/libmine.so"))
"""
    + GREEDY
)
LINKED = (
    INSTEAD
    + f"""
taker = c.CDLL("libtaker.so", handle=dlmopen(c.c_long(-1), b"{DRIVER_PATH}/libtaker.so", 2))
print_line("got", 12000 if taker.take(1, c.c_size_t(12000 * MIB)) == 0 else 0)
hold()
"""
)
COVERED = "unshare -Urm sh -c 'mount -t tmpfs none /etc; exec \"$@\"' sh"
DAMAGE = """
import sys
path = "/run/gpushare/ledger"
def damage(kind):
    with open(path, "r+b") as file:
        match kind:
            case "zeros": file.write(bytes(131072))
            case "header": file.write(bytes(4096))
            case "totals": file.seek(192); file.write(bytes(512))
            case "slots": file.seek(4096); file.write(bytes(131072 - 4096))
            case "random": file.write(random.Random(7).randbytes(131072))
            case "short": file.truncate(100)
            case "empty": file.truncate(0)
    if kind == "gone": os.unlink(path)
gpu = cuda()
first = fill(gpu)[0]
try:
    damage(sys.argv[1])
except OSError as refused:
    print(refused, file=sys.stderr)
print_line("got", first + fill(gpu)[0])
hold()
"""
WRITING = """
print_line("writes")
with open("/run/gpushare/ledger", "r+b", buffering=0) as file:
    while True:
        os.pwrite(file.fileno(), bytes(512), 192)
        os.pwrite(file.fileno(), bytes(131072 - 4096), 4096)
"""
THREADS = """
gpu = cuda()
counts = []
def race():
    gpu.call("cuCtxSetCurrent", gpu.context)
    counts.append(fill(gpu)[0])
threads = [threading.Thread(target=race) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print_line("got", sum(counts))
hold()
"""
CHILDREN = """
pipes = []
for _ in range(4):
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, b"%d" % fill(cuda())[0])
        hold()
        os._exit(0)
    pipes.append(reading)
print_line("got", sum(int(os.read(pipe, 99)) for pipe in pipes))
hold()
"""


def attempt(node: Node, program: str, before: str = "") -> Program:
    """A program in a job that has half of a GPU."""
    node.submit_job("tries")
    return node.start("tries", program, before)


def held(node: Node) -> int:
    """MiB that the job holds, as the driver reports them."""
    return sum(node.held("tries").values())


@pytest.mark.parametrize(
    ("text", "before", "contexts"),
    [
        pytest.param(GREEDY, "", 1, id="greedy"),
        pytest.param(GREEDY, EMPTY, 1, id="empty-environment"),
        pytest.param(GREEDY, "env -u NVIDIA_VISIBLE_DEVICES -u CUDA_VISIBLE_DEVICES", 1, id="unset-variables"),
        pytest.param(GREEDY, "env LD_PRELOAD=/usr/lib/none.so", 1, id="preload-of-its-own"),
        pytest.param(THREADS, "", 1, id="threads"),
        pytest.param(CHILDREN, "", 4, id="children"),
    ],
)
def test_the_library_refuses(node: Node, text: str, before: str, contexts: int) -> None:
    """A program gets exactly its fraction and no more, whatever it does in its own process."""
    program = attempt(node, text, before)

    assert program.read_words() == ["got", str(HALF_MIB - contexts * CONTEXT)]
    assert held(node) == HALF_MIB
    assert program.end() == 0


def test_a_driver_in_a_namespace_of_the_loader(node: Node) -> None:
    """Lookups in a driver that was loaded with `dlmopen` return the sharing library's functions."""
    program = attempt(node, DLMOPEN)

    assert int(program.read_words()[1]) <= HALF_MIB - CONTEXT
    assert held(node) <= HALF_MIB
    assert program.end() == 0


CAUGHT = (
    r"\[GPUMemoryOverrun\] holds \d+ MiB of GPU memory on GPU-\S+; its limit is 8192 MiB;"
    r" its process \S+ \(\d+\) was killed"
)


@pytest.mark.parametrize(
    ("text", "before"),
    [
        pytest.param(COPIED, "", id="copied-libcuda"),
        pytest.param(LINKED, "", id="linked-in-a-namespace-of-the-loader"),
        pytest.param(GREEDY, COVERED, id="covered-etc"),
    ],
)
def test_the_audit_catches(node: Node, text: str, before: str) -> None:
    """A process that bypasses the library is killed when the driver reports too much memory; the job keeps running."""
    program = attempt(node, text, before)
    word, got = program.read_words()
    assert (word, int(got) > HALF_MIB) == ("got", True)

    assert program.killed()

    node.wait_for_event("tries", CAUGHT)
    assert held(node) == 0
    assert node.phase("tries", PROJECT) == "Running"


def test_a_static_program_is_caught(node: Node) -> None:
    """A static program cannot load the library and calls the driver directly: the audit kills it."""
    node.submit_job("tries")
    program = node.execute("tries", f"exec {DRIVER_PATH}/raw 12000")
    assert program.read_words() == ["got", "12000"]

    assert program.killed()

    node.wait_for_event("tries", CAUGHT)


@pytest.mark.parametrize("kind", ["zeros", "totals", "slots", "random", "short", "gone"])
def test_damaging_the_ledger_gains_nothing(node: Node, kind: str) -> None:
    """A job that writes to its ledger, truncates or removes it gets no more memory, nor does its second process."""
    node.submit_job("tries")
    node.execute("tries", f"exec {PYTHON} {node.program(DAMAGE)} {kind}").wait_for_output()
    assert held(node) <= HALF_MIB + BLOCK

    node.start("tries", GREEDY).wait_for_output()
    assert held(node) <= HALF_MIB + BLOCK


def test_a_process_that_keeps_clearing_the_ledger(node: Node) -> None:
    """A process that clears the ledger again and again lets its job exceed the limit only until the audit acts."""
    node.submit_job("tries")
    writer = node.start("tries", WRITING)
    assert writer.read_words() == ["writes"]
    for _ in range(3):
        node.start("tries", GREEDY).wait_for_output()

    wait_until(lambda: held(node) <= HALF_MIB + TOLERANCE, "the job back within its limit")
    assert node.phase("tries", PROJECT) == "Running"
