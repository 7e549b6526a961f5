"""`cost`: what the library costs, with and without in one run.

Three programs hold the same work ready: without the library, with a memory limit, with a limit and leases. They take
turns, so that a warm card or a busy machine meets all three alike; what is compared is the median over the rounds of
the ratio to the program without.

What an allocation or the replay of a graph costs more is measured inside one program, the library's function and the
driver's own in turn: two programs differ in what the driver takes for the same call by more than the library does.
"""

from __future__ import annotations

import importlib.util
from statistics import median

from lab import Lab, Program
from procaddr import tenants_launch_pointer
from table import Table

ROUNDS = 21
KINDS = ("without", "memory", "leases")

# Measures what it is asked to: seconds per operation.
WORK = """
import re, torch
torch.cuda.init()
torch.manual_seed(1)  # the card's clock follows the power that the numbers take
n = 8192
a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
b, out, x = torch.randn_like(a), torch.empty_like(a), torch.zeros(1024, device="cuda")
with open("/proc/self/maps") as f: path = next(line.split()[-1] for line in f if "/libcudart.so" in line)
cudart, p, free, total = c.CDLL(path), ptr(), size_t(), size_t()
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
    if what == "launch": return timed(lambda: x.add_(1), 10000)
    if what == "mallocAsync": return each(malloc_async, 500)
    if what == "memGetInfo": return each(lambda: cudart.cudaMemGetInfo(c.byref(free), c.byref(total)), 100)

for what in ("matmul", "launch", "mallocAsync"): measure(what)
what = step(ready=True)
while what: what = step(seconds=measure(what))
"""
# For each size: how long allocating and freeing takes through the library, and through the driver's own functions.
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
    # turn by turn: large blocks take once or twice as long, as the driver finds clean memory or not, for either way
    more = sorted(ours - theirs for theirs, ours in zip(*took))[rounds // 2]
    told[name] = [sorted(took[0])[rounds // 2] * 1e6, more * 1e6]
tell(**told)
"""
# A graph of a hundred small kernels, replayed through the library and through the driver's own function in turn.
REPLAY = """
cuda, stream, graph, run = Cuda(), ptr(), ptr(), ptr()
kernel = Kernel(cuda, 1, float(sys.argv[1]), blocks=1)
kernel(); cuda.sync()
cuda.call("cuStreamCreate", c.byref(stream), 1)
cuda.call("cuStreamBeginCapture_v2", stream, 2)
for _ in range(100): kernel(stream)
cuda.call("cuStreamEndCapture", stream, c.byref(graph))
cuda.call("cuGraphInstantiateWithFlags", c.byref(run), graph, u64(0))
kind = c.CFUNCTYPE(c.c_int, ptr, ptr)
ours = c.cast(cuda.lib.cuGraphLaunch, ptr).value
(theirs,) = drivers_own(["cuGraphLaunch"])
ways, took = [kind(theirs), kind(ours)], ([], [])
for turn in range(120):
    for way in (0, 1) if turn % 2 else (1, 0):
        launch = ways[way]
        start = time.perf_counter()
        for _ in range(100): code = launch(run, stream)
        cuda.call("cuStreamSynchronize", stream)
        if turn >= 20: took[way].append((time.perf_counter() - start) * 1e4)
        assert code == 0, code
tell(differ=ours != theirs, took=took)
"""
SIZES = ("1 KiB", "2 MiB", "64 MiB", "1 GiB")


def cost(lab: Lab, table: Table) -> None:
    pointer = tenants_launch_pointer(lab.tenant(lab.small))
    table.check("launch pointer with a memory limit", pointer.startswith("libcuda.so"), pointer, "the driver's")
    pointer = tenants_launch_pointer(lab.tenant(lab.small, mode="fair"))
    table.check("launch pointer with leases", pointer == "libgpushare.so", pointer, "ours")
    _allocations(lab, table)
    if not lab.fake_driver:
        _replays(lab, table)
    if lab.fake_driver:
        return table.note("speed", "not on the fake driver")
    if importlib.util.find_spec("torch") is None:
        return None if "torch" in lab.without else table.lacking("speed", "no torch here")
    programs = {
        "without": lab.start(WORK),
        "memory": lab.tenant(lab.small).start(WORK),
        "leases": lab.tenant(lab.small, mode="fair").start(WORK),
    }
    for program in programs.values():
        program.hear(180)
    took = {"matmul": _measured(programs, "matmul")}
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
        theirs, more = told[size]
        what = f"cudaMalloc {size} and free: without {theirs:.2f} µs"
        if lab.fake_driver:
            table.note(what, f"{more:.2f} µs more")
        else:
            table.most(what, more, 10.0, " µs more")


def _replays(lab: Lab, table: Table) -> None:
    for kind, mode in (("memory", "timesharing"), ("leases", "fair")):
        with lab.tenant(lab.small, mode=mode).start(REPLAY, lab.rounds) as program:
            told = program.hear(60)
        theirs, ours = told["took"]
        off = (median(with_ / without for with_, without in zip(ours, theirs, strict=True)) - 1) * 100
        words = f"replay of a graph of 100 nodes: without {median(theirs):.2f}, {kind} {median(ours):.2f} µs"
        table.check(words, told["differ"] and abs(off) <= 1, f"{off:+.2f} %", "± 1 %")


def _measured(programs: dict[str, Program], what: str, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds by kind, round by round; the order rotates, so that no kind always follows the same one."""
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(rounds):
        for kind in KINDS[turn % 3 :] + KINDS[: turn % 3]:
            took[kind].append(programs[kind].after(what)["seconds"])
    return took


def _judge(table: Table, took: dict[str, dict[str, list[float]]]) -> None:
    products = took.pop("matmul")
    rates = (f"{2 * 8192**3 / median(products[kind]) / 1e12:.1f}" for kind in KINDS)
    table.note("bf16 product 8192³: " + " / ".join(KINDS), " / ".join(rates) + " TFLOP/s")
    for kind in KINDS[1:]:
        off = (median(a / b for a, b in zip(products[kind], products["without"], strict=True)) - 1) * 100
        table.check(f"bf16 product 8192³: {kind}", abs(off) <= 1, f"{off:+.2f} %", "± 1 %")
    for what, by_kind in took.items():
        figures = " / ".join(f"{median(by_kind[kind]) * 1e6:.2f}" for kind in KINDS)
        table.note(f"{what}: " + " / ".join(KINDS), figures + " µs")
