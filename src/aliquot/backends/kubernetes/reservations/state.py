"""What a reservation pod holds, and whether fractions of its GPU can be handed out.

The pod's annotation `aliquot.dev/devices` has the index by which the platform knows the GPU, and the GPU's UUID once it
is known.

    preparing    the pod does not run yet, or it is not known yet which GPU it got
    held         fractions can be handed out
    leaving      no pod uses the GPU any more and the pod is being deleted; the GPU is unusable until it is gone
    lost         the node refused the pod: the GPU is not free
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
    # Memory that programs can use, measured on the node; 0 if it was not measured.
    memory_mib: int = 0


def is_reservation(pod: Pod) -> bool:
    """Whether the pod holds a GPU for the pods that share it."""
    return pod.metadata.namespace == labels.RESERVATION_NAMESPACE


def reserved_device(pod: Pod) -> int | None:
    """The index of the GPU that a reservation pod holds; None when its annotation cannot be read."""
    return next(iter(device_indices(pod) or ()), None)


def reservation_of(pod: Pod) -> Reservation | None:
    """What a reservation pod holds; None for every other pod."""
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
