"""Dynamic fractions: GPU memory that is guaranteed to no pod, or to a pod that does not use the GPU, is lent to others.

A pod with request 0.25 and limit 0.8 is scheduled by its request. What it holds beyond the request is borrowed, from
the unallocated memory of the GPU and from pods that have no process on it. As soon as such a pod has a process, its
whole guarantee is its own again: the limits of the borrowers fall, and processes that hold more than fits are stopped
(see memory_audit.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# For this long after its start a pod counts as active: its first context must find its memory free.
STARTING_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PodMemory:
    """One pod on a GPU; bytes."""

    uid: str
    guaranteed: int
    # How far it may grow; never less than `guaranteed`.
    cap: int
    used: int
    # Whether it uses the GPU, or is about to.
    active: bool

    @property
    def borrowed(self) -> int:
        return max(0, self.used - self.guaranteed)


def limits(pods: Sequence[PodMemory], total: int) -> dict[str, int]:
    """The current limit of each pod, by uid.

    No limit falls below the pod's guarantee. The guarantees of active pods and the borrowed memory fit the GPU
    together.
    """
    reserved = sum(pod.guaranteed if pod.active or pod.used else 0 for pod in pods)
    free = total - reserved - sum(pod.borrowed for pod in pods)
    to_return = _to_return(pods, -free)
    return {
        pod.uid: max(pod.guaranteed, pod.used - to_return[pod.uid]) if free < 0 else _grown_limit(pod, free, total)
        for pod in pods
    }


def _to_return(pods: Sequence[PodMemory], missing: int) -> dict[str, int]:
    """Bytes that each pod must return. The largest borrower returns first, so that few pods lose processes."""
    to_return = {}
    for pod in sorted(pods, key=lambda pod: (-pod.borrowed, pod.uid)):
        to_return[pod.uid] = max(0, min(pod.borrowed, missing))
        missing -= to_return[pod.uid]
    return to_return


def _grown_limit(pod: PodMemory, free: int, total: int) -> int:
    """Every pod may take all that is free: the first to allocate gets it, and the limits of the others fall."""
    # Nothing is reserved for an inactive pod yet, so its own guarantee is part of what is free.
    reach = max(pod.used, pod.guaranteed) + free
    if not (pod.active or pod.used):
        reach = max(pod.guaranteed, free)
    return max(pod.guaranteed, min(pod.cap, reach, total))
