"""API tokens: format, comparison and randomness."""

from __future__ import annotations

import pytest

from aliquot.auth import tokens
from aliquot.auth.tokens import Secret
from aliquot.errors import Unauthenticated


def test_round_trip() -> None:
    """A formatted token parses to its name and secret."""
    secret = tokens.new_secret()
    name, parsed = tokens.parse_token(tokens.format_token("my-laptop.v2", secret))
    assert name == "my-laptop.v2"
    assert tokens.secret_matches(parsed, tokens.hash_of(secret))


def test_other_secret() -> None:
    """Another secret does not match."""
    assert not tokens.secret_matches(tokens.new_secret(), tokens.hash_of(tokens.new_secret()))


@pytest.mark.parametrize("text", ["", "x", "alq", "alq_", "alq__", "alq_name_", "alq__secret", "bearer_name_secret"])
def test_nonsense(text: str) -> None:
    """A malformed token is refused."""
    with pytest.raises(Unauthenticated):
        tokens.parse_token(Secret(text))


def test_secrets_print_as_stars() -> None:
    """A secret prints as stars in logs and errors."""
    secret = Secret("open sesame")
    assert f"{secret} {secret!r} {[secret]} {{'a': {secret}}}".count("sesame") == 0


def test_secrets_differ() -> None:
    """Secrets are unique, and each has 256 bits."""
    secrets = {tokens.new_secret().reveal() for _ in range(1000)}
    assert len(secrets) == 1000
    assert all(len(text) == 43 and "_" not in text for text in secrets)
