"""The client: finds the server of this machine and talks to it. Used by the command line and by users' programs.

    from aliquot.client import connect
    from aliquot.client.connection import Connection

    async with connect(Connection("http://127.0.0.1:7520", token)) as body:
        listing = await body.list(KINDS.of(Project))

What `connect` opens is one more body of the store, so whatever runs against a store also runs against a server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aliquot.client.connection import Connection

if TYPE_CHECKING:
    from aliquot.store.rest import RestBody


@asynccontextmanager
async def connect(connection: Connection) -> AsyncIterator[RestBody]:
    """The server's objects, for as long as the block lasts."""
    # Imported late: the HTTP client costs a tenth of a second, and finding a server needs none.
    from aliquot.store.rest import RestBody

    body = RestBody(connection.url, connection.token)
    try:
        yield body
    finally:
        await body.close()
