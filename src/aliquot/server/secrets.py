"""What must not leave the server: hashes of tokens and passwords, and how a token is made."""

from __future__ import annotations

from aliquot.auth import tokens
from aliquot.auth.tokens import Secret
from aliquot.errors import Fault, Invalid, NotFound
from aliquot.server import admission
from aliquot.store.base import AnyKind, Body, Document
from aliquot.types.base import Json

_HIDDEN = {"Token": "hash", "User": "passwordHash"}


def shown(kind: AnyKind, document: Document) -> Document:
    """The document as a client may see it."""
    field = _HIDDEN.get(kind.name)
    spec = document.data.get("spec") if field else None
    if not field or not isinstance(spec, dict) or field not in spec:
        return document
    return Document({**document.data, "spec": {key: value for key, value in spec.items() if key != field}})


async def kept(body: Body, kind: AnyKind, data: Json, name: str) -> Json:
    """Put back what `shown` left out, so that read, change and write back loses nothing."""
    field = _HIDDEN.get(kind.name)
    spec = data.get("spec") or {}
    if not field or not isinstance(spec, dict) or field in spec:
        return data
    try:
        stored = (await body.get(kind, name)).data.get("spec") or {}
    except NotFound:
        return data
    return {**data, "spec": {**spec, field: stored[field]}} if field in stored else data


def new_token(kind: AnyKind, data: Json, subject: str) -> tuple[Document, Secret]:
    """A Token object for what was asked, and the text to hand out once."""
    spec = data.get("spec") or {}
    if not isinstance(spec, dict) or "hash" in spec:
        raise Invalid.because("token", [Fault("spec.hash", "is made by the server; leave it out")])
    secret = tokens.new_secret()
    filled = {**data, "spec": {"user": subject, **spec, "hash": tokens.hash_of(secret)}}
    document = admission.admitted(kind, filled, fresh=True)
    return document, tokens.text_of(document.name, secret)
