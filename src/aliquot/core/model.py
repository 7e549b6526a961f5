"""What the scheduler looks at: nodes with their devices, queues with their quotas, jobs with their tasks.

Everything is frozen, numeric and in base units: thousandths of a GPU or core, MiB of device memory, bytes. A device of
D MiB has 1000 milli and D MiB, and a request takes of both, so that whole GPUs, fractions and amounts of memory are one
rule:

    whole       1000 milli and D MiB of each device
    fraction f  1000·f milli and ⌊f·D⌋ MiB
    memory M    ⌊1000·M/D⌋ milli and M MiB, counted as ⌈1000·M/D⌉ against quota
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

GPU = 1000


@dataclass(frozen=True, slots=True)
class Device:
    index: int
    memory_mib: int
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one device."""

    index: int
    milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Request:
    """What one task needs on one node. Either `milli` or `memory_mib` says how much of each device."""

    devices: int = 0
    milli: int = 0
    memory_mib: int = 0
    cpu: int = 0
    memory: int = 0

    def share_of(self, device: Device) -> Share:
        """What it takes of a device."""
        if self.memory_mib:
            milli = GPU * self.memory_mib // device.memory_mib if device.memory_mib else GPU
            return Share(device.index, milli, self.memory_mib)
        return Share(device.index, self.milli, self.milli * device.memory_mib // GPU)

    def quota(self, memory_mib: int) -> int:
        """Milli-GPU that count against quota, on devices of this size."""
        if self.memory_mib:
            each = -(-GPU * self.memory_mib // memory_mib) if memory_mib else GPU
            return self.devices * each
        return self.devices * self.milli


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    key: str = ""  # empty: every key
    value: str | None = None  # None: every value
    effect: str = ""  # empty: every effect


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    devices: tuple[Device, ...] = ()
    cpu: int = 0
    memory: int = 0
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    pool: str = "default"


class TaskState(Enum):
    PENDING = "pending"
    RUNNING = "running"  # holds its place, whether or not its process has started
    RELEASING = "releasing"  # holds it still, and is on its way


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    request: Request
    state: TaskState = TaskState.PENDING
    node: str = ""
    shares: tuple[Share, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    node_types: tuple[str, ...] = ()  # only nodes of these types; all when empty


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    queue: str
    tasks: tuple[Task, ...]
    created: float = 0
    preemptible: bool = True  # may be stopped for others, and so may go beyond quota
    pools: tuple[str, ...] = ()  # node pools it may use; all when empty


@dataclass(frozen=True, slots=True)
class Queue:
    """A project. Unlimited is None."""

    name: str
    gpu: int | None = 0
    cpu: int | None = None
    memory: int | None = None
    gpu_limit: int | None = None
    over_quota: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    jobs: tuple[Job, ...]
