"""Events that the agent writes about pods: what only this machine sees, such as memory on its GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from aliquot.api import Event, ObjectReference
from aliquot.backends.local.memory_enforcer import PodEvent
from aliquot.controllers.events import EventFacts, event_of
from aliquot.errors import Exists, PlatformError
from aliquot.store.typed_store import Store


class PodEventRecorder:
    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def tell(self, told: PodEvent) -> None:
        """Never fails: an event that cannot be written is lost, and that is all."""
        assignment = told.assignment
        about = ObjectReference(
            api_version="v1", kind="Pod", name=assignment.name, namespace=assignment.namespace, uid=assignment.uid
        )
        note = EventFacts(told.reason, told.message, warning=True, repeats=True)
        event = event_of(about, note, assignment.workload, self._clock())
        try:
            try:
                await self._store.create(event)
            except Exists:
                seen = await self._store.get(Event, event.metadata.name, event.metadata.namespace)
                again = {"message": told.message, "count": seen.count + 1, "last_timestamp": event.last_timestamp}
                await self._store.update(replace(seen, **again), seen=seen)  # type: ignore[arg-type]  # of its fields
        except PlatformError:
            return
