"""Validation of one object by its type, and the form in which it is stored.

Objects of our own kinds are stored in canonical form: unknown fields are refused and defaults are left out. Objects of
Kubernetes' kinds are validated too, but stored as they were sent, because Kubernetes has more fields than our types.
"""

from __future__ import annotations

from aliquot.api import Json, check_name, decode, to_json
from aliquot.errors import Fault, Invalid
from aliquot.store.driver import AnyKind, Document

# Metadata that Kubernetes clients send and that our types do not have.
_IGNORED_METADATA = ("managedFields", "selfLink", "generateName")


def validate_document(kind: AnyKind, data: Json, *, name: str = "", namespace: str = "", creating: bool) -> Document:
    """The document to store; `Invalid` lists every fault.

    `name` and `namespace` are those of the URL. `creating`: the client sent the whole object, so that unknown fields of
    Kubernetes' kinds are refused too, and the name is checked.
    """
    _check_envelope(kind, data, name, namespace)
    metadata = {**data["metadata"]}
    if namespace:
        metadata.setdefault("namespace", namespace)
    data = {"apiVersion": kind.api_version, "kind": kind.name, **data, "metadata": metadata}
    strict = kind.is_custom_resource or creating
    typed = decode(kind.type, _without_ignored_metadata(data), strict=strict, what=kind.singular)
    if creating:
        check_name(kind, metadata["name"])
    return Document(to_json(typed)) if kind.is_custom_resource else Document(data)


def _check_envelope(kind: AnyKind, data: Json, name: str, namespace: str) -> None:
    faults = []
    for field, expected in (("apiVersion", kind.api_version), ("kind", kind.name)):
        if data.get(field, expected) != expected:
            faults.append(Fault(field, f"must be {expected!r} here, not {data[field]!r}"))
    metadata = data.get("metadata")
    if not isinstance(metadata, dict):
        faults.append(Fault("metadata", "is required"))
    else:
        if not metadata.get("name"):
            faults.append(Fault("metadata.name", "is required"))
        elif name and metadata["name"] != name:
            faults.append(Fault("metadata.name", f"must be {name!r}, as in the address"))
        if namespace and metadata.get("namespace", namespace) != namespace:
            faults.append(Fault("metadata.namespace", f"must be {namespace!r}, as in the address"))
        if metadata.get("namespace") and not kind.namespaced:
            faults.append(Fault("metadata.namespace", f"must be absent: {kind.plural} span the cluster"))
    if faults:
        raise Invalid.because(kind.singular, faults)


def _without_ignored_metadata(data: Json) -> Json:
    metadata = {key: value for key, value in data["metadata"].items() if key not in _IGNORED_METADATA}
    return {**data, "metadata": metadata}
