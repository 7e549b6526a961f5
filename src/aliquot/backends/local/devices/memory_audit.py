"""Whether pods keep to their memory on GPUs, judged by what the driver counts and not by what they say.

The sharing library is a fence for honest programs. A program that is linked statically, brings its own copy of the
driver's library or speaks to the driver by itself walks around it; the driver still knows what it holds. Every
second each pod is held against its limit. Over it by more than a tolerance, three times in a row, it is acted upon.

    judge     (who was over before, what is held now) -> (who is over now, whom to act upon)
    victims   which processes to end, so that the rest fits
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from aliquot.backends.local.devices.gpu_driver import ProcessMemory
from aliquot.units import MIB

SECONDS = 1.0
SAMPLES = 3  # one moment above is no proof: the driver and the ledger are not read at the same instant
_LEAST_TOLERANCE = 64 * MIB  # 6 to 9 MiB per context are the driver's own, and seen only by it

Key = tuple[str, str]  # pod's uid, GPU's uuid


class OverrunPolicy(Enum):
    """What is done about a pod that holds more than it may."""

    KILL_PROCESS = "kill-process"  # its largest processes on the GPU, until the rest fits; the pod goes on
    EVICT = "evict"  # the whole pod
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class PodUsage:
    """What one pod holds on one GPU, and may hold."""

    uid: str
    uuid: str
    limit: int
    uses: tuple[ProcessMemory, ...] = ()

    @property
    def used(self) -> int:
        return sum(use.used for use in self.uses)

    @property
    def is_over(self) -> bool:
        return self.used > self.limit + max(_LEAST_TOLERANCE, self.limit // 100)


def gather(
    uses: Iterable[ProcessMemory], owners: Mapping[int, str], limits: Mapping[str, Mapping[str, int]]
) -> list[PodUsage]:
    """`owners`: pod by process; processes of nobody are not ours to judge. `limits`: bytes by pod and GPU.

    A pod that uses a GPU on which it was given nothing is there with a limit of 0.
    """
    found: dict[Key, list[ProcessMemory]] = {(uid, uuid): [] for uid, gpus in limits.items() for uuid in gpus}
    for use in uses:
        owner = owners.get(use.pid, "")
        if owner in limits:
            found.setdefault((owner, use.uuid), []).append(use)
    return [PodUsage(uid, uuid, limits[uid].get(uuid, 0), tuple(each)) for (uid, uuid), each in sorted(found.items())]


def judge(before: Mapping[Key, int], now: Sequence[PodUsage]) -> tuple[dict[Key, int], list[PodUsage]]:
    """Who is over and for how many samples, and those who have been for long enough: each time anew until they fit."""
    counts = {(held.uid, held.uuid): before.get((held.uid, held.uuid), 0) + 1 for held in now if held.is_over}
    return counts, [held for held in now if counts.get((held.uid, held.uuid), 0) >= SAMPLES]


def victims(held: PodUsage) -> list[int]:
    """The largest processes first, until the rest fits."""
    left, found = held.used, []
    for use in sorted(held.uses, key=lambda use: (-use.used, use.pid)):
        if left <= held.limit:
            break
        found.append(use.pid)
        left -= use.used
    return found


def sentence(held: PodUsage) -> str:
    used, limit = held.used // MIB, held.limit // MIB
    if not held.limit:
        return f"holds {used} MiB of GPU memory on {held.uuid}, of which it was given nothing"
    return f"holds {used} MiB of GPU memory on {held.uuid}; its limit is {limit} MiB"
