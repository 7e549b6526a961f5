"""`shares`: compute time by lease. Every tenant gets its share, a notebook stays responsive, dead tenants do not block.

The programs of all cases are started first and wait, because starting PyTorch takes longer than the measurement. All
programs count the work that they finish in the same interval of the machine's clock. They continue a little longer, so
that no program is alone on the GPU at the end of the interval.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lab import ROOT, Lab, Program, Tenant
from table import Table

SECONDS = 5.0
WARM = 0.6  # seconds before the interval: leases settle, clocks rise

COUNT = """
def count(work, sync, each):
    word = step(ready=True)
    while word:
        start, end = map(float, word.split())
        done, now = 0, time.monotonic()
        while now < end + 0.2:
            for _ in range(each): work()
            sync()
            now = time.monotonic()
            if start <= now <= end: done += each
        word = step(done=done)
"""
MATMUL = (
    COUNT
    + """
import torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
b, out = torch.randn_like(a), torch.empty_like(a)
for _ in range(3): torch.mm(a, b, out=out)
torch.cuda.synchronize()
count(lambda: torch.mm(a, b, out=out), torch.cuda.synchronize, 10)
"""
)
BURN = (
    COUNT
    + """
cuda = Cuda()
kernel = Kernel(cuda, 200, float(sys.argv[1]))
count(kernel, cuda.sync, 20)
"""
)
# Launches one small kernel every few milliseconds, like a notebook, and measures each in milliseconds.
NOTEBOOK = """
cuda = Cuda()
kernel = Kernel(cuda, 10, float(sys.argv[1]), blocks=8)
kernel(); cuda.sync()
word = step(ready=True)
while word:
    start, end = map(float, word.split())
    took = []
    while time.monotonic() < end:
        before = time.monotonic()
        kernel(); cuda.sync()
        if before >= start: took.append((time.monotonic() - before) * 1e3)
        time.sleep(0.002)
    took.sort()
    word = step(count=len(took), median=took[len(took) // 2], p99=took[int(len(took) * 0.99)], worst=took[-1])
"""
# Computes until told to stop; records every pause longer than 5 ms and when it ended.
WATCHER = """
import select
cuda = Cuda()
kernel = Kernel(cuda, 200, float(sys.argv[1]))
kernel(); cuda.sync()
step(ready=True)
gaps, last = [], time.monotonic()
while not select.select([sys.stdin], [], [], 0)[0]:
    kernel(); cuda.sync()
    now = time.monotonic()
    if now - last > 0.005: gaps.append([now, now - last])
    last = now
report(gaps=gaps)
"""


class Gate:
    """Reads a gate file: the holder of the lease, and how long each tenant has held it."""

    def __init__(self, path: Path) -> None:
        raw, size = path.read_bytes(), tenant_bytes()
        self.tenants = {}
        for index in range(32):
            at = 256 + size * index
            name = raw[at : at + 64].rstrip(b"\0").decode()
            if name:
                self.tenants[name] = (index + 1, struct.unpack_from("<Q", raw, at + 80)[0])
        self.holder: int = struct.unpack_from("<I", raw, 80)[0]

    def held(self, tenant: Tenant) -> float:
        return float(self.tenants.get(tenant.name, (0, 0))[1]) / 1e9

    def holds(self, tenant: Tenant) -> bool:
        return self.holder != 0 and self.tenants.get(tenant.name, (0, 0))[0] == self.holder


@cache
def tenant_bytes() -> int:
    """The size of one tenant in the gate file, from gate.h; the offset of `held` is fixed."""
    text = (ROOT / "native" / "gpushare" / "gate.h").read_text()
    size = re.search(r"sizeof\(struct tenant\) == (\d+)", text)
    assert size, "gate.h does not state the size of a tenant"
    return int(size[1])


class Case:
    """Tenants with these weights that share one gate, and their programs."""

    def __init__(self, lab: Lab, weights: Sequence[int], program: str, mode: str = "fair") -> None:
        self.lab = lab
        self.gates = lab.file("gates")
        self.gates.mkdir()
        part = min(8192, lab.fraction_mib(1000) // 8)
        self.tenants = [lab.tenant(part, mode=mode, weight=weight, gates=self.gates) for weight in weights]
        self.programs = [tenant.start(program, lab.rounds) for tenant in self.tenants]

    def add(self, index: int, program: str) -> Program:
        """Starts another program of a tenant."""
        self.programs.append(self.tenants[index].start(program, self.lab.rounds))
        return self.programs[-1]

    def ready(self) -> None:
        for program in self.programs:
            program.receive()

    def gate(self) -> Gate:
        return Gate(self.gates / self.lab.uuid)

    def run(self, seconds: float = SECONDS) -> tuple[list[Any], list[float]]:
        """Runs all programs. Returns their reports and the seconds that each tenant held the lease."""
        start = time.monotonic() + WARM
        for program in self.programs:
            program.resume(f"{start} {start + seconds}")
        time.sleep(max(0, start - time.monotonic()))
        before, first = self.gate(), time.monotonic()
        time.sleep(max(0, start + seconds - time.monotonic()))
        after, second = self.gate(), time.monotonic()
        reported = [program.receive() for program in self.programs]
        return reported, [(after.held(t) - before.held(t)) * seconds / (second - first) for t in self.tenants]

    def end(self) -> None:
        for program in self.programs:
            program.kill()


def percents(amounts: list[float]) -> list[float]:
    return [100 * amount / (sum(amounts) or 1) for amount in amounts]


def joined(amounts: list[float], form: str = ".1f") -> str:
    return " / ".join(format(amount, form) for amount in amounts)


def shares(lab: Lab, table: Table) -> None:
    matmul = BURN if "torch" in lab.without or lab.fake_driver else MATMUL
    equal = {n: Case(lab, [1000 // n] * n, matmul) for n in (2, 4)}
    unequal = {words: Case(lab, words, matmul) for words in ((250, 750), (100, 200, 700))}
    many, strict, alone = Case(lab, [500, 500], BURN), Case(lab, [250], BURN, "strict"), Case(lab, [500], matmul)
    for _ in range(2):
        many.add(0, BURN)
    pair = Case(lab, [500, 500], BURN)
    notebook = Case(lab, [500], matmul)
    notebook.tenants.append(lab.tenant(2048, mode="fair", weight=500, gates=notebook.gates))
    notebook.add(1, NOTEBOOK)
    for case in (*equal.values(), *unequal.values(), many, pair, strict, alone, notebook):
        case.ready()
    whole = _alone(table, alone)
    for case in equal.values():
        _equal(table, case, whole)
    for words, case in unequal.items():
        _unequal(table, words, case)
    _strict(table, strict)
    _many(table, many, pair)
    _notebook(table, notebook)
    for case in (*equal.values(), *unequal.values(), many, pair, strict, alone, notebook):
        case.end()
    _holder_killed(lab, table)


def _alone(table: Table, case: Case) -> float:
    rate = float(case.run(2.0)[0][0]["done"]) / 2.0
    table.info("alone on the GPU", f"{rate:.0f} products/s")
    return rate


def _equal(table: Table, case: Case, whole: float) -> None:
    reported, _ = case.run()
    rates = [report["done"] / SECONDS for report in reported]
    mean = sum(rates) / len(rates)
    worst = max(abs(rate / mean - 1) for rate in rates) * 100 if mean else 100.0
    table.check(
        f"{len(rates)} equal tenants", worst <= 2, f"{joined(rates, '.0f')} per s: off by {worst:.2f} %", "≤ 2 %"
    )
    table.info(f"{len(rates)} equal tenants together", f"{100 * sum(rates) / (whole or 1):.1f} % of one alone")


def _unequal(table: Table, words: tuple[int, ...], case: Case) -> None:
    reported, held = case.run()
    got, wanted = percents([report["done"] for report in reported]), percents(list(words))
    worst = max(abs(a - b) for a, b in zip(got, wanted, strict=True))
    figure = f"{joined(got)} % of the work, {joined(percents(held))} % of the time"
    table.check(f"tenants of {joined(wanted, '.0f')} %", worst <= 2, figure, "± 2 points")


def _strict(table: Table, case: Case) -> None:
    reported, held = case.run(5.0)
    share = 100 * held[0] / 5.0
    table.near(f"strict 0.25 alone: lease held {held[0]:.2f} of 5 s", share, 25, 1, " %")
    table.info("strict 0.25 alone: work", f"{reported[0]['done'] / 5.0:.0f} kernels of 200 µs per s")


def _many(table: Table, case: Case, pair: Case) -> None:
    """Three processes fill each other's pauses and do more work in the same time; the other tenant loses nothing."""
    (_, alone), _ = pair.run()
    reported, held = case.run()
    three, single = reported[0]["done"] + reported[2]["done"] + reported[3]["done"], reported[1]["done"]
    off = abs(2 * held[0] / (sum(held) or 1) - 1) * 100
    words = "3 processes of a tenant against 1"
    table.check(f"{words}: time", off <= 3, f"{joined(held, '.2f')} s: off by {off:.2f} %", "≤ 3 %")
    lost = (1 - single / (alone["done"] or 1)) * 100
    figure = f"{single} kernels, {alone['done']} against a single one: {lost:.2f} % less"
    table.check(f"{words}: work of the 1", lost <= 3, figure, "≤ 3 % less")
    table.info(f"{words}: work of the 3", f"{three} kernels")


def _notebook(table: Table, case: Case) -> None:
    reported, _ = case.run()
    small = reported[1]
    figure = f"{small['p99']:.2f} ms (median {small['median']:.3f}, worst {small['worst']:.2f}, of {small['count']})"
    table.check("small kernel beside training: p99", small["p99"] < 20, figure, "< 20 ms")


def _holder_killed(lab: Lab, table: Table) -> None:
    """Kills the holder three times. All victims are started before, so that the survivor is never alone for long."""
    case = Case(lab, [500, 500], WATCHER)
    watcher, victims = case.programs[1], [case.programs[0], case.add(0, WATCHER), case.add(0, WATCHER)]
    case.ready()
    watcher.resume()
    killed = []
    for victim in victims:
        victim.resume()
        time.sleep(0.5)
        deadline = time.monotonic() + 5
        while not case.gate().holds(case.tenants[0]) and time.monotonic() < deadline:
            pass
        killed.append(time.monotonic())
        victim.kill()
        time.sleep(0.7)
    gaps = watcher.resume_and_receive()["gaps"]
    case.end()
    waits = [max((gap for end, gap in gaps if moment <= end <= moment + 0.65), default=0.0) * 1e3 for moment in killed]
    table.check("holder killed: others resume after", max(waits) < 300, f"{joined(waits, '.0f')} ms", "< 300 ms")
