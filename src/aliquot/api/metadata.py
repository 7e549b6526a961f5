"""Metadata of every object: identity, version, labels, annotations and owners."""

from __future__ import annotations

from pydantic.alias_generators import to_camel

from aliquot.api.field_types import EMPTY_MAP, Int64, Interned, Labels, Strings, Time
from aliquot.api.serialization import record, wire_config

_WIRE_NAMES = {
    "version": "resourceVersion",
    "created": "creationTimestamp",
    "deleted": "deletionTimestamp",
    "grace_seconds": "deletionGracePeriodSeconds",
    "owners": "ownerReferences",
}


def _wire_name(name: str) -> str:
    return _WIRE_NAMES.get(name) or to_camel(name)


@record
class Owner:
    """A reference to the object that owns this one. This object is deleted after its owner."""

    api_version: Interned
    kind: Interned
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


@record
class Metadata:
    """Identity, version, labels, annotations and owners of an object."""

    name: str
    """Name of the object. Unique for its kind within the namespace."""
    namespace: Interned = ""
    """Namespace of the object; empty for cluster-scoped kinds. A project's is `runai-<project>`."""
    uid: str = ""
    """Identifier set by the store. It changes when an object is deleted and created again."""
    version: str = ""
    """Version set by the store on every change. It is opaque: compare it for equality only."""
    generation: Int64 = 0
    """Number of times that the spec has changed."""
    created: Time | None = None
    """Time at which the object was created."""
    deleted: Time | None = None
    """Time at which the object is due to be gone. Set by a delete that waits for finalizers or grace."""
    grace_seconds: Int64 | None = None
    """Number of seconds that the object has to stop before it is removed."""
    labels: Labels = EMPTY_MAP
    """Labels, by which selectors match the object."""
    annotations: Labels = EMPTY_MAP
    """Annotations: values that people and programs attach to the object."""
    finalizers: Strings = ()
    """Finalizers that must be removed before the object is removed."""
    owners: tuple[Owner, ...] = ()
    """Owners of the object. It is deleted after them."""


Metadata.__pydantic_config__ = wire_config(_wire_name)  # type: ignore[attr-defined]  # read by pydantic
