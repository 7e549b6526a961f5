"""Planner at scale: `make bench`. A full cluster with ten pending jobs a node, in which one job ends and one starts.

*cold* is a plan from scratch, *steady* a plan of an incremental planner that gets the changes. Memory is the peak of
the cold plan and what the incremental planner keeps.
"""

from __future__ import annotations

import math
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from aliquot.planner import (
    Device,
    DeviceShare,
    Job,
    Node,
    Policy,
    PoolQuota,
    Queue,
    Request,
    Snapshot,
    Task,
    TaskState,
    plan,
)
from aliquot.planner.incremental import IncrementalPlanner

pytestmark = pytest.mark.bench
GPUS = 8
REQUEST = Request(devices=1, milli=1000, cpu=1000, memory=1 << 30)
SIZES = (1000, 5000, 10000)
ENDINGS = 8


@pytest.fixture(scope="module")
def figures() -> Iterator[dict[int, tuple[float, float]]]:
    seconds: dict[int, tuple[float, float]] = {}
    yield seconds
    print(f"\n{'nodes':>6} {'cold ms':>9} {'steady ms':>10}")
    for nodes, (cold, steady) in sorted(seconds.items()):
        print(f"{nodes:>6} {cold:>9.0f} {steady:>10.1f}")
    if len(seconds) > 1:
        first, *_, last = sorted(seconds)
        for index, word in enumerate(("cold", "steady")):
            power = math.log(seconds[last][index] / seconds[first][index], last / first)
            print(f"growth {word} {first} -> {last}: nodes to the power of {power:.2f}")


def full(nodes: int) -> Snapshot:
    """Every GPU is in use, and ten jobs a node are pending, in four projects of two departments."""
    devices = tuple(Device(index, 32510) for index in range(GPUS))
    each = nodes * GPUS * 1000 // 4
    queues = [Queue(f"d{i}", pools={"default": PoolQuota(quota=(2 * each, None, None))}) for i in range(2)]
    queues += [
        Queue(f"q{i}", f"d{i // 2}", {"default": PoolQuota(quota=(each, None, None))}, created=i) for i in range(4)
    ]
    jobs = [running(f"run-{i:06}", i, f"n{i % nodes:05}", i // nodes) for i in range(nodes * GPUS)]
    jobs += [Job(f"wait-{i:06}", f"q{i % 4}", (Task(f"wait-{i:06}", REQUEST),), created=i) for i in range(10 * nodes)]
    machines = tuple(Node(f"n{i:05}", devices, cpu=64_000, memory=1 << 40) for i in range(nodes))
    return Snapshot(machines, tuple(queues), tuple(jobs))


def running(name: str, index: int, node: str, device: int) -> Job:
    task = Task(name, REQUEST, TaskState.RUNNING, node, (DeviceShare(device, 1000, 32510),))
    return Job(name, f"q{index % 4}", (task,), created=index - 10**6, started=0)


@pytest.mark.parametrize("nodes", SIZES)
def test_cold_and_steady(nodes: int, figures: dict[int, tuple[float, float]]) -> None:
    """The next job starts where one has ended, and the plan equals the one from scratch."""
    snapshot, policy, planner = full(nodes), Policy(), IncrementalPlanner()
    began = time.perf_counter()
    assert plan(snapshot, policy, 100).binds == ()
    cold = time.perf_counter() - began
    planner.plan(snapshot, policy, 100)
    jobs = {job.name: job for job in snapshot.jobs}
    took = []
    for ending in range(ENDINGS):
        gone = f"run-{ending:06}"
        jobs.pop(gone)
        changed: dict[str, Job | None] = {gone: None}
        for _ in range(2):  # the job ends; then the bind is observed
            snapshot = replace(snapshot, jobs=tuple(jobs.values()))
            began = time.perf_counter()
            decided = planner.plan(snapshot, policy, 100, changed=changed)
            took.append(time.perf_counter() - began)
            changed = {}
            for bind in decided.binds:
                old = jobs[bind.job]
                task = replace(old.tasks[0], state=TaskState.RUNNING, node=bind.node, shares=bind.shares)
                jobs[bind.job] = changed[bind.job] = replace(old, tasks=(task,), started=100)
        assert len(decided.refusals) == 10 * nodes - ending - 1
    if nodes == SIZES[0]:
        assert decided == plan(snapshot, policy, 100)
    figures[nodes] = (cold * 1000, statistics.median(took) * 1000)


def test_memory() -> None:
    """What a planner of 5,000 nodes, 40,000 running and 50,000 pending jobs keeps."""
    snapshot, planner = full(5000), IncrementalPlanner()
    tracemalloc.start()
    decided = planner.plan(snapshot, Policy(), 100)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"\nplanner at 5,000 nodes: keeps {kept >> 20} MB, peak {peak >> 20} MB")
    assert (len(decided.binds), len(decided.refusals)) == (0, 50_000)
