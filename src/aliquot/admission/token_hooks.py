"""Tokens: the server makes the secret, stores its hash, and returns the token only in the response to the create."""

from __future__ import annotations

from aliquot.admission.kind_hooks import KindHooks, PreparedObject
from aliquot.api import Json
from aliquot.auth import tokens
from aliquot.errors import Fault, Invalid


class TokenHooks(KindHooks):
    async def prepare_create(self, data: Json, namespace: str, subject: str) -> PreparedObject:
        spec = data.get("spec") or {}
        if not isinstance(spec, dict) or "hash" in spec:
            raise Invalid.because("token", [Fault("spec.hash", "is made by the server; leave it out")])
        secret = tokens.new_secret()
        metadata = data.get("metadata")
        # Whether the name is valid is checked with the rest of the object, before anything is returned.
        name = str(metadata.get("name") or "") if isinstance(metadata, dict) else ""
        prepared = {**data, "spec": {"user": subject, **spec, "hash": tokens.hash_of(secret)}}
        return PreparedObject(prepared, {"token": tokens.format_token(name, secret)})
