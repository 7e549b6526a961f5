"""The garbage collector, for store drivers that do not collect garbage themselves (Kubernetes does).

 1. An object is deleted when all its owners are gone.
 2. A namespace that is being deleted is emptied, and then its finalizer is removed.
 3. Events are deleted after an hour, as on Kubernetes. Of very many only the latest are kept.

It caches a few hundred bytes of metadata for each object. Before it deletes an object it reads the owners from the
store once more, because the cache may lag behind.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from aliquot import units
from aliquot.api import KINDS
from aliquot.controllers.events import EVENT_SECONDS
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import NotFound, PlatformError
from aliquot.store.driver import AnyKind, Document, StoreDriver
from aliquot.store.informer import Informer, Key

MAX_EVENTS = 10_000  # about 10 MB; an hour with three jobs a second
_SWEEP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class OwnerRef:
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ObjectSummary:
    """The cached metadata of an object."""

    uid: str
    owners: tuple[OwnerRef, ...]
    deleting: bool
    last_seen: float = 0  # events only


def summarize(document: Document) -> ObjectSummary:
    metadata = document.metadata
    owners = tuple(
        OwnerRef(owner["kind"], owner["name"], owner["uid"]) for owner in metadata.get("ownerReferences") or ()
    )
    return ObjectSummary(document.uid, owners, "deletionTimestamp" in metadata, _last_seen(document))


def _last_seen(document: Document) -> float:
    if document.data.get("kind") != "Event":
        return 0
    try:
        return units.timestamp(document.data.get("lastTimestamp") or document.metadata["creationTimestamp"])
    except ValueError:
        return 0  # written past our validation; deleted at the next sweep


class GarbageCollector:
    """Watches every kind, and reconciles objects that may have lost their owners and namespaces being deleted."""

    def __init__(self, driver: StoreDriver, clock: Callable[[], float] = time.time) -> None:
        self._driver = driver
        self._clock = clock
        self.informers = {kind.name: Informer(driver, kind, summarize) for kind in KINDS}
        self._dependents: dict[str, set[tuple[str, Key]]] = defaultdict(set)  # owner uid -> (kind, key)
        self.controller = Controller("garbage", self._reconcile)
        for kind in KINDS:
            self.informers[kind.name].listen(self._listener(kind))

    def _listener(self, kind: AnyKind) -> Callable[[Key, ObjectSummary | None, ObjectSummary | None], None]:
        def changed(key: Key, old: ObjectSummary | None, new: ObjectSummary | None) -> None:
            for owner in old.owners if old else ():
                self._remove_dependent(owner.uid, (kind.name, key))
            for owner in new.owners if new else ():
                self._dependents[owner.uid].add((kind.name, key))
            if new and new.owners:
                self._enqueue(kind.name, key)
            if new and kind.name == "Namespace" and new.deleting:
                self._enqueue(kind.name, key)
            if old and (new is None or new.uid != old.uid):
                for name, dependent in self._dependents.pop(old.uid, ()):
                    self._enqueue(name, dependent)
            if new is None and kind.namespaced and key[0]:
                self._enqueue("Namespace", ("", key[0]))

        return changed

    def _remove_dependent(self, owner: str, dependent: tuple[str, Key]) -> None:
        dependents = self._dependents.get(owner, set())
        dependents.discard(dependent)
        if not dependents:
            self._dependents.pop(owner, None)

    def _enqueue(self, kind: str, key: Key) -> None:
        self.controller.enqueue((f"{kind}/{key[0]}", key[1]))

    async def _reconcile(self, key: Key) -> None:
        name, _, namespace = key[0].partition("/")
        kind = KINDS.named(name)
        cached = self.informers[name].get(key[1], namespace)
        if cached is None:
            return
        try:
            if kind.name == "Namespace" and cached.deleting:
                await self._empty_namespace(key[1])
            elif cached.owners and not cached.deleting:
                await self._delete_if_orphaned(kind, key[1], namespace)
        except NotFound:
            return  # already gone

    async def _delete_if_orphaned(self, kind: AnyKind, name: str, namespace: str) -> None:
        document = await self._driver.get(kind, name, namespace)
        summary = summarize(document)
        for owner in summary.owners:
            if await self._exists(owner, namespace):
                return
        if summary.owners:
            await self._driver.delete(kind, name, namespace, uid=summary.uid, version=document.version)

    async def _exists(self, owner: OwnerRef, namespace: str) -> bool:
        try:
            kind = KINDS.named(owner.kind)
            document = await self._driver.get(kind, owner.name, namespace if kind.namespaced else "")
        except NotFound:
            return False
        except PlatformError:
            return True  # an unknown kind, or the store does not answer: keep the object
        return document.uid == owner.uid

    async def _empty_namespace(self, namespace: str) -> None:
        left = 0  # objects that are still terminating
        for kind in KINDS:
            if not kind.namespaced:
                continue
            for document in (await self._driver.list(kind, namespace)).items:
                left += not await self._driver.delete(kind, document.name, namespace, uid=document.uid, grace_seconds=0)
        if left == 0:
            await self._driver.patch(KINDS.named("Namespace"), namespace, "", {"spec": {"finalizers": None}})

    async def sweep(self) -> None:
        """Deletes old events every minute, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep_once()
            except PlatformError:
                continue  # the store does not answer; its informers log that

    async def sweep_once(self, most: int = MAX_EVENTS) -> None:
        kind, limit = KINDS.named("Event"), self._clock() - EVENT_SECONDS
        newest_first = sorted(self.informers["Event"].items(), key=lambda item: -item[1].last_seen)
        for position, ((namespace, name), event) in enumerate(newest_first):
            if event.last_seen < limit or position >= most:
                with suppress(NotFound):
                    await self._driver.delete(kind, name, namespace, uid=event.uid)
