"""What must not leave the server: hashes of tokens and passwords, and how a token is made."""

from __future__ import annotations

from aliquot.admission import references
from aliquot.api.base import Json
from aliquot.auth import tokens
from aliquot.auth.tokens import Secret
from aliquot.errors import Fault, Invalid, NotFound
from aliquot.labels import LAST_APPLIED
from aliquot.store.driver import AnyKind, Document, StoreDriver

_HIDDEN = {"Token": "hash", "User": "passwordHash"}


def shown(kind: AnyKind, document: Document) -> Document:
    """The document as a client may see it."""
    field = _HIDDEN.get(kind.name)
    if not field:
        return document
    spec, metadata = document.data.get("spec"), document.metadata
    if isinstance(spec, dict):
        spec = {key: value for key, value in spec.items() if key != field}
    marks = metadata.get("annotations") or {}
    if LAST_APPLIED in marks:
        marks = {key: value for key, value in marks.items() if key != LAST_APPLIED}
        metadata = {key: value for key, value in {**metadata, "annotations": marks}.items() if value != {}}
    return Document({**document.data, "metadata": metadata, **({} if spec is None else {"spec": spec})})


async def kept(driver: StoreDriver, kind: AnyKind, data: Json, name: str) -> Json:
    """Put back what `shown` left out, so that read, change and write back loses nothing."""
    field = _HIDDEN.get(kind.name)
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
    applied, marks = (stored.metadata.get("annotations") or {}).get(LAST_APPLIED), metadata.get("annotations") or {}
    if applied is not None and isinstance(marks, dict):
        metadata = {**metadata, "annotations": {LAST_APPLIED: applied, **marks}}
    return {**data, "metadata": metadata, **({"spec": spec} if spec else {})}


def new_token(kind: AnyKind, data: Json, subject: str) -> tuple[Document, Secret]:
    """A Token object for what was asked, and the text to hand out once."""
    spec = data.get("spec") or {}
    if not isinstance(spec, dict) or "hash" in spec:
        raise Invalid.because("token", [Fault("spec.hash", "is made by the server; leave it out")])
    secret = tokens.new_secret()
    filled = {**data, "spec": {"user": subject, **spec, "hash": tokens.hash_of(secret)}}
    document = references.admitted(kind, filled, fresh=True)
    return document, tokens.text_of(document.name, secret)
