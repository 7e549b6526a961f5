"""Looking inside pods over HTTP: logs as a stream of bytes, commands over a websocket.

The websocket speaks Kubernetes' `v5.channel.k8s.io`: binary messages whose first byte says what the rest is.

    0 stdin   1 stdout   2 stderr   3 how it ended, as a Status   4 a new size of the terminal   255 a channel closes
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import quote

import aiohttp

from aliquot.client.connection import Connection
from aliquot.errors import PlatformError, Unavailable
from aliquot.labels import API_VERSION
from aliquot.store.answers import error_from, error_of
from aliquot.store.transport import CONNECT_SECONDS, FOREIGN, foreign
from aliquot.streams import LOG_OFFSET, LogOptions, TerminalSize
from aliquot.types.base import Json

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_LARGEST = 16 << 20  # of a message; what a terminal shows comes in far smaller ones
_HEARTBEAT_S = 30.0  # a connection that is silently gone is noticed after this long


def pod_path(namespace: str, pod: str, part: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/{part}"


def log_query(options: LogOptions, now: float) -> dict[str, str]:
    """What the route understands; a moment is sent as an age, because clocks differ."""
    query = {name: "true" for name in ("follow", "timestamps", "previous") if getattr(options, name)}
    if options.tail_lines is not None:
        query["tailLines"] = str(options.tail_lines)
    if options.since is not None:
        query["sinceSeconds"] = str(max(1, math.ceil(now - options.since)))
    if options.limit_bytes is not None:
        query["limitBytes"] = str(options.limit_bytes)
    if options.offset is not None:
        query["offset"] = str(options.offset)
    if options.pod_uid:
        query["uid"] = options.pod_uid
    return query


def _http(connection: Connection) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {connection.token}"} if connection.token else {}
    # A log or a shell may be silent for days.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    return aiohttp.ClientSession(
        headers=headers, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), raise_for_status=_check
    )


async def _check(answer: aiohttp.ClientResponse) -> None:
    """Raise what the server says. Done here because a websocket that is refused keeps the words to itself."""
    if answer.status >= 300:
        async with answer:
            raise error_of(answer.status, await answer.read())


class Log(NamedTuple):
    """A log that is being read."""

    # Bytes from the log's beginning at which this answer begins; None where the server does not say.
    offset: int | None
    # In order; `Unavailable` when the connection broke before the server ended it.
    pieces: AsyncIterator[bytes]


@asynccontextmanager
async def open_log(connection: Connection, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[Log]:
    """A log, for as long as the block lasts."""
    url = connection.url + pod_path(namespace, pod, "log")
    try:
        async with (
            _http(connection) as http,
            http.get(url, params=log_query(options, time.time()), allow_redirects=False) as answer,
        ):
            offset = answer.headers.get(LOG_OFFSET, "")
            yield Log(int(offset) if offset.isdigit() else None, _pieces(answer, connection.url))
    except aiohttp.ClientError as exc:
        raise foreign(exc, connection.url) from exc


async def _pieces(answer: aiohttp.ClientResponse, url: str) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in answer.content.iter_any():
            yield piece
    except FOREIGN as exc:
        raise foreign(exc, url) from exc


@asynccontextmanager
async def open_exec(
    connection: Connection,
    namespace: str,
    pod: str,
    command: Sequence[str],
    *,
    tty: bool,
    stdin: bool,
    size: TerminalSize,
) -> AsyncIterator[ExecSession]:
    """A command that runs in the pod for as long as the block lasts."""
    query = [("command", word) for word in command]
    query += [("tty", str(tty).lower()), ("stdin", str(stdin).lower()), ("stdout", "true")]
    query += [("stderr", str(not tty).lower()), ("rows", str(size.rows)), ("columns", str(size.columns))]
    url = connection.url + pod_path(namespace, pod, "exec")
    async with _http(connection) as http:
        try:
            socket = await http.ws_connect(
                url, params=query, protocols=(PROTOCOL,), max_msg_size=_LARGEST, heartbeat=_HEARTBEAT_S
            )
        except FOREIGN as exc:
            raise foreign(exc, connection.url) from exc
        session = ExecSession(socket, connection.url)
        try:
            yield session
        finally:
            await session.close()


class ExecSession:
    """The client's side of `aliquot.streams.Session`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, url: str) -> None:
        self._socket = socket
        self._url = url
        self._ended: bytes | None = None

    async def output(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """What the command writes, as (1 or 2, bytes); ends when it has ended, or the connection has."""
        while self._ended is None:
            message = await self._socket.receive()
            if message.type == aiohttp.WSMsgType.ERROR:
                raise foreign(self._socket.exception() or ConnectionError("the connection broke"), self._url)
            if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                return  # closed
            raw = message.data if isinstance(message.data, bytes) else message.data.encode()
            channel, data = raw[:1], raw[1:]
            if channel == bytes([STATUS]) and data:
                self._ended = data
            elif data and channel in (bytes([STDOUT]), bytes([STDERR])):
                yield channel[0], data

    async def write(self, data: bytes) -> None:
        await self._send(bytes([STDIN]) + data)

    async def close_input(self) -> None:
        await self._send(bytes([CLOSE, STDIN]))

    async def resize(self, size: TerminalSize) -> None:
        await self._send(bytes([RESIZE]) + json.dumps({"Width": size.columns, "Height": size.rows}).encode())

    async def _send(self, message: bytes) -> None:
        if self._socket.closed:
            return  # it ended while we typed; `wait` says how
        try:
            await self._socket.send_bytes(message)
        except FOREIGN as exc:
            raise foreign(exc, self._url) from exc

    async def wait(self) -> int:
        """The exit status, once the output has ended."""
        if self._ended is None:
            raise Unavailable(f"the connection to {self._url} ended before the command did")
        return exit_status(self._ended)

    async def close(self) -> None:
        await self._socket.close()


def exit_status(payload: bytes) -> int:
    """How a command ended; an error when it could not be run."""
    try:
        status: Json = json.loads(payload)
    except ValueError:
        raise PlatformError(f"the server ended the command with {payload[:200]!r}") from None
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode" and str(cause.get("message")).isdigit():
            return int(cause["message"])
    raise error_from(int(status.get("code") or 500), status)
