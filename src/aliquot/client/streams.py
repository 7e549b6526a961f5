"""Logs, exec and port-forward over HTTP: logs as a stream of bytes, commands and ports over a websocket.

The websocket speaks Kubernetes' `v5.channel.k8s.io`: the first byte of each binary message is its channel.

    a command   0 stdin   1 stdout   2 stderr   3 exit as a Status   4 terminal size
    a port      0 data    1 error
    both        255 close of a channel
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from urllib.parse import quote

from aliquot.errors import Conflict, Unavailable
from aliquot.labels import API_VERSION
from aliquot.store.http.client import Socket
from aliquot.store.http.exec_session import ExecSession, exec_query
from aliquot.store.http.transport import Transport
from aliquot.streams import (
    CHANNELS,
    CLOSE,
    DATA,
    ERROR,
    LOG_OFFSET,
    LOG_STAMPED,
    Log,
    LogOptions,
    TerminalSize,
)
from aliquot.units import timestamp_text


def pod_path(namespace: str, pod: str, part: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/{part}"


def log_query(options: LogOptions, now: float) -> dict[str, str]:
    """The query of the log route. `since` is sent as an age, because the clocks of client and server differ."""
    flags = {
        "follow": options.follow,
        "timestamps": options.timestamps,
        "previous": options.previous,
        "marks": options.line_times,
    }
    query = {name: "true" for name, given in flags.items() if given}
    if options.tail_lines is not None:
        query["tailLines"] = str(options.tail_lines)
    if options.resume is not None:
        query["sinceTime"] = timestamp_text(options.resume)
    elif options.since is not None:
        query["sinceSeconds"] = str(max(1, math.ceil(now - options.since)))
    if options.limit_bytes is not None:
        query["limitBytes"] = str(options.limit_bytes)
    if options.offset is not None:
        query["offset"] = str(options.offset)
    if options.pod_uid:
        query["uid"] = options.pod_uid
    return query


@asynccontextmanager
async def open_log(transport: Transport, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[Log]:
    """Opens a log while the block runs."""
    stream = await transport.stream(pod_path(namespace, pod, "log"), log_query(options, time.time()))
    offset = stream.header(LOG_OFFSET)
    try:
        async with aclosing(stream.chunks()) as pieces:
            yield Log(pieces, int(offset) if offset.isdigit() else None, stream.header(LOG_STAMPED) == "true")
    finally:
        stream.abort()


@asynccontextmanager
async def open_exec(
    transport: Transport,
    namespace: str,
    pod: str,
    command: Sequence[str],
    *,
    tty: bool,
    stdin: bool,
    size: TerminalSize,
) -> AsyncIterator[ExecSession]:
    """Runs a command in the pod while the block runs."""
    query = exec_query(command, tty=tty, stdin=stdin)
    query += [("rows", str(size.rows)), ("columns", str(size.columns))]
    session = ExecSession(await transport.socket(pod_path(namespace, pod, "exec"), query, CHANNELS))
    try:
        yield session
    finally:
        await session.close()


@asynccontextmanager
async def open_port(transport: Transport, namespace: str, pod: str, port: int) -> AsyncIterator[PortSocket]:
    """Connects to a port of the pod while the block runs."""
    query = [("ports", str(port))]
    stream = PortSocket(await transport.socket(pod_path(namespace, pod, "portforward"), query, CHANNELS))
    try:
        yield stream
    finally:
        await stream.close()


class PortSocket:
    """A `PortStream` over a websocket."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    async def output(self) -> AsyncGenerator[bytes, None]:
        while (message := await self._socket.receive()) is not None:
            channel, data = message[:1], message[1:]
            if channel == bytes([ERROR]):
                raise Conflict(data.decode(errors="replace"))
            if channel == bytes([DATA]) and data:
                yield data
            elif message == bytes([CLOSE, DATA]):
                return
        raise Unavailable(f"the connection to {self._socket.url} broke")

    async def write(self, data: bytes) -> None:
        if not self._socket.closed:
            await self._socket.send(bytes([DATA]) + data)

    async def close_input(self) -> None:
        if not self._socket.closed:
            await self._socket.send(bytes([CLOSE, DATA]))

    async def close(self) -> None:
        await self._socket.close()
