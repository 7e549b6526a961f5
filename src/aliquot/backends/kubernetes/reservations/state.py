"""GPUs that are held for those who share them, as their reservation pods say.

On Kubernetes a shared GPU is held by a pod of its own, so that the kubelet and other schedulers know it is taken. Its
annotation `aliquot.dev/devices` has the number that we know the GPU by, and its own name once it is known.

    preparing    the pod is not running yet, or nobody knows yet which GPU it got
    held         parts can be given out
    leaving      nobody has a part any more, and the GPU is on its way back; nothing can be put there until it is gone
    lost         the node refused it: the GPU is not free
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aliquot import labels
from aliquot.api import Pod, shares_of
from aliquot.errors import Invalid
from aliquot.scheduler.device_accounting import device_indices


class ReservationState(Enum):
    PREPARING = "preparing"
    HELD = "held"
    LEAVING = "leaving"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Reservation:
    node: str
    index: int
    state: ReservationState
    # Empty until it is known.
    uuid: str = ""
    # What programs can have of it, as measured on the node; 0: not measured.
    memory_mib: int = 0


def is_reservation(pod: Pod) -> bool:
    """Whether the pod holds a GPU for the pods that share it."""
    return pod.metadata.namespace == labels.RESERVATION_NAMESPACE


def reserved_device(pod: Pod) -> int | None:
    """The index of the GPU that a reservation pod holds; None when its annotation cannot be read."""
    return next(iter(device_indices(pod) or ()), None)


def reservation_of(pod: Pod) -> Reservation | None:
    """What a reservation pod holds; None for all other pods."""
    if not is_reservation(pod):
        return None
    try:
        shares = shares_of(pod)
    except Invalid:
        return None
    if len(shares) != 1:
        return None
    share = shares[0]
    return Reservation(pod.spec.node_name, share.index, _state(pod, share.uuid), share.uuid, share.memory_mib)


def _state(pod: Pod, uuid: str) -> ReservationState:
    if pod.metadata.deleted is not None:
        return ReservationState.LEAVING
    if pod.status.phase in ("Failed", "Succeeded"):
        return ReservationState.LOST
    return ReservationState.HELD if pod.status.phase == "Running" and uuid else ReservationState.PREPARING
