"""`cost`: the overhead of the library, measured with and without it in the same run.

Three programs do the same work: without the library, with a memory limit, and with a limit and leases. They alternate,
so that a warm GPU or a busy machine affects all three equally. Each is compared with the program without the library by
the median of the ratios over all rounds.

The overhead of an allocation and of a graph replay is measured inside one program that alternates between the library's
function and the driver's: the driver's time for the same call differs more between two programs than the library adds.
"""

from __future__ import annotations

import importlib.util
from statistics import median

from lab import Lab, Program
from procaddr import tenants_launch_pointer
from table import Table

ROUNDS = 21
KINDS = ("without", "memory", "leases")

# Measures the requested operation: seconds per operation.
WORK = """
import re, torch
torch.cuda.init()
torch.manual_seed(1)  # the values affect power draw, and with it the GPU's clock
n = 8192
a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
b, out, x = torch.randn_like(a), torch.empty_like(a), torch.zeros(1024, device="cuda")
with open("/proc/self/maps") as f: path = next(line.split()[-1] for line in f if "/libcudart.so" in line)
cudart, p, free, total = c.CDLL(path), ptr(), size_t(), size_t()
def malloc_async():
    assert cudart.cudaMallocAsync(c.byref(p), size_t(MIB), None) == 0
    assert cudart.cudaFreeAsync(p, None) == 0

def timed(work, count):
    for _ in range(count // 10): work()  # warm up: another program used the GPU just before
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
# For each size: the time to allocate and free, through the driver's functions, and the time the library adds.
PAIRS = """
cuda, p = Cuda(), u64()
kind = c.CFUNCTYPE(c.c_int, ptr, size_t), c.CFUNCTYPE(c.c_int, u64)
names = ("cuMemAlloc_v2", "cuMemFree_v2")
ours = [c.cast(getattr(cuda.lib, name), ptr).value for name in names]
theirs = driver_addresses(names)
functions = [[make(address) for make, address in zip(kind, addresses)] for addresses in (theirs, ours)]
result = {"differ": all(a != b for a, b in zip(ours, theirs))}
sizes = {"1 KiB": (1024, 400), "2 MiB": (2 * MIB, 400), "64 MiB": (64 * MIB, 200), "1 GiB": (1024 * MIB, 60)}
for name, (size, rounds) in sizes.items():
    took = ([], [])
    for number in range(rounds + 10):
        for which in (0, 1) if number % 2 else (1, 0):
            alloc, free = functions[which]
            start = time.perf_counter()
            codes = alloc(c.addressof(p), size), free(p.value)
            if number >= 10: took[which].append(time.perf_counter() - start)
            assert codes == (0, 0), codes
    # pairwise: for large blocks the driver's own time doubles when it finds no clean memory, with and without us
    more = sorted(ours - theirs for theirs, ours in zip(*took))[rounds // 2]
    result[name] = [sorted(took[0])[rounds // 2] * 1e6, more * 1e6]
report(**result)
"""
# Replays a graph of 100 small kernels, alternating between the library's function and the driver's.
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
(theirs,) = driver_addresses(["cuGraphLaunch"])
functions, took = [kind(theirs), kind(ours)], ([], [])
for number in range(120):
    for which in (0, 1) if number % 2 else (1, 0):
        launch = functions[which]
        start = time.perf_counter()
        for _ in range(100): code = launch(run, stream)
        cuda.call("cuStreamSynchronize", stream)
        if number >= 20: took[which].append((time.perf_counter() - start) * 1e4)
        assert code == 0, code
report(differ=ours != theirs, took=took)
"""
SIZES = ("1 KiB", "2 MiB", "64 MiB", "1 GiB")


def cost(lab: Lab, table: Table) -> None:
    pointer = tenants_launch_pointer(lab.tenant(lab.small_limit))
    table.check("launch pointer with a memory limit", pointer.startswith("libcuda.so"), pointer, "the driver's")
    pointer = tenants_launch_pointer(lab.tenant(lab.small_limit, mode="fair"))
    table.check("launch pointer with leases", pointer == "libgpushare.so", pointer, "ours")
    _allocations(lab, table)
    if not lab.fake_driver:
        _replays(lab, table)
    if lab.fake_driver:
        return table.info("speed", "not on the fake driver")
    if importlib.util.find_spec("torch") is None:
        return None if "torch" in lab.without else table.not_tested("speed", "no torch here")
    programs = {
        "without": lab.start(WORK),
        "memory": lab.tenant(lab.small_limit).start(WORK),
        "leases": lab.tenant(lab.small_limit, mode="fair").start(WORK),
    }
    for program in programs.values():
        program.receive(180)
    took = {"matmul": _measured(programs, "matmul")}
    for what in ("launch", "mallocAsync", "memGetInfo"):
        took[what] = _measured(programs, what, 9)
    for program in programs.values():
        program.resume()
        program.end()
    return _judge(table, took)


def _allocations(lab: Lab, table: Table) -> None:
    with lab.tenant(lab.small_limit).start(PAIRS) as program:
        reported = program.receive(180)
    table.equal("the library's functions are not the driver's", reported["differ"], True)
    for size in SIZES:
        theirs, more = reported[size]
        what = f"cudaMalloc {size} and free: without {theirs:.2f} µs"
        if lab.fake_driver:
            table.info(what, f"{more:.2f} µs more")
        else:
            table.at_most(what, more, 10.0, " µs more")


def _replays(lab: Lab, table: Table) -> None:
    for kind, mode in (("memory", "timesharing"), ("leases", "fair")):
        with lab.tenant(lab.small_limit, mode=mode).start(REPLAY, lab.rounds) as program:
            reported = program.receive(60)
        theirs, ours = reported["took"]
        off = (median(with_ / without for with_, without in zip(ours, theirs, strict=True)) - 1) * 100
        words = f"replay of a graph of 100 nodes: without {median(theirs):.2f}, {kind} {median(ours):.2f} µs"
        table.check(words, reported["differ"] and abs(off) <= 1, f"{off:+.2f} %", "± 1 %")


def _measured(programs: dict[str, Program], what: str, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds by kind for each round. The order rotates, so that no kind always runs after the same one."""
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS[number % 3 :] + KINDS[: number % 3]:
            took[kind].append(programs[kind].resume_and_receive(what)["seconds"])
    return took


def _judge(table: Table, took: dict[str, dict[str, list[float]]]) -> None:
    products = took.pop("matmul")
    rates = (f"{2 * 8192**3 / median(products[kind]) / 1e12:.1f}" for kind in KINDS)
    table.info("bf16 product 8192³: " + " / ".join(KINDS), " / ".join(rates) + " TFLOP/s")
    for kind in KINDS[1:]:
        off = (median(a / b for a, b in zip(products[kind], products["without"], strict=True)) - 1) * 100
        table.check(f"bf16 product 8192³: {kind}", abs(off) <= 1, f"{off:+.2f} %", "± 1 %")
    for what, by_kind in took.items():
        figures = " / ".join(f"{median(by_kind[kind]) * 1e6:.2f}" for kind in KINDS)
        table.info(f"{what}: " + " / ".join(KINDS), figures + " µs")
