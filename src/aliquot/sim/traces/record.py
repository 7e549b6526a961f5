"""What a trace says: who asked for how much, when, and how long it worked.

TraceJob   one job of a trace
Trace      all of them, in the order of their submission, and the cluster and habits that belong to it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aliquot.planner.model import GPU, Device, Node, Request

# Cores and memory of machines whose trace does not tell: never what a job waits for.
_PLENTY = 1 << 50
_GPU_MIB = 80 * 1024


@dataclass(frozen=True, slots=True)
class TraceJob:
    name: str
    submit: float  # seconds after the start of the trace
    duration: float | None  # seconds of work with all its GPUs; None: it never ends
    gpu_milli: int  # in all; below 1000 it is a part of one GPU
    project: str = "default"
    tasks: int | None = None  # equal parts, each on one node; None: as few as the nodes allow
    priority: int = 50
    preemptible: bool = True
    cpu: int = 0  # thousandths of a core, of each task
    memory: int = 0  # bytes, of each task
    node_types: tuple[str, ...] = ()
    patient: bool = True  # otherwise it is dropped when it does not start at once

    @property
    def gpus(self) -> float:
        return self.gpu_milli / GPU

    def requests(self, gpus_per_node: int) -> list[Request]:
        """One for each task. Without a number of tasks: full nodes, and the rest on one more."""
        if self.gpu_milli < GPU:
            return [Request(int(self.gpu_milli > 0), self.gpu_milli, 0, self.cpu, self.memory)]
        whole = self.gpu_milli // GPU
        if self.tasks is not None:
            sizes = [whole // self.tasks] * self.tasks
        else:
            sizes = [gpus_per_node] * (whole // gpus_per_node)
            sizes += [whole % gpus_per_node] if whole % gpus_per_node else []
        return [Request(size, GPU, 0, self.cpu, self.memory) for size in sizes]


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    format: str
    jobs: tuple[TraceJob, ...]
    nodes: int = 8
    gpus_per_node: int = 8
    quotas: Mapping[str, int] = field(default_factory=dict)  # GPUs by project; the others have none
    restart_cost: float = 60  # seconds without progress after each restart
    checkpoint_every: float = 1800  # seconds of work between two checkpoints; 0: it saves when it is told to stop
    machines: tuple[Node, ...] = ()  # where nodes differ, instead of the two numbers above

    @property
    def projects(self) -> list[str]:
        return sorted({job.project for job in self.jobs})

    @property
    def gpus(self) -> int:
        return sum(len(node.devices) for node in self.machines) or self.nodes * self.gpus_per_node

    def cluster(self) -> tuple[Node, ...]:
        return self.machines or tuple(machine(f"n{index:04d}", self.gpus_per_node) for index in range(self.nodes))


def machine(name: str, gpus: int) -> Node:
    """A node of so many GPUs, with plenty of everything else."""
    devices = tuple(Device(index, _GPU_MIB) for index in range(gpus))
    return Node(name, devices, cpu=_PLENTY, memory=_PLENTY, pods=1 << 20)
