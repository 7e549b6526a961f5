"""`cost`: what the library costs, with and without in one run.

Three programs hold the same work ready: without the library, with a memory limit, with a limit and leases. They take
turns, so that a warm card or a busy machine meets all three alike; what is compared is the median over the rounds of
the ratio to the program without.

What an allocation costs more is measured inside one program, the library's function and the driver's own in turn: two
programs differ in what the driver takes for the same call by more than the library does.
"""

from __future__ import annotations

import importlib.util
from statistics import median

from lab import Lab, Program
from procaddr import tenants_launch_pointer
from table import Table

ROUNDS = 21
KINDS = ("without", "memory", "leases")

# Measures what it is told to: seconds per piece.
WORK = """
import re, torch
torch.cuda.init()
torch.manual_seed(1)  # the card's clock follows the power that the numbers take
n = 8192
a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
b, out, x = torch.randn_like(a), torch.empty_like(a), torch.zeros(1024, device="cuda")
with open("/proc/self/maps") as f: path = next(line.split()[-1] for line in f if "/libcudart.so" in line)
cudart, p, free, total = c.CDLL(path), ptr(), size_t(), size_t()
graph = torch.cuda.CUDAGraph()
x.add_(1)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    for _ in range(100): x.add_(1)
def malloc_async():
    assert cudart.cudaMallocAsync(c.byref(p), size_t(MIB), None) == 0
    assert cudart.cudaFreeAsync(p, None) == 0

def timed(work, count):
    for _ in range(count // 10): work()  # the card was another's a moment ago
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count): work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count

def each(work, count):
    took = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return sorted(took)[count // 2]

def measure(what):
    if what == "matmul": return timed(lambda: torch.mm(a, b, out=out), 100)
    if what == "replay": return timed(graph.replay, 1000)
    if what == "launch": return timed(lambda: x.add_(1), 10000)
    if what == "mallocAsync": return each(malloc_async, 500)
    if what == "memGetInfo": return each(lambda: cudart.cudaMemGetInfo(c.byref(free), c.byref(total)), 100)

for what in ("matmul", "replay", "launch", "mallocAsync"): measure(what)
what = step(ready=True)
while what: what = step(seconds=measure(what))
"""
# Of each size: what allocating and freeing takes through the library, and through the driver's own functions.
PAIRS = """
cuda, p = Cuda(), u64()
kind = c.CFUNCTYPE(c.c_int, ptr, size_t), c.CFUNCTYPE(c.c_int, u64)
names = ("cuMemAlloc_v2", "cuMemFree_v2")
ours = [c.cast(getattr(cuda.lib, name), ptr).value for name in names]
theirs = drivers_own(names)
ways = [[make(address) for make, address in zip(kind, one)] for one in (theirs, ours)]
told = {"differ": all(a != b for a, b in zip(ours, theirs))}
sizes = {"1 KiB": (1024, 400), "2 MiB": (2 * MIB, 400), "64 MiB": (64 * MIB, 200), "1 GiB": (1024 * MIB, 60)}
for name, (size, rounds) in sizes.items():
    took = ([], [])
    for turn in range(rounds + 10):
        for way in (0, 1) if turn % 2 else (1, 0):
            alloc, free = ways[way]
            start = time.perf_counter()
            codes = alloc(c.addressof(p), size), free(p.value)
            if turn >= 10: took[way].append(time.perf_counter() - start)
            assert codes == (0, 0), codes
    told[name] = [sorted(one)[len(one) // 2] * 1e6 for one in took]
tell(**told)
"""
SIZES = ("1 KiB", "2 MiB", "64 MiB", "1 GiB")


def cost(lab: Lab, table: Table) -> None:
    pointer = tenants_launch_pointer(lab.tenant(lab.small))
    table.check("launch pointer with a memory limit", pointer.startswith("libcuda.so"), pointer, "the driver's")
    pointer = tenants_launch_pointer(lab.tenant(lab.small, mode="fair"))
    table.check("launch pointer with leases", pointer == "libgpushare.so", pointer, "ours")
    _allocations(lab, table)
    if lab.standin:
        return table.note("speed", "not on the stand-in")
    if importlib.util.find_spec("torch") is None:
        return None if "torch" in lab.without else table.lacking("speed", "no torch here")
    programs = {
        "without": lab.start(WORK),
        "memory": lab.tenant(lab.small).start(WORK),
        "leases": lab.tenant(lab.small, mode="fair").start(WORK),
    }
    for program in programs.values():
        program.hear(180)
    took = {what: _measured(programs, what) for what in ("matmul", "replay")}
    for what in ("launch", "mallocAsync", "memGetInfo"):
        took[what] = _measured(programs, what, 9)
    for program in programs.values():
        program.go()
        program.end()
    return _judge(table, took)


def _allocations(lab: Lab, table: Table) -> None:
    with lab.tenant(lab.small).start(PAIRS) as program:
        told = program.hear(180)
    table.same("the library's functions are not the driver's", told["differ"], True)
    for size in SIZES:
        theirs, ours = told[size]
        what = f"cudaMalloc {size} and free: without {theirs:.2f}, with {ours:.2f} µs"
        if lab.standin:
            table.note(what, f"{ours - theirs:.2f} µs more")
        else:
            table.most(what, ours - theirs, 10.0, " µs more")


def _measured(programs: dict[str, Program], what: str, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds, by kind, round by round; the order turns, so that nobody always comes after the same."""
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(rounds):
        for kind in KINDS[turn % 3 :] + KINDS[: turn % 3]:
            took[kind].append(programs[kind].after(what)["seconds"])
    return took


def _judge(table: Table, took: dict[str, dict[str, list[float]]]) -> None:
    for what, words in (("matmul", "bf16 product 8192³"), ("replay", "replay of a graph of 100 nodes")):
        scale = (
            (lambda s: f"{2 * 8192**3 / s / 1e12:.1f} TFLOP/s") if what == "matmul" else (lambda s: f"{s * 1e6:.2f} µs")
        )
        table.note(words + ": " + " / ".join(KINDS), " / ".join(scale(median(took[what][kind])) for kind in KINDS))
        for kind in KINDS[1:]:
            ratios = [with_ / without for with_, without in zip(took[what][kind], took[what]["without"], strict=True)]
            off = (median(ratios) - 1) * 100
            table.check(f"{words}: {kind}", abs(off) <= 1, f"{off:+.2f} %", "± 1 %")
    for what, by_kind in took.items():
        if what in ("matmul", "replay"):
            continue
        table.note(
            f"{what}: " + " / ".join(KINDS), " / ".join(f"{median(by_kind[k]) * 1e6:.2f}" for k in KINDS) + " µs"
        )
