"""Collecting what nobody needs any more, where the store does not do it itself (Kubernetes does).

 1. An object all of whose owners are gone goes too.
 2. A namespace that is being deleted is emptied, and then let go.
 3. Events are kept for an hour, as on Kubernetes; of very many only the latest.

Only metadata is remembered, a few hundred bytes an object. Before anything is deleted its owners are looked up once
more in the store itself: a memory that lags behind must not cost anybody an object.
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

MOST_EVENTS = 10_000  # some 10 MB; an hour of three jobs a second
_SWEEP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class OwnerRef:
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ObjectSummary:
    """What is remembered of an object."""

    uid: str
    owners: tuple[OwnerRef, ...]
    deleting: bool
    last_seen: float = 0  # of an event


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
        return 0  # written past our checks, and of no use to anybody


class GarbageCollector:
    """The collector: an informer per kind, and a loop over what may have lost its owner or its namespace."""

    def __init__(self, driver: StoreDriver, clock: Callable[[], float] = time.time) -> None:
        self._driver = driver
        self._clock = clock
        self.informers = {kind.name: Informer(driver, kind, summarize) for kind in KINDS}
        self._dependants: dict[str, set[tuple[str, Key]]] = defaultdict(set)  # owner uid -> (kind, key)
        self.controller = Controller("garbage", self._reconcile)
        for kind in KINDS:
            self.informers[kind.name].listen(self._listener(kind))

    def _listener(self, kind: AnyKind) -> Callable[[Key, ObjectSummary | None, ObjectSummary | None], None]:
        def changed(key: Key, old: ObjectSummary | None, new: ObjectSummary | None) -> None:
            for owner in old.owners if old else ():
                self._forget(owner.uid, (kind.name, key))
            for owner in new.owners if new else ():
                self._dependants[owner.uid].add((kind.name, key))
            if new and new.owners:
                self._touch(kind.name, key)
            if new and kind.name == "Namespace" and new.deleting:
                self._touch(kind.name, key)
            if old and (new is None or new.uid != old.uid):
                for name, dependant in self._dependants.pop(old.uid, ()):
                    self._touch(name, dependant)
            if new is None and kind.namespaced and key[0]:
                self._touch("Namespace", ("", key[0]))

        return changed

    def _forget(self, owner: str, dependant: tuple[str, Key]) -> None:
        known = self._dependants.get(owner, set())
        known.discard(dependant)
        if not known:
            self._dependants.pop(owner, None)

    def _touch(self, kind: str, key: Key) -> None:
        self.controller.enqueue((f"{kind}/{key[0]}", key[1]))

    async def _reconcile(self, key: Key) -> None:
        name, _, namespace = key[0].partition("/")
        kind = KINDS.named(name)
        known = self.informers[name].get(key[1], namespace)
        if known is None:
            return
        try:
            if kind.name == "Namespace" and known.deleting:
                await self._empty(key[1])
            elif known.owners and not known.deleting:
                await self._collect(kind, key[1], namespace)
        except NotFound:
            return  # gone meanwhile, which is what we wanted

    async def _collect(self, kind: AnyKind, name: str, namespace: str) -> None:
        document = await self._driver.get(kind, name, namespace)
        now = summarize(document)
        for owner in now.owners:
            if await self._lives(owner, namespace):
                return
        if now.owners:
            await self._driver.delete(kind, name, namespace, uid=now.uid, version=document.version)

    async def _lives(self, owner: OwnerRef, namespace: str) -> bool:
        try:
            kind = KINDS.named(owner.kind)
            found = await self._driver.get(kind, owner.name, namespace if kind.namespaced else "")
        except NotFound:
            return False
        except PlatformError:
            return True  # a kind we do not know, or a store that does not answer: leave it alone
        return found.uid == owner.uid

    async def _empty(self, namespace: str) -> None:
        left = 0
        for kind in KINDS:
            if not kind.namespaced:
                continue
            for document in (await self._driver.list(kind, namespace)).items:
                left += not await self._driver.delete(kind, document.name, namespace, uid=document.uid, grace_seconds=0)
        if left == 0:
            await self._driver.patch(KINDS.named("Namespace"), namespace, "", {"spec": {"finalizers": None}})

    async def sweep(self) -> None:
        """Drop old events, for ever."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep_once()
            except PlatformError:
                continue  # the store is away; its informers already say so

    async def sweep_once(self, most: int = MOST_EVENTS) -> None:
        kind, limit = KINDS.named("Event"), self._clock() - EVENT_SECONDS
        newest_first = sorted(self.informers["Event"].items(), key=lambda item: -item[1].last_seen)
        for position, ((namespace, name), known) in enumerate(newest_first):
            if known.last_seen < limit or position >= most:
                with suppress(NotFound):
                    await self._driver.delete(kind, name, namespace, uid=known.uid)
