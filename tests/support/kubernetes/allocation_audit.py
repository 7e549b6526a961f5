"""Who held which GPU at every moment, as the API server itself tells it.

The ledger follows all pods past every fault. It says at once when a node's pods ask for more than it has, and in the
end whether the histories of workloads tell what really happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from aliquot import labels
from aliquot.api import KINDS, Pod, Workload, decode, shares_of
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.informer import Informer, Key
from aliquot.units import GPU


@dataclass(frozen=True)
class PodState:
    """What matters of a pod."""

    uid: str
    name: str
    owner: str  # the uid of its workload; empty: it has none
    node: str
    gpus: int  # whole ones, that the kubelet would have to grant
    parts: tuple[tuple[int, int], ...]  # of GPUs that others hold for it: index and milli
    evicted: bool  # it is to be stopped
    leaving: bool
    ended: bool

    @classmethod
    def of(cls, document: Document) -> PodState:
        pod = decode(Pod, document.data)
        gpus = sum(int(one.resources.limits.get(labels.GPU_RESOURCE, 0)) for one in pod.spec.containers)
        return cls(
            uid=pod.metadata.uid,
            name=pod.metadata.name,
            owner=next((owner.uid for owner in pod.metadata.owners if owner.kind == "Workload"), ""),
            node=pod.spec.node_name,
            gpus=gpus,
            parts=() if gpus else tuple((share.index, share.milli) for share in shares_of(pod)),
            evicted=labels.EVICTION_RECORD in pod.metadata.annotations,
            leaving=pod.metadata.deleted is not None,
            ended=pod.status.phase in ("Succeeded", "Failed"),
        )


@dataclass
class AllocationAudit:
    capacity: dict[str, int]  # GPUs of each node
    faults: list[str] = field(default_factory=list)
    moments: int = 0  # that were looked at
    lives: dict[str, PodState] = field(default_factory=dict)  # every pod there was, by uid, as it was last seen
    gone: set[str] = field(default_factory=set)

    def follow(self, driver: KubernetesDriver) -> Informer[PodState]:
        """Its caller runs it."""
        pods: Informer[PodState] = Informer(driver, KINDS.of(Pod), PodState.of)
        pods.listen(self._changed)
        return pods

    def _changed(self, key: Key, old: PodState | None, new: PodState | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self.gone.add(old.uid)
        if new is None:
            return
        before = self.lives.get(new.uid)
        if before is not None and before.node and before.node != new.node:
            self.faults.append(f"{new.name} was bound to {before.node} and then to {new.node!r}")
        self.lives[new.uid] = new
        if before is None or before.node != new.node:
            self._look(new.node)

    def _look(self, node: str) -> None:
        """That nothing of a node is given twice."""
        self.moments += 1
        here = [pod for uid, pod in self.lives.items() if pod.node == node and uid not in self.gone and not pod.ended]
        asked = sum(pod.gpus for pod in here)
        if node in self.capacity and asked > self.capacity[node]:
            holders = {pod.name: pod.gpus for pod in here if pod.gpus}
            self.faults.append(f"{node} has {self.capacity[node]} GPUs, and {asked} were given: {holders}")
        shared: Counter[int] = Counter()
        for pod in here:
            for index, milli in pod.parts:
                shared[index] += milli
        self.faults += [
            f"GPU {index} of {node} was given {shared[index]} milli" for index in shared if shared[index] > GPU
        ]

    def check(self, workloads: Iterable[Workload]) -> None:
        """Once all is calm: no GPU was given twice, nobody was lost, and histories tell each interruption once."""
        assert not self.faults, self.faults
        for workload in workloads:
            name, status = workload.metadata.name, workload.status
            lives = [pod for pod in self.lives.values() if pod.owner == workload.metadata.uid]
            told = Counter(stop.pod for stop in status.interruptions)
            assert set(told.values()) <= {1}, f"{name} tells of an interruption twice: {told}"
            assert len(told) == status.interruption_count, f"{name}: {status}"
            stopped = {pod.uid for pod in lives if pod.evicted}
            assert set(told) == stopped, f"{name} tells of {set(told)}, and {stopped} were stopped"
            assert stopped <= self.gone, f"{name} has a pod that was to be stopped and is there"
            assert len(lives) == 1 + len(told), f"{name} had {len(lives)} pods, and was stopped {len(told)} times"
