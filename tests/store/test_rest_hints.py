"""Hints of our server reach the user."""

from __future__ import annotations

import json

from aliquot.errors import Conflict
from aliquot.server.http_json import status_of
from aliquot.store.http.errors import error_of


def test_hint_travels() -> None:
    """An error has the hint that the server sent."""
    refusal = Conflict("department 'research' is used by project vision", hint="delete or change vision first")
    arrived = error_of(409, json.dumps(status_of(refusal)).encode())
    assert (arrived.message, arrived.hint) == (refusal.message, refusal.hint)
