"""Removes the checkpoints of workloads that are gone, also of those that went while no agent looked.

A workload is gone when it was seen to go, or when it has a folder from before and is not in the first list. Being
unknown alone is no proof: the picture may lag behind, and what is removed does not come back. Only uids are kept: an
object that cannot be read is still there.
"""

from __future__ import annotations

from collections import Counter

from aliquot.api import KINDS, Workload
from aliquot.backends.local.runtime import PodAssignment, Runtime
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.store.driver import StoreDriver
from aliquot.store.informer import Informer, Key


class CheckpointGc:
    """`run` it beside the agent, once the pods that were left are told by `used`."""

    def __init__(self, driver: StoreDriver, runtime: Runtime) -> None:
        self._runtime = runtime
        self.workloads: Informer[str] = Informer(driver, KINDS.of(Workload), lambda document: document.uid)
        self._tickets: dict[str, PodAssignment] = {}  # of pods that may write to their workload's folder, by uid
        self._pods: Counter[str] = Counter()  # how many of them, by workload
        self._gone: set[str] = set()
        self._controller = Controller("checkpoints", self._reconcile)

    async def run(self) -> None:
        await self.workloads.synced.wait()
        here = set(self.workloads)
        for namespace, workload in self._runtime.kept():
            if workload not in here:
                self._lost(namespace, workload)
        self.workloads.listen(self._changed)
        await self._controller.run()

    def used(self, assignment: PodAssignment) -> None:
        """A pod may write to its workload's folder from now on, until it is `left`."""
        if assignment.workload and assignment.uid not in self._tickets:
            self._tickets[assignment.uid] = assignment
            self._pods[assignment.workload] += 1

    def left(self, uid: str) -> None:
        assignment = self._tickets.pop(uid, None)
        if assignment is None:
            return
        self._pods[assignment.workload] -= 1
        if not self._pods[assignment.workload]:
            del self._pods[assignment.workload]
        if assignment.workload in self._gone:
            self._controller.enqueue((assignment.namespace, assignment.workload))

    def _changed(self, key: Key, old: str | None, new: str | None) -> None:
        if old is not None and old != new:
            self._lost(key[0], old)

    def _lost(self, namespace: str, workload: str) -> None:
        self._gone.add(workload)
        self._controller.enqueue((namespace, workload))

    async def _reconcile(self, key: Key) -> None:
        namespace, workload = key
        if workload not in self._pods:  # else `left` will say
            await self._runtime.forget(namespace, workload)
            self._gone.discard(workload)
