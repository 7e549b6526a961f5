"""Pods arrive one by one and stay; a pod that does not fit is dropped. How much of the GPUs is allocated as demand
grows?

`Ours` is the planner's placement: one cycle state, one job for each pod, and the same `Placer` as in a plan. What the
incremental planner does between two plans is done here between two pods: a job that arrives is counted as a sample of
requests, and one that does not fit is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from aliquot.planner import DeviceShare, Job, Node, Policy, PoolQuota, Queue, Snapshot, Task
from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import PENDING, JobState, TaskSlot
from aliquot.planner.model import GPU
from aliquot.sim.traces import openb, read_file
from aliquot.sim.traces.openb import Pod
from bench.openb.peers import FGD, BestFit

DATA = Path(__file__).parents[2] / "data" / "openb"
LISTS = (
    "default", "cpu050", "cpu100", "cpu200", "cpu250", "gpushare40", "gpushare60", "gpushare80", "gpushare100",
    "gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33", "multigpu20", "multigpu30", "multigpu40", "multigpu50",
)  # fmt: skip
SEEDS = range(42, 52)
POLICY = Policy(gpu="least-fragments", cpu="least-fragments")
QUEUE = Queue("all", pools={"default": PoolQuota((None, None, None))})


class Contender(Protocol):
    def place(self, pod: Pod) -> bool: ...


class Ours:
    def __init__(self, nodes: Sequence[Node], pods: Sequence[Pod], policy: Policy = POLICY) -> None:
        self.state = CycleState(Snapshot(tuple(nodes), (QUEUE,), ()), policy, 0)
        self.state.add_jobs([])
        self._count = 0
        self.held: dict[str, tuple[str, tuple[DeviceShare, ...]]] = {}  # node and shares by job

    def place(self, pod: Pod) -> bool:
        state = self.state
        self._count += 1
        source = job_of(pod, self._count)
        job = JobState(source, state.tree.queues["all"])
        member = TaskSlot(job, source.tasks[0], PENDING)
        job.members.append(member)
        state.count_shape(member)
        if state.pool.fragments is not None:
            state.pool.fragments.update_weights()
        if state.placer.place(job, [member]):
            assert member.node is not None
            self.held[job.name] = (member.node.name, member.node.shares_of(member.allocs))
            return True
        state.count_shape(member, -1)
        return False


def job_of(pod: Pod, number: int) -> Job:
    name = f"{number:06d}"
    return Job(name, "all", (Task(name, pod.request, node_types=pod.models),))


CONTENDERS: dict[str, Callable[[Sequence[Node], Sequence[Pod]], Contender]] = {
    "ours": Ours,
    "FGD": FGD,
    "BestFit": BestFit,
}


def nodes() -> tuple[Node, ...]:
    return openb.nodes(read_file(str(DATA / "openb_node_list_gpu_node.csv")))


def pods(name: str) -> list[Pod]:
    return openb.pods(read_file(str(DATA / f"openb_pod_list_{name}.csv.gz")))


def allocated(contender: str, nodes_: Sequence[Node], listed: Sequence[Pod], seed: int) -> dict[int, float]:
    """Per cent of all GPUs that are allocated, by per cent requested: the mean over the arrivals that round to it."""
    gpus = sum(len(node.devices) for node in nodes_)
    order = openb.arrivals(listed, seed, gpus)
    place = CONTENDERS[contender](nodes_, listed).place
    return measure(order, gpus, place)


def measure(order: Iterable[Pod], gpus: int, place: Callable[[Pod], bool]) -> dict[int, float]:
    arrived = placed = 0
    samples: dict[int, list[float]] = {}
    for pod in order:
        arrived += pod.milli
        if place(pod):
            placed += pod.milli
        samples.setdefault(int(100 * arrived / (gpus * GPU) + 0.5), []).append(100 * placed / (gpus * GPU))
    return {at: sum(values) / len(values) for at, values in samples.items()}
