"""Removes the checkpoints of deleted workloads, including those that were deleted while no agent ran.

A workload counts as deleted when the informer has shown its deletion, or when it has a checkpoint folder from before
and is not in the informer's first list. Being unknown alone is no proof: the informer may lag behind, and checkpoints
that are removed do not come back. Only uids are kept: a workload that cannot be decoded still exists.
"""

from __future__ import annotations

from collections import Counter

from aliquot.api import KINDS, Workload
from aliquot.backends.local.runtime import PodAssignment, Runtime
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.store.driver import StoreDriver
from aliquot.store.informer import Informer, Key


class CheckpointGc:
    """`run` it beside the agent, after `pod_added` was called for every recovered pod."""

    def __init__(self, driver: StoreDriver, runtime: Runtime) -> None:
        self._runtime = runtime
        self.workloads: Informer[str] = Informer(driver, KINDS.of(Workload), lambda document: document.uid)
        self._assignments: dict[str, PodAssignment] = {}  # pods that may write to their workload's folder, by uid
        self._pod_count: Counter[str] = Counter()  # how many of them, by workload
        self._deleted: set[str] = set()
        self._loop = Controller("checkpoints", self._reconcile)

    async def run(self) -> None:
        await self.workloads.synced.wait()
        existing = set(self.workloads)
        for namespace, workload in self._runtime.checkpointed_workloads():
            if workload not in existing:
                self._workload_deleted(namespace, workload)
        self.workloads.listen(self._changed)
        await self._loop.run()

    def pod_added(self, assignment: PodAssignment) -> None:
        """The pod may write to its workload's folder from now on, until `pod_removed`."""
        if assignment.workload and assignment.uid not in self._assignments:
            self._assignments[assignment.uid] = assignment
            self._pod_count[assignment.workload] += 1

    def pod_removed(self, uid: str) -> None:
        assignment = self._assignments.pop(uid, None)
        if assignment is None:
            return
        self._pod_count[assignment.workload] -= 1
        if not self._pod_count[assignment.workload]:
            del self._pod_count[assignment.workload]
        if assignment.workload in self._deleted:
            self._loop.enqueue((assignment.namespace, assignment.workload))

    def _changed(self, key: Key, old: str | None, new: str | None) -> None:
        if old is not None and old != new:
            self._workload_deleted(key[0], old)

    def _workload_deleted(self, namespace: str, workload: str) -> None:
        self._deleted.add(workload)
        self._loop.enqueue((namespace, workload))

    async def _reconcile(self, key: Key) -> None:
        namespace, workload = key
        if workload not in self._pod_count:  # otherwise `pod_removed` of the last pod enqueues it again
            await self._runtime.remove_checkpoints(namespace, workload)
            self._deleted.discard(workload)
