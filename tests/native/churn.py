"""Random work for one ledger: forks so many processes, each taking and freeing in every way, and kills some midway.

Usage: churn.py processes seconds seed. Prints how many operations were done, how many were refused, how many processes
were killed. Ends with 1 when a process saw an error other than out of memory, or the total above the limit.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable

from cu import MIB, Cuda, CudaError, Ledger, say

LIMIT = int(os.environ["GPUSHARE_LIMIT_MIB"]) * MIB
SIZES = [1, 700, 65536, MIB, MIB + 1, 2 * MIB, 5 * MIB, 33 * MIB, 64 * MIB]


def work(seed: int, until: float, pipe: int) -> int:
    chance = random.Random(seed)
    done = refused = 0
    try:
        cuda = Cuda()
    except CudaError as e:
        os.write(pipe, b"0 1\n")
        return 0 if e.code == 2 else 1
    ledger, ways = Ledger(os.environ["GPUSHARE_LEDGER"]), list(cuda.ways().items())
    held: list[Callable[[], None]] = []
    while time.monotonic() < until:
        if held and chance.random() < 0.5:
            held.pop(chance.randrange(len(held)))()
        else:
            name, take = chance.choice(ways)
            if name == "heap":  # set, not added up: freeing in another order would be another test
                continue
            size = chance.choice(SIZES)
            try:
                held.append(take(max(2 * MIB, size // (2 * MIB) * 2 * MIB) if name in ("create", "mapped") else size))
            except CudaError as e:
                if e.code != 2:
                    say(f"{name} of {size} answered {e.code}")
                    return 1
                refused += 1
        done += 1
        if ledger.total() > LIMIT:
            say(f"{ledger.total()} is above the limit")
            return 1
        if chance.random() < 0.02:
            cuda.info()
    for free in held:
        free()
    os.write(pipe, f"{done} {refused}\n".encode())
    return 0


def main() -> None:
    count, seconds, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
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
        victim = chance.choice(children)
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
    bad = [c for c in children if os.waitpid(c, 0)[1] and c not in killed]
    with os.fdopen(reader) as f:
        lines = [line.split() for line in f]
    say(sum(int(a) for a, _ in lines), sum(int(b) for _, b in lines), len(killed))
    sys.exit(1 if bad else 0)


main()
