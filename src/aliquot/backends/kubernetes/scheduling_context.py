"""What the scheduler must know of a cluster besides pods and nodes: volumes, and how many pods a gang needs.

The second is said by objects of other projects, which a cluster has or has not: KAI's and Kubernetes' own pod groups,
and the jobs of Kubeflow. A kind that is not there is looked for again now and then.
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

_LOOK_SECONDS = 60.0  # before a kind that is not there is looked for again
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
    """How many pods start together, by the pod group or the framework's job; None when it does not say."""
    spec = data.get("spec") or {}
    policy = (spec.get("runPolicy") or {}).get("schedulingPolicy") or {}
    gang = (spec.get("schedulingPolicy") or {}).get("gang") or {}
    for said in (spec.get("minMember"), gang.get("minCount"), policy.get("minAvailable")):
        if isinstance(said, int) and said > 0:
            return said
    replicas = [part for name, part in spec.items() if name.endswith("ReplicaSpecs") and isinstance(part, dict)]
    numbers = [one.get("replicas", 1) for part in replicas for one in part.values() if isinstance(one, dict)]
    return sum(number for number in numbers if isinstance(number, int)) or None


class KubernetesSchedulingContext(SchedulingContext):
    def __init__(self, driver: StoreDriver, informers: Informers) -> None:
        super().__init__()
        self._driver = driver
        self._claims: Informer[Claim] = informers.of(Claim)
        self._nodes: Informer[NodeObject] = informers.of(NodeObject)
        self._volumes = Informer(driver, PERSISTENT_VOLUME, Volume.of)
        self._classes = Informer(driver, STORAGE_CLASS, StorageClass.of)
        self._gangs = {kind: Informer(driver, kind, _minimum) for kind in GANG_KINDS}
        self._looked = {kind: asyncio.Event() for kind in GANG_KINDS}
        self.storage = Storage(
            self._claims.get, self._volumes.get, lambda: iter(self._volumes), lambda: iter(self._classes)
        )
        self._claims.listen(lambda key, old, new: self._notify(key[0]))
        # A volume may be any namespace's.
        self._volumes.listen(lambda key, old, new: self._notify("") if _differ(old, new) else None)
        self._classes.listen(lambda key, old, new: self._notify(""))
        for informer in self._gangs.values():
            informer.listen(self._gang_changed)

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run beside the scheduler, besides the informers it was given."""
        return [self._volumes.run(), self._classes.run(), *map(self._follow_kind, GANG_KINDS)]

    async def wait_synced(self) -> None:
        for informer in (self._claims, self._nodes, self._volumes, self._classes):
            await informer.synced.wait()
        for looked in self._looked.values():
            await looked.wait()

    def min_available(self, namespace: str, group: str) -> int | None:
        word, _, name = group.partition(":")
        for kind, informer in self._gangs.items():
            if name and kind.name.lower() == word and (found := informer.get(name, namespace)):
                return found
        return None

    def volume_constraints(self, pod: Pod) -> PodConstraints:
        return node_requirements(pod, self.storage)

    def is_placeholder(self, pod: Pod) -> bool:
        return is_reservation(pod)

    def held_device(self, pod: Pod) -> int | None:
        return reserved_device(pod)

    async def settle(self, pod: Pod, node: str) -> None:
        """Before a pod is bound: claims that wait for it get their volumes on its node."""
        if claims_of(pod):
            seen = self._nodes.get(node)
            place = Node(node, labels=seen.metadata.labels if seen is not None else {})
            await bind_claims(self._driver, self.storage, pod, place)

    def _gang_changed(self, key: Key, old: int | None, new: int | None) -> None:
        if old != new:
            self._notify(key[0])

    async def _follow_kind(self, kind: UnstructuredKind) -> None:
        while True:
            if await self._is_served(kind):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._gangs[kind].run())
                    group.create_task(_set_after(self._gangs[kind].synced, self._looked[kind]))
            self._looked[kind].set()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _is_served(self, kind: UnstructuredKind) -> bool:
        try:
            await self._driver.count(kind)
        except NotFound:
            return False
        except Denied as exc:
            log.warning("gangs of this kind are not seen", kind=kind.name, group=kind.group, error=str(exc))
            return False
        except PlatformError:
            return True  # it is not known; the informer goes on trying
        return True


async def _set_after(first: asyncio.Event, then: asyncio.Event) -> None:
    await first.wait()
    then.set()


def _minimum(document: Document) -> int:
    return gang_minimum(document.data) or 0


def _differ(old: Volume | None, new: Volume | None) -> bool:
    """Whether more than its version changed."""
    return old is None or new is None or replace(old, version="") != replace(new, version="")
