"""The contents of a trace.

TraceJob   one job: its request, its submission and its duration
Trace      all jobs in order of submission, with the cluster, quotas and checkpoint settings of the trace
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aliquot.planner.model import GPU, Device, Node, Request

# Cores and memory of nodes where the trace has none: enough that no job waits for them.
_PLENTY = 1 << 50
_GPU_MIB = 80 * 1024


@dataclass(frozen=True, slots=True)
class TraceJob:
    name: str
    submit: float  # seconds after the start of the trace
    duration: float | None  # seconds of progress with all its GPUs; None: it never ends
    gpu_milli: int  # of all tasks together; below 1000: a fraction of one GPU
    project: str = "default"
    tasks: int | None = None  # equal tasks, each on one node; None: as few as fit on the nodes
    priority: int = 50
    preemptible: bool = True
    cpu: int = 0  # thousandths of a core, of each task
    memory: int = 0  # bytes, of each task
    node_types: tuple[str, ...] = ()
    may_wait: bool = True  # False: it is dropped when it does not start at once

    @property
    def gpus(self) -> float:
        return self.gpu_milli / GPU

    def requests(self, gpus_per_node: int) -> list[Request]:
        """One request per task. Without a number of tasks: full nodes, and the rest on one more."""
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
    quotas: Mapping[str, int] = field(default_factory=dict)  # GPUs by project; other projects have none
    restart_cost: float = 60  # seconds without progress after each restart
    checkpoint_every: float = 1800  # seconds of progress between checkpoints; 0: a job saves when it is stopped
    custom_nodes: tuple[Node, ...] = ()  # used instead of `nodes` and `gpus_per_node` where nodes differ

    @property
    def projects(self) -> list[str]:
        return sorted({job.project for job in self.jobs})

    @property
    def gpus(self) -> int:
        return sum(len(node.devices) for node in self.custom_nodes) or self.nodes * self.gpus_per_node

    def cluster(self) -> tuple[Node, ...]:
        return self.custom_nodes or tuple(
            uniform_node(f"n{index:04d}", self.gpus_per_node) for index in range(self.nodes)
        )


def uniform_node(name: str, gpus: int) -> Node:
    """A node with this many GPUs and unlimited cores, memory and pods for practical purposes."""
    devices = tuple(Device(index, _GPU_MIB) for index in range(gpus))
    return Node(name, devices, cpu=_PLENTY, memory=_PLENTY, pods=1 << 20)
