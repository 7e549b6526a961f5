"""The client's end of a command in a pod, over a websocket. The REST API and Kubernetes speak the same protocol.

The websocket speaks Kubernetes' `v5.channel.k8s.io`: the first byte of each message is the channel.

    0 stdin   1 stdout   2 stderr   3 how the command ended, as a Status   4 a new terminal size   255 a channel closes
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence

from aliquot.api import Json
from aliquot.errors import PlatformError, Unavailable
from aliquot.store.http.client import Socket
from aliquot.store.http.errors import error_from
from aliquot.streams import CLOSE, RESIZE, STATUS, STDERR, STDIN, STDOUT, TerminalSize


def exec_query(command: Sequence[str], *, tty: bool, stdin: bool) -> list[tuple[str, str]]:
    """The query of Kubernetes' exec route, which the REST API shares."""
    query = [("command", argument) for argument in command]
    query += [("tty", str(tty).lower()), ("stdin", str(stdin).lower()), ("stdout", "true")]
    return [*query, ("stderr", str(not tty).lower())]


class ExecSession:
    """Implements `aliquot.streams.Session`."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._ended: bytes | None = None

    async def output(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """What the command writes, as (1 or 2, bytes). Ends when the command has ended, or the connection."""
        while self._ended is None and (message := await self._socket.receive()) is not None:
            channel, data = message[:1], message[1:]
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
        if not self._socket.closed:  # the command may have ended meanwhile; `wait` says how
            await self._socket.send(message)

    async def wait(self) -> int:
        """The exit status, once the output has ended."""
        if self._ended is None:
            raise Unavailable(f"the connection to {self._socket.url} ended before the command did")
        return exit_status(self._ended)

    async def close(self) -> None:
        await self._socket.close()


def exit_status(payload: bytes) -> int:
    """The exit status in a Status; raises an error if the command could not be run."""
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
