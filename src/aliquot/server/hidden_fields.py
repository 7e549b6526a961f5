"""Hidden fields: hashes of tokens and passwords never leave the server (`Kind.hidden_field`)."""

from __future__ import annotations

from aliquot.api import Json
from aliquot.errors import NotFound
from aliquot.labels import LAST_APPLIED
from aliquot.store.driver import AnyKind, Document, StoreDriver


def without_hidden_fields(kind: AnyKind, document: Document) -> Document:
    """The document as clients may see it. kubectl's last-applied annotation may hold the hidden field: it goes too."""
    if not kind.hidden_field:
        return document
    spec, metadata = document.data.get("spec"), document.metadata
    if isinstance(spec, dict):
        spec = {key: value for key, value in spec.items() if key != kind.hidden_field}
    annotations = metadata.get("annotations") or {}
    if LAST_APPLIED in annotations:
        annotations = {key: value for key, value in annotations.items() if key != LAST_APPLIED}
        metadata = {key: value for key, value in {**metadata, "annotations": annotations}.items() if value != {}}
    return Document({**document.data, "metadata": metadata, **({} if spec is None else {"spec": spec})})


async def restore_hidden_fields(driver: StoreDriver, kind: AnyKind, data: Json, name: str) -> Json:
    """Adds what `without_hidden_fields` removed, so that a client can read an object, change it and write it back."""
    field = kind.hidden_field
    spec, metadata = data.get("spec") or {}, data.get("metadata")
    if not field or not isinstance(spec, dict) or not isinstance(metadata, dict):
        return data
    try:
        stored = await driver.get(kind, name)
    except NotFound:
        return data
    hidden = (stored.data.get("spec") or {}).get(field)
    if hidden is not None:
        spec = {field: hidden, **spec}
    applied = (stored.metadata.get("annotations") or {}).get(LAST_APPLIED)
    annotations = metadata.get("annotations") or {}
    if applied is not None and isinstance(annotations, dict):
        metadata = {**metadata, "annotations": {LAST_APPLIED: applied, **annotations}}
    return {**data, "metadata": metadata, **({"spec": spec} if spec else {})}
