"""openb: how much of a cluster is allocated before no pod can use what is left.

`make test` runs a small grid. `make soak` runs all lists and seeds, and prints the table of
`docs/reports/scheduler.md`.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from statistics import mean, stdev

import pytest

from aliquot.planner import Job, Snapshot, Task, TaskState
from aliquot.planner.incremental import IncrementalPlanner
from aliquot.planner.model import GPU
from aliquot.sim.traces import openb
from bench.openb import harness
from bench.openb.harness import LISTS, SEEDS
from bench.openb.moving import Moving

SMALL = ("default", "gpuspec33", "multigpu50")


def _small(name: str, seed: int) -> dict[str, float]:
    """With an eighth of the nodes and of the pods."""
    nodes, pods = harness.nodes()[::8], harness.pods(name)[::8]
    return {scheduler: harness.allocated(scheduler, nodes, pods, seed)[100] for scheduler in ("ours", "FGD", "BestFit")}


@pytest.mark.parametrize("name", SMALL)
def test_more_is_allocated_than_by_the_peers(name: str) -> None:
    """On a small part of the trace, more GPUs are in use than with FGD or BestFit when 100 % are requested."""
    results = [_small(name, seed) for seed in (42, 43)]
    ours, fgd, best_fit = (mean(result[scheduler] for result in results) for scheduler in ("ours", "FGD", "BestFit"))
    assert ours > max(fgd, best_fit)


def test_incremental_planner_places_alike() -> None:
    """The incremental planner places each arrival as the harness does."""
    nodes, pods = harness.nodes()[::60], harness.pods("default")[::60]
    order = openb.arrivals(pods, 42, sum(len(node.devices) for node in nodes))
    ours = harness.Ours(nodes, pods)
    planner, snapshot = IncrementalPlanner(), Snapshot(tuple(nodes), (harness.QUEUE,), ())
    jobs: dict[str, Job] = {}
    changed: dict[str, Job | None] = {}
    for number, pod in enumerate(order, 1):
        job = harness.job_of(pod, number)
        jobs[job.name] = changed[job.name] = job
        snapshot = Snapshot(snapshot.nodes, snapshot.queues, tuple(jobs.values()), snapshot.topologies)
        decided = planner.plan(snapshot, harness.POLICY, 0, changed=changed if number > 1 else None)
        assert ours.place(pod) == bool(decided.binds), pod
        changed = {}
        for bind in decided.binds:
            task = Task(job.name, pod.request, TaskState.RUNNING, bind.node, bind.shares, node_types=pod.models)
            jobs[job.name] = changed[job.name] = Job(job.name, job.queue, (task,))
        if not decided.binds:
            del jobs[job.name]
            changed[job.name] = None
    held = {task.name: (task.node, task.shares) for job in jobs.values() for task in job.tasks}
    assert held == {name: held_by for name, held_by in ours.held.items() if name in held}
    assert len(held) == len(ours.held)


@pytest.mark.soak
def test_not_below_fgd_on_any_list() -> None:
    """Over ten seeds, on each of the seventeen lists, at least as many GPUs are in use as with FGD."""
    grid = [(scheduler, name, seed) for name in LISTS for seed in SEEDS for scheduler in ("ours", "FGD", "BestFit")]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        allocated = dict(zip(grid, workers.map(_full, grid), strict=True))
    print(
        f"\n{'list':<12} {'ours at 100':>14} {'130':>6} {'FGD at 100':>14} {'130':>6} {'BestFit at 100':>15} {'130':>6}"
    )
    below = []
    for name in LISTS:
        line = f"{name:<12}"
        means = {}
        for scheduler, width in (("ours", 8), ("FGD", 8), ("BestFit", 9)):
            early, late = zip(*(allocated[scheduler, name, seed] for seed in SEEDS), strict=True)
            means[scheduler] = mean(early)
            line += f" {means[scheduler]:>{width}.2f} ±{stdev(early):4.2f} {mean(late):>6.2f}"
        print(line)
        if means["ours"] < means["FGD"]:
            below.append(name)
    assert not below


@pytest.mark.soak
def test_what_moving_adds() -> None:
    """With moves no fewer GPUs are in use than without. Prints how many, and the number of moves."""
    nodes, pods = harness.nodes(), harness.pods("default")
    gpus = sum(len(node.devices) for node in nodes)
    order, wanted = [], 0
    for pod in openb.arrivals(pods, 42, gpus):
        wanted += pod.milli
        if wanted > 1.006 * gpus * GPU:  # the last arrival that rounds to 100 %
            break
        order.append(pod)
    moving = Moving(nodes, pods)
    moved = harness.measure(order, gpus, moving.place)[100]
    plain = harness.measure(order, gpus, harness.Ours(nodes, pods).place)[100]
    print(f"\ndefault, seed 42, at 100: {plain:.2f}; {moved:.2f} with {moving.moves} moves for {moving.helped} pods")
    assert moved >= plain


def _full(case: tuple[str, str, int]) -> tuple[float, float]:
    scheduler, name, seed = case
    allocated = harness.allocated(scheduler, harness.nodes(), harness.pods(name), seed)
    return allocated[100], allocated[max(allocated)]
