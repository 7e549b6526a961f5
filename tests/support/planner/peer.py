"""The benchmark inputs of a peer (another GPU scheduler) as scenarios, for the benchmark, the tests and
`aliquot simulate`.

    python tests/support/planner/peer.py                          lists the inputs
    python tests/support/planner/peer.py large-100 | aliquot simulate --timing -

Nodes have 8 GPUs, 20,000 cores, 20 GB and 110 pod slots. A pod requests 1 core and 1 GB. Jobs are preemptible and have
one task unless stated otherwise, and job i is older than job i+1. What the peer leaves open is left to our defaults.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

Json = dict[str, Any]

_POD = {"cpu": 1, "memory": "1G"}


def allocate(nodes: int, jobs: int) -> Json:
    """Nothing is scarce: every job starts."""
    workloads = [_pending(index, f"queue-{index % 4}") for index in range(jobs)]
    return _scenario(_nodes(nodes, "node-{}"), _four_queues(nodes), workloads, "allocate")


def set_up(nodes: int, jobs: int) -> Json:
    """All jobs run and none waits: the cost of reading the snapshot."""
    workloads = [_running(i, f"queue-{i % 4}", f"node-{i % nodes}", i // nodes) for i in range(jobs)]
    return _scenario(_nodes(nodes, "node-{}"), _four_queues(nodes), workloads, "reclaim")


def half(nodes: int, jobs: int, *steps: str) -> Json:
    """Even jobs run, odd jobs wait, GPUs are free and all jobs have one priority."""
    workloads = [
        _pending(index, f"queue-{index % 4}")
        if index % 2
        else _running(index, f"queue-{index % 4}", f"node-{index % nodes}", index // nodes)
        for index in range(jobs)
    ]
    return _scenario(_nodes(nodes, "node-{}"), _four_queues(nodes), workloads, *steps)


def many_queues(nodes: int = 50, jobs: int = 200, queues: int = 20, departments: int = 5) -> Json:
    whole = 8 * nodes
    tree = _tree(
        [_queue(f"dept-{index}", whole // departments, whole // departments) for index in range(departments)],
        [_queue(f"queue-{i}", whole // queues, 1, department=f"dept-{i % departments}") for i in range(queues)],
    )
    workloads = [_pending(index, f"queue-{index % queues}") for index in range(jobs)]
    return _scenario(_nodes(nodes, "node-{}"), tree, workloads, "allocate")


def gangs(nodes: int = 50, jobs: int = 100, members: int = 4) -> Json:
    workloads = [_pending(index, f"queue-{index % 4}", replicas=members) for index in range(jobs)]
    return _scenario(_nodes(nodes, "node-{}"), _four_queues(nodes), workloads, "allocate")


def large(nodes: int) -> Json:
    """One job reclaims half of a cluster that a queue without quota has filled."""
    gang = {"name": "very-large-job", "project": "queue-1", "replicas": nodes // 2, "request": {"gpu": 8, **_POD}}
    return _scenario(_nodes(nodes, "node{}"), _two_queues(0, 8 * nodes), [*_full(nodes), gang], "reclaim")


def many_single(nodes: int, minimum: float = 0) -> Json:
    """The whole cluster is reclaimed, GPU by GPU."""
    tree = _two_queues(0, 8 * nodes)
    if minimum:
        tree["projects"][0]["reclaimMinRuntime"] = minimum
    waiting = [_pending(index, "queue-1", name=f"pending-job-{index}") for index in range(8 * nodes)]
    return _scenario(_nodes(nodes, "node{}"), tree, [*_full(nodes, started=-60), *waiting])


def impossible(nodes: int, keep: int = 79, racks: int = 0, **gang: Any) -> Json:
    """A gang of ten whole nodes, which can reclaim all but one of the GPUs that it needs."""
    tree = _two_queues(8 * nodes - keep, 80)
    waiting = {"name": "gang", "project": "queue-1", "replicas": 10, "request": {"gpu": 8, **_POD}, **gang}
    scenario = _scenario(_nodes(nodes, "node{}"), tree, [*_full(nodes), waiting], "reclaim")
    for index, node in enumerate(scenario["nodes"] if racks else ()):
        node["labels"] = {"rack": f"rack-{index % racks}"}
    return scenario


def impossible_apart(nodes: int = 100) -> Json:
    """The amount suffices, but ten pods with anti-affinity do not fit on nine racks."""
    pod_anti_affinity = {"labels": {"app": "gang"}, "topologyKey": "rack"}
    return impossible(nodes, keep=80, racks=9, podLabels={"app": "gang"}, podAntiAffinity=pod_anti_affinity)


def impossible_near(nodes: int = 100) -> Json:
    """The amount suffices, but no rack has ten nodes."""
    scenario = impossible(nodes, keep=80, racks=12, topology={"required": "rack"})
    return {**scenario, "topology": ["rack"]}


def slots(nodes: int = 1000, each: int = 32) -> Json:
    """Many nodes with many slots, filled by as many jobs of one slot, in one queue."""
    workloads = [_pending(index, "queue") for index in range(nodes * each)]
    there = _nodes(nodes, "node-{}", gpus=each, memory=f"{2 * each}G")
    return _scenario(there, _tree([], [_queue("queue", 0, 1)]), workloads, "allocate")


_SMALL = ((10, 50), (50, 200))
INPUTS: dict[str, Callable[[], Json]] = {
    **{f"allocate-{n}-{j}": partial(allocate, n, j) for n, j in (*_SMALL, (100, 500), (1000, 5000))},
    **{f"set-up-{n}-{j}": partial(set_up, n, j) for n, j in _SMALL},
    **{f"preempt-{n}-{j}": partial(half, n, j, "preempt") for n, j in _SMALL},
    **{f"consolidate-{n}-{j}": partial(half, n, j, "consolidate") for n, j in _SMALL},
    **{f"full-cycle-{n}-{j}": partial(half, n, j) for n, j in (*_SMALL, (100, 500), (1000, 5000))},
    "many-queues": many_queues,
    "gangs": gangs,
    **{f"large-{n}": partial(large, n) for n in (10, 50, 100, 200, 500, 1000)},
    **{f"many-single-{n}": partial(many_single, n) for n in (10, 50, 100, 200, 500, 1000)},
    "many-single-100-minimum": lambda: many_single(100, minimum=30),
    **{f"impossible-{n}": partial(impossible, n) for n in (10, 50, 100, 200, 500, 1000)},
    "impossible-apart-100": impossible_apart,
    "impossible-near-100": impossible_near,
    "slots-1000-32": slots,
}


def _scenario(nodes: list[Json], tree: Json, workloads: list[Json], *steps: str) -> Json:
    policy = {"policy": {"steps": list(steps)}} if steps else {}
    for age, workload in enumerate(workloads):
        workload["created"] = age - len(workloads)
    return {**policy, "nodes": nodes, **tree, "workloads": workloads}


def _nodes(count: int, name: str, gpus: int = 8, memory: str = "20G") -> list[Json]:
    shape = {"gpus": gpus, "gpuMemoryMiB": 100, "cpu": 20_000, "memory": memory, "pods": 110}
    return [{"name": name.format(index), **shape} for index in range(count)]


def _tree(departments: list[Json], projects: list[Json]) -> Json:
    return {"departments": departments, "projects": projects}


def _queue(name: str, gpu: int | None, weight: int, **fields: Any) -> Json:
    return {"name": name, "quota": {"gpu": gpu}, "overQuotaWeight": weight, **fields}


def _four_queues(nodes: int) -> Json:
    whole = 8 * nodes
    departments = [_queue(f"dept-{letter}", whole // 2, whole // 2) for letter in "ab"]
    projects = [_queue(f"queue-{i}", whole // 4, 1, department=f"dept-{'ab'[i // 2]}") for i in range(4)]
    return _tree(departments, projects)


def _two_queues(first: int, second: int) -> Json:
    projects = [_queue("queue-0", first, 0, department="parent"), _queue("queue-1", second, 0, department="parent")]
    return _tree([_queue("parent", None, 1)], projects)


def _pending(index: int, queue: str, name: str = "", **fields: Any) -> Json:
    return {"name": name or f"job-{index}", "project": queue, "request": {"gpu": 1, **_POD}, **fields}


def _running(index: int, queue: str, node: str, device: int, name: str = "", started: float = -60) -> Json:
    task = {"state": "running", "node": node, "devices": [device]}
    return {**_pending(index, queue, name), "started": started, "tasks": [task]}


def _full(nodes: int, started: float = -60) -> list[Json]:
    return [
        _running(index, "queue-0", f"node{index % nodes}", index // nodes, f"running-job-{index}", started)
        for index in range(8 * nodes)
    ]


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in INPUTS:
        sys.exit("one of: " + " ".join(INPUTS))
    json.dump(INPUTS[sys.argv[1]](), sys.stdout)
