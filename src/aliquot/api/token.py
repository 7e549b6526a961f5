"""Who may do what: users, the rules that give them roles, and the tokens they show.

Secrets never rest here as text: a password and a token are kept as hashes only.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aliquot.api.field_types import Text, Time
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class TokenSpec:
    """Whose token it is, and how it is recognised."""

    user: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the user it speaks for."""
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of its secret part, in hexadecimal."""
    description: Text = ""
    """What it is for."""
    expires: Time | None = None
    """When it stops working; never unless given."""
    created_by: str = ""
    """Who made it."""


@record
class TokenStatus:
    """What is known about its use."""

    last_used: Time | None = None
    """When it was last shown, to about a minute."""


@record
class Token:
    """A secret that programs show instead of a password. The secret itself is shown once and not kept."""

    metadata: Metadata
    """Name and marks."""
    spec: TokenSpec
    """Whose token it is."""
    status: TokenStatus = TokenStatus()
    """What is known about its use; written by the platform."""
