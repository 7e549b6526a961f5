"""What the scheduler needs to know beyond a job's pods, its workload and its project.

    min_available         how many pods of a group start together, where another object says so
    volume_constraints    which nodes can reach the volumes of a pod
    affinity_label_keys   the pod labels that the affinity terms of any pod select by
    is_placeholder        whether a pod holds a device on behalf of the pods that share it

On one machine only the affinity labels apply. The Kubernetes back end overrides the rest: it reads pod groups, claims
and volumes, and it holds shared GPUs with placeholder pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from aliquot.api import Pod
from aliquot.scheduler.affinity import NO_CONSTRAINTS, PodConstraints, affinity_label_keys, constraints_of
from aliquot.store.informer import Informer, Key

Changed = Callable[[str], None]


class SchedulingContext:
    def __init__(self) -> None:
        self.affinity_label_keys: frozenset[str] = frozenset()
        self._counts: Counter[str] = Counter()
        self._listeners: list[Changed] = []

    def watch_pods(self, pods: Informer[Pod]) -> None:
        """Call this before the cache listens to the same informer, so that the keys include those of a new pod."""
        pods.listen(self._pod_changed)

    def listen(self, changed: Changed) -> None:
        """Calls `changed(namespace)` when the jobs of a namespace must be rebuilt; "" means every namespace."""
        self._listeners.append(changed)

    def min_available(self, namespace: str, group: str) -> int | None:
        """How many pods of a group start together; None when no other object says so."""
        return None

    def volume_constraints(self, pod: Pod) -> PodConstraints:
        """The nodes that can reach the pod's volumes, or the reason why none can now."""
        return NO_CONSTRAINTS

    def is_placeholder(self, pod: Pod) -> bool:
        """Whether the pod holds a device on behalf of the pods that share it. Those are counted, it is not."""
        return False

    def held_device(self, pod: Pod) -> int | None:
        """The index of the device that a placeholder pod holds; None when it cannot be read."""
        return None

    async def wait_synced(self) -> None:
        """Returns when everything that the context reads has been listed once."""

    def _notify(self, namespace: str) -> None:
        for changed in self._listeners:
            changed(namespace)

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        before, after = _label_keys(old), _label_keys(new)
        if before == after:
            return
        self._counts.update(after)
        self._counts.subtract(before)
        keys = frozenset(label for label, count in self._counts.items() if count)
        if keys != self.affinity_label_keys:
            self.affinity_label_keys = keys
            self._notify("")


def _label_keys(pod: Pod | None) -> frozenset[str]:
    return frozenset() if pod is None or not pod.spec.affinity else affinity_label_keys(constraints_of(pod))


EMPTY_CONTEXT = SchedulingContext()
