"""What every kind of object shares: how it is written down, its metadata, and its way between JSON and Python.

A type is declared once, as a frozen slotted dataclass (`@record`), and used three ways:

    decode   JSON -> object, checked: every fault at once, each with its path (`spec.quota.gpu`)
    encode   object -> JSON, sparse: what equals its default is left out
    schema   JSON Schema, OpenAPI and the custom resources' schemas (see schema.py)

On the wire an object looks as on Kubernetes: camelCase, `metadata.resourceVersion`, RFC 3339 times. Inside it has
integers in base units and seconds. The string under a field is its documentation: `kubectl explain` and the API
reference show it, so it is written for users.

Decoding has two strengths. At the edge (`strict=True`) an unknown field is an error, because it is a typing mistake.
From a store it is ignored, because a newer version or another program wrote it; nothing we write back removes it,
since stores are changed by merge patch (see store.base).
"""

from __future__ import annotations

from pydantic.alias_generators import to_camel

from aliquot.api.field_types import EMPTY_MAP, Int64, Interned, Labels, Strings, Time
from aliquot.api.serialization import record, wire_form

_METADATA_NAMES = {
    "version": "resourceVersion",
    "created": "creationTimestamp",
    "deleted": "deletionTimestamp",
    "grace_seconds": "deletionGracePeriodSeconds",
    "owners": "ownerReferences",
}


def _metadata_name(name: str) -> str:
    return _METADATA_NAMES.get(name) or to_camel(name)


@record
class Owner:
    """The object this one belongs to, and goes with."""

    api_version: Interned
    kind: Interned
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


@record
class Metadata:
    """Name, place, version and marks of an object."""

    name: str
    """Unique within the namespace for its kind."""
    namespace: Interned = ""
    """Where the object lives; empty for kinds that span the cluster. A project's is `runai-<project>`."""
    uid: str = ""
    """Given by the store; differs after delete and create."""
    version: str = ""
    """Given by the store on every change. Opaque: compare for equality only."""
    generation: Int64 = 0
    """Counts changes of the spec."""
    created: Time | None = None
    """When the object was created."""
    deleted: Time | None = None
    """When the object is due to be gone; set by a delete that has to wait for finalizers or grace."""
    grace_seconds: Int64 | None = None
    """How long the object may take to stop."""
    labels: Labels = EMPTY_MAP
    """Short marks to select by."""
    annotations: Labels = EMPTY_MAP
    """Free notes of people and programs."""
    finalizers: Strings = ()
    """Who must finish before the object may go."""
    owners: tuple[Owner, ...] = ()
    """Objects this one goes with."""


Metadata.__pydantic_config__ = wire_form(_metadata_name)  # type: ignore[attr-defined]  # read by pydantic
