"""Records events about pods that only the agent sees, such as overruns of GPU memory."""

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

    async def record(self, pod_event: PodEvent) -> None:
        """Create the event, or count up an existing one. Never fails: an event that cannot be written is dropped."""
        pod = pod_event.assignment
        about = ObjectReference(api_version="v1", kind="Pod", name=pod.name, namespace=pod.namespace, uid=pod.uid)
        facts = EventFacts(pod_event.reason, pod_event.message, warning=True, repeats=True)
        event = event_of(about, facts, pod.workload, self._clock())
        try:
            try:
                await self._store.create(event)
            except Exists:
                seen = await self._store.get(Event, event.metadata.name, event.metadata.namespace)
                again = replace(
                    seen, message=pod_event.message, count=seen.count + 1, last_timestamp=event.last_timestamp
                )
                await self._store.update(again, seen=seen)
        except PlatformError:
            return
