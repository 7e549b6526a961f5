"""`frameworks`: PyTorch, JAX, CuPy and Triton see the limit as the whole GPU, raise their own error, and continue.

As many tenants as fit on two thirds of the GPU run at once: most of their time is spent on imports.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

from lab import MIB, Lab, Program, ProgramFailed, Tenant
from table import Table

# Allocates ever smaller blocks until refused; `take(bytes)` raises the framework's own error.
FILL = """
def fill(take, sizes=(512, 64, 20, 2)):
    held, error = [], None
    for size in sizes:
        try:
            while True: held.append(take(size * MIB))
        except Exception as exc: error = exc
    return held, f"{type(error).__module__}.{type(error).__name__}: {error}"[:160]
"""
TORCH = (
    FILL
    + """
import torch
total, device = torch.cuda.mem_get_info()[1] // MIB, torch.cuda.get_device_properties(0).total_memory // MIB
held, error = fill(lambda n: torch.empty(n, dtype=torch.uint8, device="cuda"))
step(total=[total, device], error=error)
held.clear()
torch.cuda.empty_cache()
x = torch.ones(1024, 1024, device="cuda")
report(right=int((x @ x).sum()) == 1 << 30)
"""
)
JAX = (
    FILL
    + """
import jax, jax.numpy as jnp
stats = jax.devices()[0].memory_stats()
held, error = fill(lambda n: jnp.zeros(n, dtype=jnp.uint8).block_until_ready(), (512, 64))
step(total=[stats["bytes_limit"] // MIB], error=error)
held.clear()
x = jnp.ones((1024, 1024))
report(right=int((x @ x).sum()) == 1 << 30)
"""
)
CUPY = (
    FILL
    + """
import cupy
if sys.argv[1] == "async": cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
total = cupy.cuda.Device().mem_info[1] // MIB
held, error = fill(lambda n: cupy.empty(n, dtype=cupy.uint8))
step(total=[total], error=error)
held.clear()
x = cupy.empty(4 * MIB, dtype=cupy.uint8)
x.data.memset(7, x.nbytes)
report(right=int(x[:1].get()[0]) == 7)
"""
)
TRITON = """
import torch
from framework_files import added
x, y = torch.rand(98432, device="cuda"), torch.rand(98432, device="cuda")
right = bool(torch.equal(added(x, y), x + y))
torch.cuda.synchronize(); torch.cuda.mem_get_info()
step(right=right)
"""
NCCL = """
import torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="file://" + sys.argv[1], rank=0, world_size=1)
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize(); torch.cuda.mem_get_info()
step(right=int(x.sum()) == 1 << 20)
dist.destroy_process_group()
"""
GRAPHS = """
import torch
x = torch.zeros(1 << 20, device="cuda")
graph = torch.cuda.CUDAGraph()
x.add_(1)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    for _ in range(10): x = x + 1
for _ in range(50): graph.replay()
torch.cuda.synchronize(); torch.cuda.mem_get_info()
step(right=int(x[0]) == 11)
"""
IPC = """
import torch
from framework_files import reader
workers = torch.multiprocessing.get_context("spawn")
there, back = workers.Queue(), workers.Queue()
x = torch.full((1024 * MIB,), 3, dtype=torch.uint8, device="cuda")
child = workers.Process(target=reader, args=(there, back))
child.start()
there.put(x)
first, pid = back.get(timeout=90)
torch.cuda.mem_get_info()
step(right=first == 3, child=pid)
there.put(None)
child.join(30)
"""
FORK = """
import torch
x = torch.ones(1024, 1024, device="cuda")
child = os.fork()
if child == 0: os._exit(0)
os.waitpid(child, 0)
right = int((x @ x).sum()) == 1 << 30
torch.cuda.synchronize(); torch.cuda.mem_get_info()
step(right=right)
"""
TORCH_ERROR, JAX_ERROR = "torch.OutOfMemoryError", "RESOURCE_EXHAUSTED"
CUPY_ERROR = "cupy.cuda.memory.OutOfMemoryError"


@dataclass(frozen=True)
class Case:
    what: str
    needs: tuple[str, ...]
    milli: int
    program: str
    judge: Callable[[Lab, Table, Case, Tenant, Program], None]
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    error: str = ""
    mode: str = "timesharing"


def cases(lab: Lab) -> list[Case]:
    listed = []
    for milli in (500, 250):
        for backend, setting in (
            ("native", ""),
            ("expandable", "expandable_segments:True"),
            ("async", "backend:cudaMallocAsync"),
        ):
            env = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting} if setting else {}
            listed.append(
                Case(f"torch {backend}, {milli / 1000:g}", ("torch",), milli, TORCH, filled, env=env, error=TORCH_ERROR)
            )
    for how, value in (("", "true"), (", no preallocation", "false")):
        env = {"XLA_PYTHON_CLIENT_PREALLOCATE": value}
        listed.append(Case(f"JAX{how}, 0.25", ("jax",), 250, JAX, jax_filled, env=env, error=JAX_ERROR))
    listed += [
        Case(f"CuPy {pool} pool, 0.25", ("cupy",), 250, CUPY, filled, (pool,), error=CUPY_ERROR)
        for pool in ("default", "async")
    ]
    cache = {"TRITON_CACHE_DIR": str(lab.disk / "triton")}
    small = 50
    return [
        *listed,
        Case("Triton kernel", ("torch", "triton"), small, TRITON, right, env=cache),
        Case("NCCL all-reduce, 1 rank", ("torch",), small, NCCL, right, (str(lab.folder / "nccl"),)),
        Case("CUDA graph", ("torch",), small, GRAPHS, right),
        Case("CUDA graph with leases", ("torch",), small, GRAPHS, right, mode="fair"),
        Case("torch IPC, 1 GiB", ("torch",), small, IPC, shared_once),
        Case("torch and fork", ("torch",), small, FORK, right),
    ]


def filled(lab: Lab, table: Table, case: Case, tenant: Tenant, program: Program) -> None:
    """Filled up to less than 32 MiB: frameworks allocate blocks of 20 MiB, the driver's pools blocks of 32 MiB."""
    full = program.receive(180)
    held = lab.held(program)
    went_on = program.resume_and_receive()["right"]
    short = tenant.limit - held
    good = full["error"].startswith(case.error) and -2 <= short <= 32 and went_on
    good = good and all(total == tenant.limit for total in full["total"])
    figure = f"sees {full['total']}, held {held} ({short} short), {full['error'].split(':')[0]}, goes on: {went_on}"
    table.check(case.what, good, figure, f"sees {tenant.limit}, ≤ 32 MiB short, {case.error}")


def jax_filled(lab: Lab, table: Table, case: Case, tenant: Tenant, program: Program) -> None:
    """JAX takes three quarters of the GPU and never requests the rest."""
    full = program.receive(180)
    held = lab.held(program)
    went_on = program.resume_and_receive()["right"]
    wanted = tenant.limit * 3 // 4
    good = case.error in full["error"] and wanted * 0.9 <= held <= tenant.limit + 2 and went_on
    good = (
        good and abs(full["total"][0] - wanted) <= 600
    )  # of the memory that is free at its start, so without contexts
    error = case.error if case.error in full["error"] else full["error"]
    figure = f"its part {full['total'][0]}, held {held}, {error}, goes on: {went_on}"
    table.check(case.what, good, figure, f"three quarters of {tenant.limit}, {case.error}")


def right(lab: Lab, table: Table, case: Case, tenant: Tenant, program: Program) -> None:
    reported = program.receive(180)
    ledger, held = tenant.ledger_mib(), lab.held(program)
    program.resume()
    good = reported["right"] and abs(ledger - held) <= 2
    table.check(
        case.what,
        good,
        f"result right: {reported['right']}, ledger {ledger}, driver {held} MiB",
        "right, ledger = driver ± 2",
    )


def shared_once(lab: Lab, table: Table, case: Case, tenant: Tenant, program: Program) -> None:
    """Shared memory counts once, for the process that allocated it."""
    reported = program.receive(180)
    nvml = lab.nvml()
    every = nvml.processes(nvml.device(lab.uuid))
    ledger, held = tenant.ledger_mib(), int(every.get(program.pid, 0) + every.get(reported["child"], 0)) // MIB
    program.resume()
    good = reported["right"] and abs(ledger - held) <= 4 and ledger < 2048 + 2 * lab.context // MIB
    table.check(
        case.what,
        good,
        f"read right: {reported['right']}, ledger {ledger}, driver {held} MiB",
        "right, counted once, ledger = driver ± 4",
    )


class GpuCapacity:
    """The part of the GPU, in thousandths, that this item may use; the rest is for items that run in parallel."""

    def __init__(self) -> None:
        self.free, self.changed = 650, Condition()

    def run(self, milli: int, work: Callable[[], Any]) -> Any:
        with self.changed:
            self.changed.wait_for(lambda: self.free >= milli)
            self.free -= milli
        try:
            return work()
        finally:
            with self.changed:
                self.free += milli
                self.changed.notify_all()


def frameworks(lab: Lab, table: Table) -> None:
    capacity, wanted = GpuCapacity(), [case for case in cases(lab) if not lab.without & set(case.needs)]

    def run_case(case: Case) -> Table:
        results = Table()
        missing = [name for name in case.needs if importlib.util.find_spec(name) is None]
        if missing:
            results.not_tested(case.what, f"no {missing[0]} here")
            return results
        tenant = lab.tenant(lab.fraction_mib(case.milli), mode=case.mode)
        try:
            with tenant.start(case.program, *case.args, env=case.env) as program:
                case.judge(lab, results, case, tenant, program)
        except ProgramFailed as exc:
            results.check(case.what, False, exc, "runs")
        return results

    with ThreadPoolExecutor(8) as pool:
        for results in pool.map(lambda case: capacity.run(case.milli, lambda: run_case(case)), wanted):
            table.rows += results.rows
    for name in sorted(lab.without):
        table.info(name, "left out by --without")
