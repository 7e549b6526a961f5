"""`kill`: the memory of a process killed at any moment is free at once, and its ledger stays correct."""

from __future__ import annotations

import random
import time

from lab import MIB, Lab, Program, Tenant
from table import Table

HOLD = "cuda = Cuda(); cuda.alloc(int(sys.argv[1]) * MIB); step(there=True)"
# On each request, allocates that many MiB as soon as they are free and reports how long that took.
TAKER = """
cuda = Cuda()
word = step(ready=True)
while word:
    start, free = time.monotonic(), None
    while free is None and time.monotonic() < start + 10:
        try: free = cuda.alloc(int(word) * MIB)
        except CudaError as e:
            assert e.code == 2, e
    took = time.monotonic() - start
    if free: free()
    word = step(seconds=took, got=free is not None)
"""
CHURN = """
import random
cuda, chance, held = Cuda(), random.Random(int(sys.argv[1])), []
allocators = [take for name, take in cuda.allocators().items() if name not in ("heap", "managed", "mapped")]
step(ready=True)
while True:
    if held and chance.random() < 0.5: held.pop(chance.randrange(len(held)))()
    else:
        try: held.append(chance.choice(allocators)(chance.choice([2, 4, 34, 64]) * MIB))
        except CudaError as e:
            assert e.code == 2, e
"""
# Killed while it holds the ledger's lock: before any write, after writing the slot, after writing the total (layout.h).
LOCKED = """
import mmap, struct
cuda, writes = Cuda(), int(sys.argv[1])
cuda.alloc(100 * MIB)
with open(LEDGER, "r+b") as file: raw = mmap.mmap(file.fileno(), 131072)
start, libc = c.addressof(c.c_char.from_buffer(raw)), c.CDLL(None)
libc.pthread_mutex_lock.argtypes = [ptr]
slot = next(s for s in range(4096, 131072 - 448, 448) if struct.unpack_from("<Ii", raw, s) == (1, os.getpid()))
def add(at): struct.pack_into("<Q", raw, at, struct.unpack_from("<Q", raw, at)[0] + 200 * MIB)
report(ready=True)
assert libc.pthread_mutex_lock(start + 128) == 0
if writes >= 1: add(slot + 64)
if writes >= 2: add(192 + 24)
os.kill(os.getpid(), 9)
"""
FORKED = """
cuda = Cuda()
cuda.alloc(500 * MIB)
if os.fork() == 0:
    step(child=os.getpid())
    os._exit(0)
else: os.kill(os.getpid(), 9)
"""
ASK = """
cuda = Cuda()
report(code=cuda.status("cuMemAlloc_v2", c.byref(u64()), size_t(int(sys.argv[1]) * MIB)))
"""


def kill(lab: Lab, table: Table) -> None:
    tenant = lab.tenant(2 * lab.small_limit)
    with tenant.start(TAKER) as taker:
        taker.receive()
        rest = tenant.limit - lab.context // MIB - 8  # the most that one process can have, minus a margin
        _idle(lab, table, tenant, taker, rest)
        _churn(lab, table, tenant, taker, rest)
        _locked(lab, table, tenant, taker, rest)
        _forked(lab, table, tenant, taker, rest)
    _two_namespaces(lab, table)


def _check_ledger(lab: Lab, table: Table, what: str, tenant: Tenant, *programs: Program) -> None:
    ledger, held = tenant.ledger_mib(), lab.held(*programs)
    table.near(f"{what}: ledger against the driver's {held} MiB", ledger, held, 2, " MiB")


def _check_waits(lab: Lab, table: Table, what: str, waits: list[dict[str, float]]) -> None:
    """All of them got the memory that they waited for within the time limit."""
    worst = max(wait["seconds"] for wait in waits)
    good = all(wait["got"] for wait in waits) and worst < lab.release_timeout
    table.check(what, good, f"{worst:.3f} s at worst", f"< {lab.release_timeout:g} s")


def _idle(lab: Lab, table: Table, tenant: Tenant, taker: Program, rest: int) -> None:
    holder = tenant.start(HOLD, tenant.limit // 2)
    holder.receive()
    holder.kill()
    _check_waits(lab, table, "killed while idle: all free again after", [taker.resume_and_receive(rest)])
    _check_ledger(lab, table, "killed while idle", tenant, taker)


def _churn(lab: Lab, table: Table, tenant: Tenant, taker: Program, rest: int) -> None:
    rng, waits = random.Random(1), []
    for number in range(5):
        four = [tenant.start(CHURN, 10 * number + i) for i in range(4)]
        for program in four:
            program.receive()
        for program in four:
            program.resume()
        for program in four:
            time.sleep(rng.random() * 0.05)  # to kill it at any point
            program.kill()
        waits.append(taker.resume_and_receive(rest))
    _check_waits(lab, table, "20 killed in churn: all free again after", waits)
    _check_ledger(lab, table, "20 killed in churn", tenant, taker)
    table.equal("20 killed in churn: slots in use", len(tenant.ledger.slots()), 1)


def _locked(lab: Lab, table: Table, tenant: Tenant, taker: Program, rest: int) -> None:
    waits, died = [], tenant.ledger.counters()[1]
    for writes in (0, 1, 2, 0, 1, 2):
        with tenant.start(LOCKED, writes) as program:
            program.receive()
            program.popen.wait(timeout=20)
        waits.append(taker.resume_and_receive(rest))
    _check_waits(lab, table, "6 killed with the lock held: all free again after", waits)
    table.equal("6 killed with the lock held: seen", tenant.ledger.counters()[1] - died, 6)
    table.equal("6 killed with the lock held: total is the sum", tenant.ledger.total(), tenant.ledger.sum())
    _check_ledger(lab, table, "6 killed with the lock held", tenant, taker)


def _forked(lab: Lab, table: Table, tenant: Tenant, taker: Program, rest: int) -> None:
    """The driver keeps the memory of a dead parent while a forked child lives, and so does the ledger."""
    program = tenant.start(FORKED)
    program.receive()
    program.popen.wait(timeout=20)
    # fits beside the two live processes, but not beside the 500 MiB of the dead parent as well
    with tenant.start(ASK, tenant.limit - 2 * (lab.context // MIB) - 400) as asker:
        code = asker.receive()["code"]
    kept = tenant.live_mib() - lab.held(taker)
    table.check(
        "parent killed, child lives: kept", kept >= 500 and code == 2, f"{kept} MiB, code {code}", "≥ 500 MiB, code 2"
    )
    program.resume()
    program.end()
    _check_waits(lab, table, "its child gone: all free again after", [taker.resume_and_receive(rest)])
    _check_ledger(lab, table, "its child gone", tenant, taker)


LAUNCHES = """
cuda = Cuda()
kernel = Kernel(cuda, 200, float(sys.argv[1]))
held = cuda.alloc(500 * MIB)
step(pid=os.getpid())
end, done = time.monotonic() + 0.5, 0
while time.monotonic() < end:
    kernel(); cuda.sync(); done += 1
word = step(done=done)
start, got = time.monotonic(), False
while not got and time.monotonic() < start + 10:
    got = cuda.status("cuMemAlloc_v2", c.byref(u64()), size_t(int(word) * MIB)) == 0
took, start = time.monotonic() - start, time.monotonic()
kernel(); cuda.sync()
step(got=got, seconds=took, launch=time.monotonic() - start)
"""


def _two_namespaces(lab: Lab, table: Table) -> None:
    """Two containers of one pod: one ledger, one gate, and processes with the same pid."""
    tenant = lab.tenant(2 * lab.small_limit, mode="fair", weight=500)
    first, second = (tenant.start(LAUNCHES, lab.rounds, own_pids=True) for _ in range(2))
    both = (first, second)
    table.equal("two PID namespaces: numbers of the processes", [program.receive()["pid"] for program in both], [1, 1])
    for program in both:
        program.resume()
    done = [program.receive()["done"] for program in both]
    table.check("two PID namespaces: both compute", min(done) > 0, done, "> 0")
    held, ledger = lab.held(*both), tenant.ledger_mib()
    if lab.fake_driver:  # its NVML ignores namespaces, and the two processes have the same pid
        table.info("two PID namespaces: ledger, driver", f"{ledger}, {held} MiB")
    else:
        table.near(f"two PID namespaces: ledger against the driver's {held} MiB", ledger, held, 4, " MiB")
    first.kill()
    took = second.resume_and_receive(tenant.limit - 500 - lab.context // MIB - 16)
    _check_waits(lab, table, "one of them killed: the other has all after", [took])
    launched = f"{took['launch']:.3f} s"
    table.check(
        "one of them killed: the other launches after",
        took["launch"] < lab.release_timeout,
        launched,
        f"< {lab.release_timeout:g} s",
    )
    second.kill()
