"""The planner on the benchmark inputs of a peer: `make bench`. Results are asserted, times are only printed.

Time is that of `plan()` from snapshot to plan: the median of several runs after a warm-up, in one process, with the
garbage collector as it is. The peer's figures are from its own benchmark on this kind of machine, without the sleep in
its harness.
"""

from __future__ import annotations

import math
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from aliquot.planner import Plan, Policy, Snapshot, plan
from aliquot.sim import load_clusters
from support.planner import peer

pytestmark = pytest.mark.bench

# Milliseconds, net.
PEER_MS = {
    "allocate-10-50": 8, "allocate-50-200": 36, "allocate-100-500": 95,
    "set-up-10-50": 4, "set-up-50-200": 9,
    "preempt-10-50": 5, "preempt-50-200": 17,
    "consolidate-10-50": 23, "consolidate-50-200": 145,
    "full-cycle-10-50": 5, "full-cycle-50-200": 26, "full-cycle-100-500": 58,
    "many-queues": 35, "gangs": 53,
    "large-10": 42, "large-50": 208, "large-100": 475, "large-200": 1293, "large-500": 6171, "large-1000": 29907,
    "many-single-10": 46, "many-single-50": 746, "many-single-100": 3088, "many-single-200": 14229,
    "many-single-500": 131154,
    "impossible-10": 79, "impossible-50": 2615, "impossible-100": 14213, "impossible-200": 85879,
    "impossible-500": 123263, "impossible-1000": 127511,
    "impossible-apart-100": 13793, "impossible-near-100": 16010,
}  # fmt: skip
GROWTH = (
    ("allocate-100-500", "allocate-1000-5000"), ("full-cycle-100-500", "full-cycle-1000-5000"),
    ("large-100", "large-1000"), ("many-single-100", "many-single-1000"), ("impossible-100", "impossible-1000"),
)  # fmt: skip
SECONDS = 3.0  # runs of one input stop after this time, since the large ones take long
RUNS = 9


@dataclass
class Table:
    """The measurements, printed at the end."""

    ms: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)  # the time when nothing else runs
    notes: list[str] = field(default_factory=list)

    def show(self) -> None:
        print(f"\n{'input':<26} {'peer, net ms':>12} {'median ms':>10} {'ratio':>9} {'best ms':>10}")
        for name, ms in self.ms.items():
            theirs = PEER_MS.get(name)
            ratio = f"{theirs / ms:.1f}" if theirs else "-"
            print(f"{name:<26} {theirs or '-':>12} {ms:>10.2f} {ratio:>9} {self.best[name]:>10.2f}")
        for small, big in GROWTH:
            if small in self.ms and big in self.ms:
                power = math.log10(self.ms[big] / self.ms[small])
                print(f"growth {small} -> {big}: nodes to the power of {power:.2f}")
        for note in self.notes:
            print(note)


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    timings = Table()
    yield timings
    timings.show()


def load(name: str) -> tuple[Snapshot, Policy, dict[str, str]]:
    """The snapshot, the policy, and the node of each job that runs."""
    (world,) = load_clusters({"name": name, **peer.INPUTS[name]()})
    snapshot = world.snapshot()
    return snapshot, world.policy, {job.name: job.tasks[0].node for job in snapshot.jobs if job.tasks[0].node}


def measure(name: str, snapshot: Snapshot, policy: Policy, table: Table) -> Plan:
    decided = plan(snapshot, policy, 0)
    took: list[float] = []
    while len(took) < RUNS and (len(took) < 3 or sum(took) < SECONDS):
        began = time.perf_counter()
        again = plan(snapshot, policy, 0)
        took.append(time.perf_counter() - began)
        assert again == decided
    table.ms[name] = statistics.median(took) * 1000
    table.best[name] = min(took) * 1000
    return decided


def outcome(decided: Plan) -> tuple[dict[str, int], dict[str, int], set[str], set[str]]:
    """The number of bound and nominated tasks by job, the evicted or moved jobs, and the refused jobs."""
    bound: dict[str, int] = {}
    nominated: dict[str, int] = {}
    for bind in decided.binds:
        bound[bind.job] = bound.get(bind.job, 0) + 1
    for nomination in decided.nominations:
        nominated[nomination.job] = nominated.get(nomination.job, 0) + 1
    return bound, nominated, {eviction.job for eviction in decided.evictions}, set(decided.refusals)


def named(prefix: str) -> list[str]:
    return [name for name in peer.INPUTS if name.startswith(prefix)]


@pytest.mark.parametrize("name", [*named("allocate"), "many-queues"])
def test_allocate(name: str, table: Table) -> None:
    """Every job starts."""
    snapshot, policy, _ = load(name)
    plan_outcome = outcome(measure(name, snapshot, policy, table))
    assert plan_outcome == ({job.name: 1 for job in snapshot.jobs}, {}, set(), set())


def test_gangs(table: Table) -> None:
    """Every gang starts whole."""
    snapshot, policy, _ = load("gangs")
    plan_outcome = outcome(measure("gangs", snapshot, policy, table))
    assert plan_outcome == ({f"job-{index}": 4 for index in range(100)}, {}, set(), set())


@pytest.mark.parametrize("name", named("set-up"))
def test_set_up(name: str, table: Table) -> None:
    """No job is pending, so the plan is empty."""
    snapshot, policy, _ = load(name)
    assert outcome(measure(name, snapshot, policy, table)) == ({}, {}, set(), set())


@pytest.mark.parametrize("name", named("preempt"))
def test_preempt(name: str, table: Table) -> None:
    """All jobs have one priority, so none is evicted and every pending job is refused."""
    snapshot, policy, running = load(name)
    plan_outcome = outcome(measure(name, snapshot, policy, table))
    assert plan_outcome == ({}, {}, set(), {job.name for job in snapshot.jobs if job.name not in running})


@pytest.mark.parametrize("name", [*named("consolidate"), *named("full-cycle")])
def test_half_runs(name: str, table: Table) -> None:
    """GPUs are free, so every pending job starts and none is evicted."""
    snapshot, policy, running = load(name)
    plan_outcome = outcome(measure(name, snapshot, policy, table))
    assert plan_outcome == ({job.name: 1 for job in snapshot.jobs if job.name not in running}, {}, set(), set())


@pytest.mark.parametrize("name", named("large"))
def test_large(name: str, table: Table) -> None:
    """The half of the nodes with the newest jobs is cleared, and no other job is evicted."""
    snapshot, policy, running = load(name)
    decided = measure(name, snapshot, policy, table)
    half = len(snapshot.nodes) // 2
    cleared = {f"node{index}" for index in range(half, 2 * half)}
    victims = {job for job, node in running.items() if node in cleared}
    assert len(victims) == 4 * len(snapshot.nodes)
    assert outcome(decided) == ({}, {"very-large-job": half}, victims, set())
    assert {nomination.node for nomination in decided.nominations} == cleared
    assert all(eviction.to is None and eviction.by == "very-large-job" for eviction in decided.evictions)


@pytest.mark.parametrize("name", named("many-single"))
def test_many_single(name: str, table: Table) -> None:
    """Every GPU is reclaimed by its owner, each eviction for one job."""
    snapshot, policy, running = load(name)
    decided = measure(name, snapshot, policy, table)
    waiting = {job.name: 1 for job in snapshot.jobs if job.name not in running}
    assert outcome(decided) == ({}, waiting, set(running), set())
    assert {eviction.by for eviction in decided.evictions} == set(waiting)
    devices = [(nomination.node, share.index) for nomination in decided.nominations for share in nomination.shares]
    assert len(set(devices)) == len(waiting)


@pytest.mark.parametrize("name", named("impossible"))
def test_impossible(name: str, table: Table) -> None:
    """The gang waits, and no job is evicted in vain."""
    snapshot, policy, _ = load(name)
    assert outcome(measure(name, snapshot, policy, table)) == ({}, {}, set(), {"gang"})


def test_placements_a_second(table: Table) -> None:
    """Every slot of a large cluster is filled."""
    snapshot, policy, _ = load("slots-1000-32")
    bound = outcome(measure("slots-1000-32", snapshot, policy, table))[0]
    assert len(bound) == 32_000
    rate = 32_000 / table.ms["slots-1000-32"] * 1000
    table.notes.append(f"placements: {rate:,.0f} a second (1,000 nodes x 32 slots, 32,000 jobs, one queue)")


def test_peak_memory(table: Table) -> None:
    """What `plan()` allocates beyond its snapshot for 1,000 nodes, 8,000 running and 8,000 pending jobs."""
    snapshot, policy, _ = load("many-single-1000")
    tracemalloc.start()
    try:
        decided = plan(snapshot, policy, 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(decided.evictions) == 8000
    table.notes.append(f"peak memory of plan(), 1,000 nodes / 8,000 + 8,000 jobs: {peak / 1e6:.0f} MB (tracemalloc)")
