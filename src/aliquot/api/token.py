"""API tokens: bearer credentials of users. The secret is stored only as a hash."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aliquot.api.field_types import Text, Time
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class TokenSpec:
    """The user of a token, and the hash that identifies it."""

    user: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the user that the token authenticates."""
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 hash of the secret part, in hexadecimal."""
    description: Text = ""
    """Purpose of the token, for display."""
    expires: Time | None = None
    """Time at which the token expires; it does not expire unless set."""
    created_by: str = ""
    """User who created the token."""


@record
class TokenStatus:
    """Observed use of a token."""

    last_used: Time | None = None
    """Time at which the token was last used, to about a minute."""


@record
class Token:
    """An API token that authenticates a user. The secret is returned once, on creation, and not stored."""

    metadata: Metadata
    """Standard object metadata."""
    spec: TokenSpec
    """The user and the hash of the token."""
    status: TokenStatus = TokenStatus()
    """Observed use of the token; written by the platform."""
