"""Prints the memory that the driver holds after each kind of allocation, as JSON.

Run once on a real GPU (h200.json) and in every test run on the fake driver, which must give the same figures. The
sharing library is not loaded.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
from collections.abc import Callable

from cu import MIB, Cuda, Nvml


def main() -> None:
    cuda = Cuda()
    nvml = Nvml()
    device = nvml.device(cuda.uuid())
    held: dict[str, list[int]] = {"context": [nvml.self_bytes(device)]}

    def record(name: str, take: Callable[[], Callable[[], None]]) -> None:
        before = nvml.self_bytes(device)
        free = take()
        cuda.sync()
        during = nvml.self_bytes(device)
        free()
        cuda.sync()
        held[name] = [during - before, nvml.self_bytes(device) - before]

    def many(take: Callable[[int], Callable[[], None]], n: int, count: int) -> Callable[[], Callable[[], None]]:
        def take_all() -> Callable[[], None]:
            frees = [take(n) for _ in range(count)]

            def free_all() -> None:
                for free in frees:
                    free()

            return free_all

        return take_all

    for n in (1, 512, 65536, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 20 * MIB + 1, 64 * MIB):
        record(f"alloc {n}", many(cuda.alloc, n, 1))
    record("alloc 65536 x 64", many(cuda.alloc, 65536, 64))
    record("alloc 524289 x 8", many(cuda.alloc, 524289, 8))
    record("alloc 1048576 x 5", many(cuda.alloc, MIB, 5))
    record("pitch 16", many(cuda.pitch, 16 * MIB, 1))
    for n in (1, MIB, 32 * MIB, 33 * MIB, 100 * MIB):
        record(f"async {n}", many(cuda.asynchronous, n, 1))
    for n in (MIB, 64 * MIB):
        record(f"from-pool {n}", many(cuda.from_pool, n, 1))
    for n in (2 * MIB, 6 * MIB, 64 * MIB):
        record(f"create {n}", many(cuda.create, n, 1))
        record(f"mapped {n}", many(cuda.mapped, n, 1))
    for n in (16 * MIB, 256 * MIB):
        record(f"array {n}", many(cuda.array, n, 1))
        record(f"array3d {n}", many(cuda.array3d, n, 1))
        record(f"mipmap {n}", many(cuda.mipmap, n, 1))
        record(f"graph {n}", many(cuda.graph, n, 1))
    record("managed 67108864 untouched", many(cuda.managed, 64 * MIB, 1))
    record("heap 1 GiB unused", many(cuda.heap, 1024 * MIB, 1))

    def streams() -> Callable[[], None]:
        created = [c.c_void_p() for _ in range(64)]
        for s in created:
            cuda.call("cuStreamCreate", c.byref(s), 1)

        def destroy() -> None:
            for s in created:
                cuda.call("cuStreamDestroy_v2", s)

        return destroy

    record("streams 64", streams)
    json.dump(held, sys.stdout, indent=1)
    sys.stdout.write("\n")


main()
