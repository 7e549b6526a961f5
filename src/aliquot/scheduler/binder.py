"""How a decision of the scheduler reaches the back end that runs the pods.

    Binder        gives a pod its node and devices, and evicts a pod
    StoreBinder   does so through the store alone: a patch binds, a delete evicts. One machine needs no more

The Kubernetes back end has a binder of its own, which holds shared GPUs with placeholder pods and respects disruption
budgets. The scheduler does not know which binder it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aliquot import labels
from aliquot.api import KINDS, DeviceShare, Pod, shares_text
from aliquot.store.typed_store import Store


class Binder(Protocol):
    async def abandon_unfinished(self) -> None:
        """Gives up bindings that a previous leader began and cannot finish. Called before the first cycle."""

    async def bind(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        """Binds this version of the pod. `Conflict` when the pod has changed or already has a node."""

    async def eviction_blocker(self, pod: Pod) -> str:
        """Why the cluster forbids to evict the pod now, such as a disruption budget; empty when it may be evicted."""

    async def evict(self, pod: Pod, grace_seconds: int | None) -> None:
        """Asks this pod to end, by its uid. `Unavailable` when it must not be evicted now."""


class StoreBinder:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def abandon_unfinished(self) -> None:
        return

    async def bind(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        meta = pod.metadata
        change = {"metadata": {"annotations": {labels.DEVICES: shares_text(shares)}}, "spec": {"nodeName": node}}
        await self._store.driver.patch(KINDS.of(Pod), meta.name, meta.namespace, change, version=meta.version)

    async def eviction_blocker(self, pod: Pod) -> str:
        return ""

    async def evict(self, pod: Pod, grace_seconds: int | None) -> None:
        await self._store.delete(pod, grace_seconds=grace_seconds)
