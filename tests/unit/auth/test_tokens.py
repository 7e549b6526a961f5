"""Tokens: random, split, compared without leaking."""

from __future__ import annotations

import pytest

from aliquot.auth import tokens
from aliquot.auth.tokens import Secret
from aliquot.errors import Unauthenticated


def test_round_trip() -> None:
    """What is handed out leads back to the object and the secret."""
    secret = tokens.new_secret()
    name, found = tokens.parse_token(tokens.format_token("my-laptop.v2", secret))
    assert name == "my-laptop.v2"
    assert tokens.secret_matches(found, tokens.hash_of(secret))


def test_other_secret() -> None:
    """Another secret does not match."""
    assert not tokens.secret_matches(tokens.new_secret(), tokens.hash_of(tokens.new_secret()))


@pytest.mark.parametrize("text", ["", "x", "alq", "alq_", "alq__", "alq_name_", "alq__secret", "bearer_name_secret"])
def test_nonsense(text: str) -> None:
    """What does not look like a token is refused."""
    with pytest.raises(Unauthenticated):
        tokens.parse_token(Secret(text))


def test_secrets_print_as_stars() -> None:
    """A secret in a log or an error shows nothing."""
    secret = Secret("open sesame")
    assert f"{secret} {secret!r} {[secret]} {{'a': {secret}}}".count("sesame") == 0


def test_secrets_differ() -> None:
    """No two tokens are the same, and each has 256 bits."""
    made = {tokens.new_secret().reveal() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(text) == 43 and "_" not in text for text in made)
