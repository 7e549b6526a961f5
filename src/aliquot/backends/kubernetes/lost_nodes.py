"""Replaces the workloads' pods on nodes that no longer respond.

When a node stops responding Kubernetes marks it NotReady, and after some minutes deletes its pods. No kubelet confirms
the deletion, so the pods and their names stay for ever. For pods of workloads this controller waits a shorter time,
records the interruption on the workload, and then deletes the pod without waiting for the node. If the node comes back,
its kubelet ends the pod's containers.

A node that only lost its network may still run the job during that time. Its GPUs are not given to another job: they
are GPUs of that node.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from aliquot.api import Node, Pod
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import NotFound
from aliquot.store.informer import Informers, Key
from aliquot.store.typed_store import Store
from aliquot.workload_status import Interrupted, WorkloadStatusWriter

# Long enough for a restart of the kubelet or a short network failure, far shorter than Kubernetes' five minutes.
LOST_SECONDS = 60.0
log = structlog.get_logger()


def silent_since(node: Node | None, now: float) -> float | None:
    """The time at which a node stopped responding; None if it responds. A deleted node counts as silent since 0."""
    if node is None:
        return 0.0
    ready = next((condition for condition in node.status.conditions if condition.type == "Ready"), None)
    if ready is None or ready.status != "Unknown":  # a kubelet that reports False responds
        return None
    return ready.last_transition_time or now


class LostNodeController:
    def __init__(
        self,
        store: Store,
        informers: Informers,
        lost_seconds: float = LOST_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._statuses = WorkloadStatusWriter(store)
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        self._lost_seconds = lost_seconds
        self._clock = clock
        self.controller = Controller("lost nodes", self._reconcile)
        self._nodes.listen(self._node_changed)
        self._pods.listen(self._pod_changed)

    def _node_changed(self, key: Key, old: Node | None, new: Node | None) -> None:
        if _responds(old) and not _responds(new):
            self.controller.enqueue(("", key[1]))

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        # A pod may be bound to a node that is already lost.
        node = new.spec.node_name if new is not None else ""
        if node and not _responds(self._nodes.get(node)):
            self.controller.enqueue(("", node))

    async def _reconcile(self, key: Key) -> None:
        name, now = key[1], self._clock()
        if not self._nodes.synced.is_set():
            self.controller.enqueue_after(key, 1.0)
            return
        since = silent_since(self._nodes.get(name), now)
        if since is None:
            return
        if (wait := since + self._lost_seconds - now) > 0:
            self.controller.enqueue_after(key, wait)
            return
        for pod in [pod for pod in self._pods if pod.spec.node_name == name]:
            await self._replace(pod, name)

    async def _replace(self, pod: Pod, node: str) -> None:
        owner = next((owner for owner in pod.metadata.owners if owner.kind == "Workload"), None)
        if owner is None:
            return  # not a workload's pod
        log.warning("node lost, deleting its pod", node=node, pod=pod.metadata.name)
        if pod.status.phase not in ("Succeeded", "Failed"):
            message = f"node {node} does not answer"
            await self._statuses.record(Interrupted(pod, self._clock(), "node-lost", by="", message=message))
        with suppress(NotFound):
            await self._store.delete(pod, grace_seconds=0)


def _responds(node: Node | None) -> bool:
    return node is not None and silent_since(node, 0.0) is None
