"""Finds pods that hold more GPU memory than their limit, by the driver's own count.

The sharing library stops cooperative programs only. A program that is linked statically, brings its own copy of the
driver's library or calls the driver directly bypasses it; the driver still knows what the program holds. Every second
each pod is compared with its limit. A pod over its limit by more than a tolerance, three times in a row, is acted upon.

    find_overruns       (previous counts, usage now) -> (new counts, pods to act upon)
    processes_to_kill   which processes to end, so that the rest fits
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from aliquot.backends.local.devices.gpu_driver import ProcessMemory
from aliquot.units import MIB

INTERVAL_SECONDS = 1.0
SAMPLES = 3  # one sample is no proof: the driver and the limits are not read at the same instant
_MIN_TOLERANCE = 64 * MIB  # the driver counts 6 to 9 MiB per context of its own, which nothing else sees

Key = tuple[str, str]  # pod uid, GPU uuid


class OverrunPolicy(Enum):
    """What happens to a pod that holds more than its limit."""

    KILL_PROCESS = "kill-process"  # its largest processes on the GPU, until the rest fits; the pod goes on
    EVICT = "evict"  # the whole pod
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class PodUsage:
    """What one pod holds on one GPU, and may hold; bytes."""

    uid: str
    uuid: str
    limit: int
    processes: tuple[ProcessMemory, ...] = ()

    @property
    def used(self) -> int:
        return sum(process.used for process in self.processes)

    @property
    def is_over(self) -> bool:
        return self.used > self.limit + max(_MIN_TOLERANCE, self.limit // 100)


def usage_by_pod(
    processes: Iterable[ProcessMemory], owners: Mapping[int, str], limits: Mapping[str, Mapping[str, int]]
) -> list[PodUsage]:
    """`owners`: pod uid by pid; processes that belong to no pod are ignored. `limits`: bytes by pod uid and GPU uuid.

    A pod that uses a GPU on which it has no share is listed with a limit of 0.
    """
    grouped: dict[Key, list[ProcessMemory]] = {(uid, uuid): [] for uid, gpus in limits.items() for uuid in gpus}
    for process in processes:
        owner = owners.get(process.pid, "")
        if owner in limits:
            grouped.setdefault((owner, process.uuid), []).append(process)
    return [PodUsage(uid, uuid, limits[uid].get(uuid, 0), tuple(each)) for (uid, uuid), each in sorted(grouped.items())]


def find_overruns(before: Mapping[Key, int], now: Sequence[PodUsage]) -> tuple[dict[Key, int], list[PodUsage]]:
    """For how many samples each pod has been over its limit, and the pods to act upon, each time until they fit."""
    counts = {(usage.uid, usage.uuid): before.get((usage.uid, usage.uuid), 0) + 1 for usage in now if usage.is_over}
    return counts, [usage for usage in now if counts.get((usage.uid, usage.uuid), 0) >= SAMPLES]


def processes_to_kill(usage: PodUsage) -> list[int]:
    """Pids of the largest processes first, until the rest fits."""
    left, pids = usage.used, []
    for process in sorted(usage.processes, key=lambda process: (-process.used, process.pid)):
        if left <= usage.limit:
            break
        pids.append(process.pid)
        left -= process.used
    return pids


def overrun_message(usage: PodUsage) -> str:
    used, limit = usage.used // MIB, usage.limit // MIB
    if not usage.limit:
        return f"holds {used} MiB of GPU memory on {usage.uuid}, where it has no share"
    return f"holds {used} MiB of GPU memory on {usage.uuid}; its limit is {limit} MiB"
