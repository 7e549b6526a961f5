"""What the scheduler must know of more than a job's own pods, its workload and its project.

    minimum   how many pods of a group start together, where another object says it
    volumes   which nodes can reach what a pod mounts
    watched   labels of pods that anybody's rule about neighbours asks for

On one machine only the last is there. On Kubernetes the others are read from pod groups, claims and volumes
(`kube.around`); the picture asks whomever it was given.
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
        """Before anybody else listens to these pods: what they ask for is then known when they are looked at."""
        pods.listen(self._pod_changed)

    def listen(self, changed: Changed) -> None:
        """`changed(namespace)` when its jobs may be other than they were; an empty one means all of them."""
        self._listeners.append(changed)

    def min_available(self, namespace: str, group: str) -> int | None:
        """How many pods of a group start together; None when only its pods can say it."""
        return None

    def volume_constraints(self, pod: Pod) -> PodConstraints:
        """Which nodes can reach the pod's volumes, or why none can now."""
        return NO_CONSTRAINTS

    async def wait_synced(self) -> None:
        """Until it is known what is there."""

    def _notify(self, namespace: str) -> None:
        for changed in self._listeners:
            changed(namespace)

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        before, after = _keys(old), _keys(new)
        if before == after:
            return
        self._counts.update(after)
        self._counts.subtract(before)
        watched = frozenset(word for word, number in self._counts.items() if number)
        if watched != self.affinity_label_keys:
            self.affinity_label_keys = watched
            self._notify("")


def _keys(pod: Pod | None) -> frozenset[str]:
    return frozenset() if pod is None or not pod.spec.affinity else affinity_label_keys(constraints_of(pod))


EMPTY_CONTEXT = SchedulingContext()
