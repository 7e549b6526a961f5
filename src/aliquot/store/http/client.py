"""The HTTP client: the only module that knows the HTTP library.

    HttpClient       one server: requests and websockets
    Response         an answer: its status, its headers, and its body as a whole or in chunks
    Socket           messages in both directions
    Translated       turns the library's exceptions into platform errors

It decides nothing about retries, tokens or the meaning of a status: transport.py does.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from aliquot.errors import PlatformError, Unavailable
from aliquot.store.http.errors import one_line

CONNECT_SECONDS = 5.0
HEARTBEAT_SECONDS = 30.0  # a websocket without a sign of life for this long is closed
LARGEST_MESSAGE = 16 << 20  # bytes of one websocket message; terminals and port-forwards send far smaller ones

# Everything that the HTTP library and the sockets below it raise; a test compares it with the library's own list.
FOREIGN = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
# Raised before any byte of the request was sent.
NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
# A retry cannot succeed: neither the certificate nor the address changes.
HOPELESS = (aiohttp.ClientConnectorCertificateError, aiohttp.ServerFingerprintMismatch, aiohttp.InvalidURL)


@dataclass(frozen=True, slots=True)
class Timeout:
    """Seconds; None means unlimited."""

    total: float | None = None
    between_chunks: float | None = None


def translate(exc: BaseException, url: str) -> Unavailable:
    """The platform error for an exception of the HTTP library."""
    silent = isinstance(exc, TimeoutError) and not str(exc)
    reason = "no answer in time" if silent else one_line(exc) or type(exc).__name__
    error = Unavailable(f"cannot reach {url}: {reason}")
    error.sent = not isinstance(exc, NOT_SENT)
    error.retry = not isinstance(exc, HOPELESS)
    return error


class Translated:
    """Translates the library's exceptions inside the block. A class for speed: every request passes here."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(exc, FOREIGN) and not isinstance(exc, PlatformError):
            raise translate(exc, self._url) from exc


class Response:
    """An answer whose body may still be arriving."""

    def __init__(self, response: aiohttp.ClientResponse, url: str) -> None:
        self._response = response
        self._url = url

    @property
    def status(self) -> int:
        return self._response.status

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    async def read(self) -> bytes:
        """The whole body; the connection then goes back to the pool."""
        async with self._response:
            return await self._response.read()

    async def chunk(self) -> bytes:
        """The next bytes of the body; empty at its end, or after too long a silence."""
        async with Translated(self._url):
            try:
                return await self._response.content.readany()
            except aiohttp.SocketTimeoutError:
                return b""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body until its end; `Unavailable` when the connection breaks before."""
        try:
            while True:
                async with Translated(self._url):
                    chunk = await self._response.content.readany()
                if not chunk:
                    return
                yield chunk
        finally:
            self.abort()

    def discard(self) -> None:
        self._response.close()

    def abort(self) -> None:
        """Resets the connection. An orderly TLS shutdown would wait for a server that may be gone."""
        if self._response.connection is not None and self._response.connection.transport is not None:
            self._response.connection.transport.abort()
        self._response.close()


class Socket:
    """A websocket whose messages are bytes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, url: str) -> None:
        self._socket = socket
        self.url = url

    @property
    def protocol(self) -> str | None:
        return self._socket.protocol

    @property
    def closed(self) -> bool:
        return self._socket.closed

    async def receive(self) -> bytes | None:
        """The next message, or None when the other side has closed. `Unavailable` when the connection breaks."""
        message = await self._socket.receive()
        if message.type == aiohttp.WSMsgType.ERROR:
            raise translate(self._socket.exception() or ConnectionError("the connection broke"), self.url)
        if message.type == aiohttp.WSMsgType.TEXT:
            return str(message.data).encode()
        return bytes(message.data) if message.type == aiohttp.WSMsgType.BINARY else None

    async def send(self, message: bytes) -> None:
        async with Translated(self.url):
            await self._socket.send_bytes(message)

    async def close(self) -> None:
        await self._socket.close()


class _Connector(aiohttp.TCPConnector):
    """Resets the connection of a request that was abandoned, for the reason given in `Response.abort`.

    The library offers no public way to do that.
    """

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        if should_close and protocol.transport is not None:
            protocol.transport.abort()
        super()._release(key, protocol, should_close=should_close)


class HttpClient:
    """Requests to one server. `check` raises the error that an answer other than a success carries."""

    def __init__(
        self,
        url: str,
        check: Callable[[Response], Awaitable[None]],
        *,
        trust: ssl.SSLContext | None,
        server_name: str,
        proxy: str,
        headers: Sequence[tuple[str, str]],
        idle_seconds: float,
    ) -> None:
        self._url = url
        self._server_name = server_name or None

        async def refused(response: aiohttp.ClientResponse) -> None:
            await check(Response(response, url))

        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=0, ssl=True if trust is None else trust, keepalive_timeout=idle_seconds),
            headers=headers,
            proxy=proxy or None,
            cookie_jar=aiohttp.DummyCookieJar(),
            # Needed for websockets only: of a refused one the library shows no body.
            raise_for_status=refused,
        )
        # The library repeats PUT and DELETE when a connection closes under them. A write that had taken effect would
        # then return a conflict. The library offers no public way to switch that off.
        self._session._retry_connection = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        payload: bytes | None,
        headers: Mapping[str, str],
        timeout: Timeout,
    ) -> Response:
        response = await self._session.request(
            method,
            self._url + path,
            params=query,
            data=payload,
            headers=headers,
            timeout=aiohttp.ClientTimeout(
                total=timeout.total, sock_connect=CONNECT_SECONDS, sock_read=timeout.between_chunks
            ),
            allow_redirects=False,  # an API server sends none; a login page in front of it does
            raise_for_status=False,
            server_hostname=self._server_name,
        )
        return Response(response, self._url)

    async def websocket(
        self, path: str, query: Sequence[tuple[str, str]], protocol: str, headers: Mapping[str, str]
    ) -> Socket:
        socket = await self._session.ws_connect(
            self._url + path,
            params=list(query),
            protocols=(protocol,),
            headers=headers,
            heartbeat=HEARTBEAT_SECONDS,
            max_msg_size=LARGEST_MESSAGE,
            server_hostname=self._server_name,
        )
        return Socket(socket, self._url)

    async def close(self) -> None:
        await self._session.close()
