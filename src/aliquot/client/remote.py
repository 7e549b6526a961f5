"""A server over HTTP: the REST body of the store, and the few questions that are not about objects."""

from __future__ import annotations

from aliquot.client.connection import Connection
from aliquot.labels import API_VERSION
from aliquot.store.rest import RestBody
from aliquot.store.transport import Endpoint, Patience
from aliquot.types.base import Json


class RemoteServer(RestBody):
    async def whoami(self) -> Json:
        return await self._transport.read(f"/apis/{API_VERSION}/whoami")


def open_server(connection: Connection, patience_s: float) -> RemoteServer:
    async def token() -> str:
        return connection.token

    return RemoteServer(Endpoint(connection.url, token), patience=Patience(deadline=patience_s))
