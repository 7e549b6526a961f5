"""What Kubernetes has too, in its own wire shape, as far as we use it: nodes, services, claims, events, leases.

On Kubernetes these are the cluster's own objects; embedded, our agent and loops write them. Fields we do not know are
left alone, because stores change objects by merge patch. Pods are in pod.py.
"""

from __future__ import annotations

from aliquot.api.field_types import Interned, MicroTime, Time
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class ObjectReference:
    """The object that an event is about."""

    api_version: Interned = ""
    """Group and version of its kind."""
    kind: Interned = ""
    """Its kind."""
    name: str = ""
    """Its name."""
    namespace: Interned = ""
    """Its namespace."""
    uid: str = ""
    """Its uid."""
    resource_version: str = ""
    """Its version at the time."""
    field_path: str = ""
    """Which part of it."""


@record
class EventSource:
    """Who said so."""

    component: Interned = ""
    """Program."""
    host: str = ""
    """Machine."""


@record
class Event:
    """Something that happened to an object. Kept for a while only."""

    metadata: Metadata
    """Name and marks."""
    involved_object: ObjectReference = ObjectReference()
    """What it happened to."""
    reason: Interned = ""
    """One word for programs."""
    message: str = ""
    """A sentence for people."""
    type: Interned = ""
    """Normal or Warning."""
    count: int = 0
    """How often it happened."""
    first_timestamp: Time | None = None
    """When it happened first."""
    last_timestamp: Time | None = None
    """When it happened last."""
    event_time: MicroTime | None = None
    """When it happened, for events that are not counted."""
    source: EventSource = EventSource()
    """Who said so."""
    action: str = ""
    """What was done."""
    reporting_component: Interned = ""
    """Program that said so."""
    reporting_instance: str = ""
    """Which copy of the program."""
    related: ObjectReference | None = None
    """Another object that had to do with it."""
