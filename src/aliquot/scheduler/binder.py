"""How a decision of the scheduler reaches whoever runs pods.

    Hands        gives a pod its node and devices, and stops one
    StoreHands   the store's own way: one patch that binds, one delete; all that one machine needs

On Kubernetes both have more to do (a shared GPU is held by a reservation pod, budgets may forbid a stop), and so other
hands; the scheduler does not know which it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aliquot import labels
from aliquot.api import KINDS, DeviceShare, Pod, shares_text
from aliquot.store.typed_store import Store


class Binder(Protocol):
    async def abandon_unfinished(self) -> None:
        """Before the first decision: what somebody who decided before us began and cannot finish is given up."""

    async def bind(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        """Once, and only this version of the pod: `Conflict` when it has changed or has a node."""

    async def eviction_blocker(self, pod: Pod) -> str:
        """Why the pod must not be stopped now, by a rule that is not ours; empty when nothing speaks against it."""

    async def evict(self, pod: Pod, grace_seconds: int | None) -> None:
        """Asks this very pod to end. `Unavailable` when it must not be stopped now."""


class StoreBinder:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def abandon_unfinished(self) -> None:
        return

    async def bind(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        place = pod.metadata
        change = {"metadata": {"annotations": {labels.DEVICES: shares_text(shares)}}, "spec": {"nodeName": node}}
        await self._store.driver.patch(KINDS.of(Pod), place.name, place.namespace, change, version=place.version)

    async def eviction_blocker(self, pod: Pod) -> str:
        return ""

    async def evict(self, pod: Pod, grace_seconds: int | None) -> None:
        await self._store.delete(pod, grace_seconds=grace_seconds)
