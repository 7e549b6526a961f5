"""Events: what happened to an object, for people to read. They are kept for an hour and decide nothing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from aliquot.errors import NotFound, PlatformError
from aliquot.labels import API_VERSION
from aliquot.store.typed import Store
from aliquot.types import Event, Metadata, ObjectReference
from aliquot.types.machine import EventSource


@dataclass(frozen=True, slots=True)
class Note:
    reason: str
    message: str
    warning: bool = False


class Recorder:
    """Writes events; the same note about the same object again only counts up."""

    def __init__(self, store: Store, component: str, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._component = component
        self._clock = clock

    async def note(self, kind: str, about: Metadata, note: Note) -> None:
        """Never fails: an event that cannot be written is lost, and that is all."""
        digest = hashlib.sha256(f"{about.uid}/{note.reason}/{note.message}".encode()).hexdigest()[:12]
        name, now = f"{about.name}.{digest}", self._clock()
        try:
            try:
                seen = await self._store.get(Event, name, about.namespace)
                wanted = replace(seen, count=seen.count + 1, last_timestamp=now)
                await self._store.update(wanted, seen=seen)
            except NotFound:
                await self._store.create(self._event(name, kind, about, note, now))
        except PlatformError:
            return

    def _event(self, name: str, kind: str, about: Metadata, note: Note, now: float) -> Event:
        return Event(
            metadata=Metadata(name=name, namespace=about.namespace),
            involved_object=ObjectReference(
                api_version=API_VERSION if kind == "Workload" else "v1",
                kind=kind,
                name=about.name,
                namespace=about.namespace,
                uid=about.uid,
            ),
            reason=note.reason,
            message=note.message,
            type="Warning" if note.warning else "Normal",
            count=1,
            first_timestamp=now,
            last_timestamp=now,
            source=EventSource(component=self._component),
        )
