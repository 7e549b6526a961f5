"""Which devices of each node are in use, also where nobody said which.

On one machine the scheduler names the devices of every pod. On Kubernetes other schedulers place pods too, and say only
how many GPUs they hold; which ones is the kubelet's affair. So numbers of devices are logical there: a pod that names
none is counted on the lowest that are free at the moment it is first seen, and stays there.

    counted    pod uid -> (node, shares) of the pods that name no devices
    used       the devices of a node that anybody holds, with how many hold each
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot import labels
from aliquot.api import Pod, shares_of
from aliquot.errors import Invalid
from aliquot.planner import DeviceShare
from aliquot.podspec.requests import request_of
from aliquot.units import GPU

_FINISHED = ("Succeeded", "Failed")


class DeviceAccounting:
    def __init__(self) -> None:
        self.counted: dict[str, tuple[str, tuple[DeviceShare, ...]]] = {}
        self._held: dict[str, tuple[str, tuple[int, ...]]] = {}  # pod uid -> node, devices
        self._used: dict[str, dict[int, int]] = {}

    def used(self, node: str) -> dict[int, int]:
        return self._used.get(node, {})

    def left(self, pod: Pod) -> None:
        self.counted.pop(pod.metadata.uid, None)
        self._drop(pod.metadata.uid)

    def seen(self, pod: Pod) -> None:
        """A pod as it is now. Where it was counted before it is counted again."""
        if not pod.spec.node_name or pod.status.phase in _FINISHED:
            self.left(pod)
            return
        if is_reservation(pod):
            return  # it holds for others, who say themselves what
        uid = pod.metadata.uid
        named = _named(pod)
        if named is not None:
            self._hold(uid, pod.spec.node_name, named)
        elif uid not in self.counted and (number := _number(pod)):
            self._count(uid, pod.spec.node_name, number)

    def assumed(self, uid: str, node: str, shares: Sequence[DeviceShare]) -> None:
        """Given a moment ago, and not yet seen."""
        self._hold(uid, node, [one.index for one in shares])

    def forgotten(self, uid: str) -> None:
        self._drop(uid)

    def _count(self, uid: str, node: str, number: int) -> None:
        taken = self.used(node)
        free = (index for index in range(len(taken) + number) if index not in taken)
        devices = [index for index, _ in zip(free, range(number), strict=False)]
        self.counted[uid] = (node, tuple(DeviceShare(index, GPU, 0) for index in devices))
        self._hold(uid, node, devices)

    def _hold(self, uid: str, node: str, devices: Sequence[int]) -> None:
        if self._held.get(uid) == (node, tuple(devices)):
            return
        self._drop(uid)
        if devices:
            self._held[uid] = (node, tuple(devices))
            used = self._used.setdefault(node, {})
            for index in devices:
                used[index] = used.get(index, 0) + 1

    def _drop(self, uid: str) -> None:
        node, devices = self._held.pop(uid, ("", ()))
        used = self._used.get(node, {})
        for index in devices:
            used[index] -= 1
            if not used[index]:
                del used[index]
        if node and not used:
            self._used.pop(node, None)


def is_reservation(pod: Pod) -> bool:
    """Whether it holds a device for those who share it."""
    return pod.metadata.namespace == labels.RESERVATION_NAMESPACE


def reserved_device(pod: Pod) -> int | None:
    """The device that a reservation pod holds."""
    return next(iter(_named(pod) or ()), None)


def _named(pod: Pod) -> list[int] | None:
    if labels.DEVICES not in pod.metadata.annotations:
        return None
    try:
        return [share.index for share in shares_of(pod)]
    except Invalid:
        return None


def _number(pod: Pod) -> int:
    try:
        request = request_of(pod)
    except ValueError:
        return 0
    return request.devices
