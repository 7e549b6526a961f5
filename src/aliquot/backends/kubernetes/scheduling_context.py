"""What the scheduler needs to know about a cluster besides pods and nodes: volumes, and the size of gangs.

The size of a gang comes from objects of other projects, which a cluster may or may not serve: pod groups of KAI and of
Kubernetes itself, and the jobs of Kubeflow. Kinds that are not served are looked up again from time to time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import structlog

from aliquot.api import Claim, Json, Kind, Pod
from aliquot.api import Node as NodeObject
from aliquot.backends.kubernetes.reservations.state import is_reservation, reserved_device
from aliquot.backends.kubernetes.unstructured_kinds import PERSISTENT_VOLUME, STORAGE_CLASS, UnstructuredKind
from aliquot.backends.kubernetes.volume_binding import (
    Storage,
    StorageClass,
    Volume,
    bind_claims,
    claims_of,
    node_requirements,
)
from aliquot.errors import Denied, NotFound, PlatformError
from aliquot.planner import Node
from aliquot.scheduler.affinity import PodConstraints
from aliquot.scheduler.scheduling_context import SchedulingContext
from aliquot.store.driver import Document, StoreDriver
from aliquot.store.informer import Informer, Informers, Key

_DISCOVERY_SECONDS = 60.0  # between two lookups of a kind that is not served
log = structlog.get_logger()


def _kind(name: str, plural: str, group: str, version: str) -> UnstructuredKind:
    return Kind(name=name, type=dict, plural=plural, group=group, version=version, namespaced=True)


GANG_KINDS: tuple[UnstructuredKind, ...] = (
    _kind("PodGroup", "podgroups", "scheduling.run.ai", "v2alpha2"),
    _kind("PodGroup", "podgroups", "scheduling.k8s.io", "v1beta1"),
    _kind("PyTorchJob", "pytorchjobs", "kubeflow.org", "v1"),
    _kind("TFJob", "tfjobs", "kubeflow.org", "v1"),
    _kind("XGBoostJob", "xgboostjobs", "kubeflow.org", "v1"),
    _kind("MPIJob", "mpijobs", "kubeflow.org", "v2beta1"),
    _kind("MPIJob", "mpijobs", "kubeflow.org", "v1"),
)


def gang_minimum(data: Json) -> int | None:
    """How many pods start together, from a pod group or a framework's job; None if the object does not say."""
    spec = data.get("spec") or {}
    policy = (spec.get("runPolicy") or {}).get("schedulingPolicy") or {}
    gang = (spec.get("schedulingPolicy") or {}).get("gang") or {}
    for minimum in (spec.get("minMember"), gang.get("minCount"), policy.get("minAvailable")):
        if isinstance(minimum, int) and minimum > 0:
            return minimum
    replica_specs = [value for name, value in spec.items() if name.endswith("ReplicaSpecs") and isinstance(value, dict)]
    replicas = [
        replica.get("replicas", 1) for specs in replica_specs for replica in specs.values() if isinstance(replica, dict)
    ]
    return sum(number for number in replicas if isinstance(number, int)) or None


class KubernetesSchedulingContext(SchedulingContext):
    def __init__(self, driver: StoreDriver, informers: Informers) -> None:
        super().__init__()
        self._driver = driver
        self._claims: Informer[Claim] = informers.of(Claim)
        self._nodes: Informer[NodeObject] = informers.of(NodeObject)
        self._volumes = Informer(driver, PERSISTENT_VOLUME, Volume.of)
        self._classes = Informer(driver, STORAGE_CLASS, StorageClass.of)
        self._gang_minimums = {kind: Informer(driver, kind, _minimum) for kind in GANG_KINDS}
        self._discovered = {kind: asyncio.Event() for kind in GANG_KINDS}  # synced, or not served
        self.storage = Storage(
            self._claims.get, self._volumes.get, lambda: iter(self._volumes), lambda: iter(self._classes)
        )
        self._claims.listen(lambda key, old, new: self._notify(key[0]))
        # A volume may be bound to a claim of any namespace.
        self._volumes.listen(lambda key, old, new: self._notify("") if _differs(old, new) else None)
        self._classes.listen(lambda key, old, new: self._notify(""))
        for informer in self._gang_minimums.values():
            informer.listen(self._gang_changed)

    def background_tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What must run with the scheduler; the shared informers run elsewhere."""
        return [self._volumes.run(), self._classes.run(), *map(self._watch_kind, GANG_KINDS)]

    async def wait_synced(self) -> None:
        for informer in (self._claims, self._nodes, self._volumes, self._classes):
            await informer.synced.wait()
        for discovered in self._discovered.values():
            await discovered.wait()

    def min_available(self, namespace: str, group: str) -> int | None:
        group_kind, _, name = group.partition(":")
        for kind, informer in self._gang_minimums.items():
            if name and kind.name.lower() == group_kind and (minimum := informer.get(name, namespace)):
                return minimum
        return None

    def volume_constraints(self, pod: Pod) -> PodConstraints:
        return node_requirements(pod, self.storage)

    def is_placeholder(self, pod: Pod) -> bool:
        return is_reservation(pod)

    def held_device(self, pod: Pod) -> int | None:
        return reserved_device(pod)

    async def bind_claims(self, pod: Pod, node_name: str) -> None:
        """Binds the pod's unbound claims to volumes that the node reaches. To be called before the pod is bound."""
        if claims_of(pod):
            node = self._nodes.get(node_name)
            labels = node.metadata.labels if node is not None else {}
            await bind_claims(self._driver, self.storage, pod, Node(node_name, labels=labels))

    def _gang_changed(self, key: Key, old: int | None, new: int | None) -> None:
        if old != new:
            self._notify(key[0])

    async def _watch_kind(self, kind: UnstructuredKind) -> None:
        while True:
            if await self._is_served(kind):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._gang_minimums[kind].run())
                    group.create_task(_set_after(self._gang_minimums[kind].synced, self._discovered[kind]))
            self._discovered[kind].set()
            await asyncio.sleep(_DISCOVERY_SECONDS)

    async def _is_served(self, kind: UnstructuredKind) -> bool:
        try:
            await self._driver.count(kind)
        except NotFound:
            return False
        except Denied as exc:
            log.warning("not allowed to read gangs of this kind", kind=kind.name, group=kind.group, error=str(exc))
            return False
        except PlatformError:
            return True  # unknown: the informer keeps trying
        return True


async def _set_after(first: asyncio.Event, then: asyncio.Event) -> None:
    await first.wait()
    then.set()


def _minimum(document: Document) -> int:
    return gang_minimum(document.data) or 0


def _differs(old: Volume | None, new: Volume | None) -> bool:
    """Whether more than the version changed."""
    return old is None or new is None or replace(old, version="") != replace(new, version="")
