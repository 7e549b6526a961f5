"""Pods on nodes that are gone: their workloads go on elsewhere.

When a node stops to answer, Kubernetes marks it NotReady, and after some minutes asks its pods to stop. Nobody there
confirms it, so they stay for ever, and with them their names. For our workloads' pods this loop waits for a shorter
time, writes down why the workload was interrupted, and then removes the pod without waiting for the node. Should the
node come back, its kubelet ends what is left: it is no longer wanted there.

A node that only lost its network may still run the job for that while. Its GPUs are given to nobody else: they are that
node's.
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

# Long enough for a reboot of its kubelet or a break of the network, far shorter than the five minutes of Kubernetes.
LOST_SECONDS = 60.0
log = structlog.get_logger()


def silent_since(node: Node | None, now: float) -> float | None:
    """Since when a node does not answer; None: it does. One that is no longer there is lost for as long as can be."""
    if node is None:
        return 0.0
    ready = next((one for one in node.status.conditions if one.type == "Ready"), None)
    if ready is None or ready.status != "Unknown":  # who says False is there, and says so
        return None
    return ready.last_transition_time or now


class LostNodeController:
    def __init__(
        self,
        store: Store,
        informers: Informers,
        patience: float = LOST_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._statuses = WorkloadStatusWriter(store)
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        self._patience = patience
        self._clock = clock
        self.controller = Controller("lost nodes", self._reconcile)
        self._nodes.listen(self._node_changed)
        self._pods.listen(self._pod_changed)

    def _node_changed(self, key: Key, old: Node | None, new: Node | None) -> None:
        was, now = (_answers(old), _answers(new))
        if was and not now:
            self.controller.enqueue(("", key[1]))

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        # Also of one that comes to a node that was lost already.
        node = new.spec.node_name if new is not None else ""
        if node and not _answers(self._nodes.get(node)):
            self.controller.enqueue(("", node))

    async def _reconcile(self, key: Key) -> None:
        name, now = key[1], self._clock()
        if not self._nodes.synced.is_set():
            self.controller.enqueue_after(key, 1.0)
            return
        since = silent_since(self._nodes.get(name), now)
        if since is None:
            return
        if (wait := since + self._patience - now) > 0:
            self.controller.enqueue_after(key, wait)
            return
        for pod in [pod for pod in self._pods if pod.spec.node_name == name]:
            await self._give_up(pod, name)

    async def _give_up(self, pod: Pod, node: str) -> None:
        owner = next((owner for owner in pod.metadata.owners if owner.kind == "Workload"), None)
        if owner is None:
            return  # others look after theirs
        log.warning("node is lost, its pod is given up", node=node, pod=pod.metadata.name)
        if pod.status.phase not in ("Succeeded", "Failed"):
            message = f"node {node} does not answer"
            await self._statuses.record(Interrupted(pod, self._clock(), "node-lost", by="", message=message))
        with suppress(NotFound):
            await self._store.delete(pod, grace_seconds=0)


def _answers(node: Node | None) -> bool:
    return node is not None and silent_since(node, 0.0) is None
