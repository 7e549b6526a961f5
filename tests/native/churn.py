"""churn.py PROCESSES SECONDS SEED: random load on one ledger.

Forks that many processes. Each allocates and frees memory with every allocator; some are killed at random times.
Prints the number of operations, of refusals and of killed processes. Exits with 1 when a process got an error other
than out of memory, or saw a total above the limit.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable

from cu import MIB, Cuda, CudaError, Ledger, print_line

LIMIT = int(os.environ["GPUSHARE_LIMIT_MIB"]) * MIB
SIZES = [1, 700, 65536, MIB, MIB + 1, 2 * MIB, 5 * MIB, 33 * MIB, 64 * MIB]


def work(seed: int, until: float, pipe: int) -> int:
    rng = random.Random(seed)
    done = refused = 0
    try:
        cuda = Cuda()
    except CudaError as e:
        os.write(pipe, b"0 1\n")
        return 0 if e.code == 2 else 1
    ledger, allocators = Ledger(os.environ["GPUSHARE_LEDGER"]), list(cuda.allocators().items())
    held: list[Callable[[], None]] = []
    while time.monotonic() < until:
        if held and rng.random() < 0.5:
            held.pop(rng.randrange(len(held)))()
        else:
            name, take = rng.choice(allocators)
            if name == "heap":  # the heap limit is set, not added to: it would depend on the order of the frees
                continue
            size = rng.choice(SIZES)
            try:
                held.append(take(max(2 * MIB, size // (2 * MIB) * 2 * MIB) if name in ("create", "mapped") else size))
            except CudaError as e:
                if e.code != 2:
                    print_line(f"{name} of {size} bytes returned {e.code}")
                    return 1
                refused += 1
        done += 1
        if ledger.total() > LIMIT:
            print_line(f"{ledger.total()} is above the limit")
            return 1
        if rng.random() < 0.02:
            cuda.info()
    for free in held:
        free()
    os.write(pipe, f"{done} {refused}\n".encode())
    return 0


def main() -> None:
    count, seconds, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    reader, writer = os.pipe()
    until = time.monotonic() + seconds
    children = []
    for i in range(count):
        child = os.fork()
        if child == 0:
            os._exit(work(seed * 1000 + i, until, writer))
        children.append(child)
    os.close(writer)
    killed = set()
    while time.monotonic() < until - 0.3:
        time.sleep(seconds / count)
        victim = rng.choice(children)
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
    bad = [c for c in children if os.waitpid(c, 0)[1] and c not in killed]
    with os.fdopen(reader) as f:
        lines = [line.split() for line in f]
    print_line(sum(int(a) for a, _ in lines), sum(int(b) for _, b in lines), len(killed))
    sys.exit(1 if bad else 0)


main()
