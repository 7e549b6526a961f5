"""What the HTTP library gives us while an answer or a conversation is under way, and what it raises.

foreign, Translated   its errors, as ours
Stream                an answer that is still coming
Socket                messages both ways
Connector             connections, of which those that were given up are cut
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any

import aiohttp

from aliquot.errors import PlatformError, Unavailable
from aliquot.store.http.errors import one_line

# All that the HTTP library and the sockets below it may raise; a test holds this against the library's own list.
FOREIGN = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
# Of those, the ones raised before a byte of the request left.
NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
# Trying again changes neither a certificate nor an address.
HOPELESS = (aiohttp.ClientConnectorCertificateError, aiohttp.ServerFingerprintMismatch, aiohttp.InvalidURL)


def foreign(exc: BaseException, url: str) -> Unavailable:
    """What another library's exception means to us."""
    silent = isinstance(exc, TimeoutError) and not str(exc)
    told = "no answer in time" if silent else one_line(exc) or type(exc).__name__
    fault = Unavailable(f"cannot reach {url}: {told}")
    fault.sent = not isinstance(exc, NOT_SENT)
    fault.retry = not isinstance(exc, HOPELESS)
    return fault


class Translated:
    """Turns what others raise inside the block into our own errors. A class, because every request passes here."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(exc, FOREIGN) and not isinstance(exc, PlatformError):
            raise foreign(exc, self._url) from exc


class Stream:
    """An answer that is still coming."""

    def __init__(self, answer: aiohttp.ClientResponse, url: str) -> None:
        self._answer = answer
        self._url = url

    def header(self, name: str) -> str:
        return self._answer.headers.get(name, "")

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """In order, until the server ends it; `Unavailable` when the connection broke before."""
        try:
            while True:
                async with Translated(self._url):
                    piece = await self._answer.content.readany()
                if not piece:
                    return
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        cut(self._answer)


class Socket:
    """A websocket whose messages are bytes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, url: str) -> None:
        self._socket = socket
        self.url = url

    @property
    def closed(self) -> bool:
        return self._socket.closed

    async def receive(self) -> bytes | None:
        """The next message; None when there will be none. `Unavailable` when the connection broke."""
        message = await self._socket.receive()
        if message.type == aiohttp.WSMsgType.ERROR:
            raise foreign(self._socket.exception() or ConnectionError("the connection broke"), self.url)
        if message.type == aiohttp.WSMsgType.TEXT:
            return str(message.data).encode()
        return bytes(message.data) if message.type == aiohttp.WSMsgType.BINARY else None

    async def send(self, message: bytes) -> None:
        async with Translated(self.url):
            await self._socket.send_bytes(message)

    async def close(self) -> None:
        await self._socket.close()


class Connector(aiohttp.TCPConnector):
    """Cuts the connection of a request that was given up half way, for the reason below. Nothing public does."""

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        if should_close and protocol.transport is not None:
            protocol.transport.abort()
        super()._release(key, protocol, should_close=should_close)


def cut(answer: aiohttp.ClientResponse) -> None:
    """Not closed in good order: the end of TLS waits for the server, which may be the one that is gone."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()
