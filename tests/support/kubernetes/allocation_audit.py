"""Checks that no GPU is ever given twice, from what the API server reports.

The audit watches all pods, past every fault. It notes at once if a node's pods ask for more than the node has. At the
end it checks that the histories of workloads match what happened.
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
    """The fields of a pod that the audit needs."""

    uid: str
    name: str
    owner: str  # the uid of its workload; empty if it has none
    node: str
    gpus: int  # whole ones, which the kubelet assigns
    fractions: tuple[tuple[int, int], ...]  # index and milli
    evicted: bool  # it has an eviction record
    leaving: bool
    ended: bool

    @classmethod
    def of(cls, document: Document) -> PodState:
        pod = decode(Pod, document.data)
        gpus = sum(int(container.resources.limits.get(labels.GPU_RESOURCE, 0)) for container in pod.spec.containers)
        return cls(
            uid=pod.metadata.uid,
            name=pod.metadata.name,
            owner=next((owner.uid for owner in pod.metadata.owners if owner.kind == "Workload"), ""),
            node=pod.spec.node_name,
            gpus=gpus,
            fractions=() if gpus else tuple((share.index, share.milli) for share in shares_of(pod)),
            evicted=labels.EVICTION_RECORD in pod.metadata.annotations,
            leaving=pod.metadata.deleted is not None,
            ended=pod.status.phase in ("Succeeded", "Failed"),
        )


@dataclass
class AllocationAudit:
    capacity: dict[str, int]  # GPUs of each node
    violations: list[str] = field(default_factory=list)
    checks: int = 0  # so far
    pods: dict[str, PodState] = field(default_factory=dict)  # by uid: every pod there was, as last seen
    deleted: set[str] = field(default_factory=set)  # uids

    def informer(self, driver: KubernetesDriver) -> Informer[PodState]:
        """The informer that feeds the audit; the caller runs it."""
        pods: Informer[PodState] = Informer(driver, KINDS.of(Pod), PodState.of)
        pods.listen(self._changed)
        return pods

    def _changed(self, key: Key, old: PodState | None, new: PodState | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self.deleted.add(old.uid)
        if new is None:
            return
        before = self.pods.get(new.uid)
        if before is not None and before.node and before.node != new.node:
            self.violations.append(f"{new.name} was bound to {before.node} and then to {new.node!r}")
        self.pods[new.uid] = new
        if before is None or before.node != new.node:
            self._check_node(new.node)

    def _check_node(self, node: str) -> None:
        """Notes whether the node's pods hold more than the node has."""
        self.checks += 1
        bound = [
            pod for uid, pod in self.pods.items() if pod.node == node and uid not in self.deleted and not pod.ended
        ]
        requested = sum(pod.gpus for pod in bound)
        if node in self.capacity and requested > self.capacity[node]:
            holders = {pod.name: pod.gpus for pod in bound if pod.gpus}
            self.violations.append(f"{node} has {self.capacity[node]} GPUs, and {requested} were given: {holders}")
        shared: Counter[int] = Counter()
        for pod in bound:
            for index, milli in pod.fractions:
                shared[index] += milli
        self.violations += [
            f"GPU {index} of {node} was given {shared[index]} milli" for index in shared if shared[index] > GPU
        ]

    def check(self, workloads: Iterable[Workload]) -> None:
        """At the end: no GPU was given twice, no pod was lost, and histories list each interruption once."""
        assert not self.violations, self.violations
        for workload in workloads:
            name, status = workload.metadata.name, workload.status
            pods = [pod for pod in self.pods.values() if pod.owner == workload.metadata.uid]
            listed = Counter(stop.pod for stop in status.interruptions)
            assert set(listed.values()) <= {1}, f"{name} lists an interruption twice: {listed}"
            assert len(listed) == status.interruption_count, f"{name}: {status}"
            evicted = {pod.uid for pod in pods if pod.evicted}
            assert set(listed) == evicted, f"{name} lists {set(listed)}, and {evicted} were evicted"
            assert evicted <= self.deleted, f"{name} has a pod with an eviction record that still exists"
            assert len(pods) == 1 + len(listed), f"{name} had {len(pods)} pods and {len(listed)} interruptions"
