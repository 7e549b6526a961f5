"""`cost`: what the library costs, with and without in one run.

Three programs hold the same work ready: without the library, with a memory limit, with a limit and leases. They take
turns, so that a warm card or a busy machine meets all three alike; what is compared is the median over the rounds of
the ratio to the program without.
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
pairs = {"malloc 1 KiB": 1024, "malloc 2 MiB": 2 * MIB, "malloc 64 MiB": 64 * MIB, "malloc 1 GiB": 1024 * MIB}

def malloc(size):
    assert cudart.cudaMalloc(c.byref(p), size_t(size)) == 0
    assert cudart.cudaFree(p) == 0

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
    if what in pairs: return each(lambda: malloc(pairs[what]), 10 if pairs[what] > 100 * MIB else 60)
    if what == "mallocAsync": return each(malloc_async, 500)
    if what == "memGetInfo": return each(lambda: cudart.cudaMemGetInfo(c.byref(free), c.byref(total)), 100)

for what in ("matmul", "replay", "launch", "mallocAsync", *pairs): measure(what)
what = step(ready=True)
while what: what = step(seconds=measure(what))
"""


def cost(lab: Lab, table: Table) -> None:
    pointer = tenants_launch_pointer(lab.tenant(lab.small))
    table.check("launch pointer with a memory limit", pointer.startswith("libcuda.so"), pointer, "the driver's")
    pointer = tenants_launch_pointer(lab.tenant(lab.small, mode="fair"))
    table.check("launch pointer with leases", pointer == "libgpushare.so", pointer, "ours")
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
    for what in (
        "malloc 1 KiB",
        "malloc 2 MiB",
        "malloc 64 MiB",
        "malloc 1 GiB",
        "launch",
        "mallocAsync",
        "memGetInfo",
    ):
        took[what] = _measured(programs, what, 9)
    for program in programs.values():
        program.go()
        program.end()
    return _judge(table, took)


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
        if what.startswith("malloc "):
            more = median(w - o for w, o in zip(by_kind["memory"], by_kind["without"], strict=True)) * 1e6
            table.most(f"cudaM{what[1:]} and free: with a memory limit", more, 10.0, " µs more")
