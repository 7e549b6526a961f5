"""Which devices of each node are in use, including those of pods that do not name their devices.

On one machine the scheduler names the devices of every pod. On Kubernetes other schedulers place pods too, and say only
how many GPUs a pod holds; the kubelet chooses which ones. Device indices are therefore logical there: a pod that names
no devices is counted on the lowest indices that are free when it is first seen, and keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aliquot import labels
from aliquot.api import Pod, shares_of
from aliquot.errors import Invalid
from aliquot.planner import DeviceShare
from aliquot.podspec.requests import request_of
from aliquot.units import GPU

_FINISHED = ("Succeeded", "Failed")


class DeviceAccounting:
    def __init__(self) -> None:
        self._inferred: dict[str, tuple[str, tuple[DeviceShare, ...]]] = {}
        self._held: dict[str, tuple[str, tuple[int, ...]]] = {}  # pod uid -> node, devices
        self._in_use: dict[str, dict[int, int]] = {}  # node -> device -> number of pods that hold it

    @property
    def inferred(self) -> dict[str, tuple[str, tuple[DeviceShare, ...]]]:
        """Pod uid -> (node, shares) of the pods that name no devices. A live view."""
        return self._inferred

    def in_use(self, node: str) -> Mapping[int, int]:
        """The devices of a node that are held, with the number of pods that hold each."""
        return self._in_use.get(node, {})

    def update(self, pod: Pod) -> None:
        """Counts a pod as it is now. A pod keeps the devices that were inferred for it before."""
        if not pod.spec.node_name or pod.status.phase in _FINISHED:
            self.remove(pod)
            return
        uid = pod.metadata.uid
        named = device_indices(pod)
        if named is not None:
            self._hold(uid, pod.spec.node_name, named)
        elif uid not in self._inferred and (count := _device_count(pod)):
            self._infer(uid, pod.spec.node_name, count)

    def remove(self, pod: Pod) -> None:
        self._inferred.pop(pod.metadata.uid, None)
        self._release(pod.metadata.uid)

    def assume(self, uid: str, node: str, shares: Sequence[DeviceShare]) -> None:
        """Counts a binding that the informer has not shown yet."""
        self._hold(uid, node, [share.index for share in shares])

    def forget(self, uid: str) -> None:
        self._release(uid)

    def _infer(self, uid: str, node: str, count: int) -> None:
        taken = self.in_use(node)
        free = (index for index in range(len(taken) + count) if index not in taken)
        devices = [index for index, _ in zip(free, range(count), strict=False)]
        self._inferred[uid] = (node, tuple(DeviceShare(index, GPU, 0) for index in devices))
        self._hold(uid, node, devices)

    def _hold(self, uid: str, node: str, devices: Sequence[int]) -> None:
        if self._held.get(uid) == (node, tuple(devices)):
            return
        self._release(uid)
        if devices:
            self._held[uid] = (node, tuple(devices))
            in_use = self._in_use.setdefault(node, {})
            for index in devices:
                in_use[index] = in_use.get(index, 0) + 1

    def _release(self, uid: str) -> None:
        node, devices = self._held.pop(uid, ("", ()))
        in_use = self._in_use.get(node, {})
        for index in devices:
            in_use[index] -= 1
            if not in_use[index]:
                del in_use[index]
        if node and not in_use:
            self._in_use.pop(node, None)


def device_indices(pod: Pod) -> list[int] | None:
    """The devices that a pod's annotation names; None when it has none, or one that cannot be read."""
    if labels.DEVICES not in pod.metadata.annotations:
        return None
    try:
        return [share.index for share in shares_of(pod)]
    except Invalid:
        return None


def _device_count(pod: Pod) -> int:
    try:
        return request_of(pod).devices
    except ValueError:
        return 0
