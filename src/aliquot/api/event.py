"""Kubernetes events: reports about objects, kept for a limited time."""

from __future__ import annotations

from aliquot.api.field_types import Interned, MicroTime, Time
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class ObjectReference:
    """A reference to another object."""

    api_version: Interned = ""
    """Group and version of the object's kind."""
    kind: Interned = ""
    """Kind of the object."""
    name: str = ""
    """Name of the object."""
    namespace: Interned = ""
    """Namespace of the object."""
    uid: str = ""
    """UID of the object."""
    resource_version: str = ""
    """Version of the object at the time."""
    field_path: str = ""
    """Part of the object."""


@record
class EventSource:
    """The component that reported an event."""

    component: Interned = ""
    """Name of the component."""
    host: str = ""
    """Host on which the component runs."""


@record
class Event:
    """A report of something that happened to an object. Events are kept for a limited time."""

    metadata: Metadata
    """Standard object metadata."""
    involved_object: ObjectReference = ObjectReference()
    """Object that the event is about."""
    reason: Interned = ""
    """Reason of the event, as one CamelCase word."""
    message: str = ""
    """Human-readable description of the event."""
    type: Interned = ""
    """Normal or Warning."""
    count: int = 0
    """Number of times that the event occurred."""
    first_timestamp: Time | None = None
    """Time of the first occurrence."""
    last_timestamp: Time | None = None
    """Time of the last occurrence."""
    event_time: MicroTime | None = None
    """Time of the event, for events that are not counted."""
    source: EventSource = EventSource()
    """Component that reported the event."""
    action: str = ""
    """Action that was taken."""
    reporting_component: Interned = ""
    """Name of the controller that reported the event."""
    reporting_instance: str = ""
    """Instance of the controller."""
    related: ObjectReference | None = None
    """Another object that the event is about."""
