"""API tokens: random, shown once, stored as a hash.

A token reads `alq_<name>_<secret>`. The name says which Token object to look at; only the secret's SHA-256 is stored.
Plain SHA-256 is right here, unlike for passwords: the secret has 256 random bits, so there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from aliquot.errors import Unauthenticated

_PREFIX = "alq"


class Secret:
    """Text that must not be shown: prints as ***."""

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
    """What the user keeps."""
    return Secret(f"{_PREFIX}_{name}_{secret.reveal()}")


def parse_token(token: Secret) -> tuple[str, Secret]:
    """The Token object's name and the secret part."""
    prefix, _, rest = token.reveal().partition("_")
    name, _, secret = rest.rpartition("_")
    if prefix != _PREFIX or not name or not secret:
        raise Unauthenticated("that is not a token of this platform", hint="see `aliquot token create --help`")
    return name, Secret(secret)


def secret_matches(secret: Secret, expected_hash: str) -> bool:
    return hmac.compare_digest(hash_of(secret), expected_hash)
