"""API tokens: random, returned once, stored as a hash.

A token has the form `alq_<name>_<secret>`. The name is that of the Token object, which stores only the SHA-256 hash of
the secret. Unlike for passwords, plain SHA-256 is enough: the secret has 256 random bits and cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from aliquot.errors import Unauthenticated

_PREFIX = "alq"


class Secret:
    """Text that must not appear in logs and messages: it prints as ***."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__


def new_secret() -> Secret:
    return Secret(secrets.token_urlsafe(32).replace("_", "-"))


def hash_of(secret: Secret) -> str:
    return hashlib.sha256(secret.reveal().encode()).hexdigest()


def format_token(name: str, secret: Secret) -> Secret:
    """The token that the user sends."""
    return Secret(f"{_PREFIX}_{name}_{secret.reveal()}")


def parse_token(token: Secret) -> tuple[str, Secret]:
    """Name of the Token object, and the secret part; `Unauthenticated` if the text is not a token."""
    prefix, _, rest = token.reveal().partition("_")
    name, _, secret = rest.rpartition("_")
    if prefix != _PREFIX or not name or not secret:
        raise Unauthenticated("that is not a token of this platform", hint="see `aliquot token create --help`")
    return name, Secret(secret)


def secret_matches(secret: Secret, expected_hash: str) -> bool:
    return hmac.compare_digest(hash_of(secret), expected_hash)
