"""A command inside a running pod, with a terminal or with pipes.

The launcher enters the pod, opens the terminal there and sends its other end to us over a socket. From then on bytes
go directly between the command and this process. When this process ends, the terminal hangs up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import termios
from collections.abc import AsyncIterator
from typing import Any

from aliquot.errors import Conflict, Unavailable
from aliquot.streams import TerminalSize

_CHUNK = 1 << 16
_START_SECONDS = 15.0
_END_OF_INPUT = b"\x04"


class ExecProcess:
    """See aliquot.streams.ExecStream."""

    def __init__(self, process: asyncio.subprocess.Process, handles: list[int], tty: bool) -> None:
        self._process = process
        self._tty = tty
        for handle in handles:
            os.set_blocking(handle, False)
        self._input = handles[0]
        self._outputs = {handles[0]: 1} if tty else {handles[1]: 1, handles[2]: 2}
        self._handles = set(handles)

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        pieces: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(maxsize=8)
        readers = [asyncio.create_task(self._read(handle, pieces)) for handle in self._outputs]
        ended = asyncio.create_task(self._ended(readers))
        try:
            while not (ended.done() and pieces.empty()):
                get = asyncio.ensure_future(pieces.get())
                await asyncio.wait((get, ended), return_when=asyncio.FIRST_COMPLETED)
                if get.done():
                    yield get.result()
                else:
                    get.cancel()
        finally:
            for task in (*readers, ended):
                task.cancel()
            await asyncio.gather(*readers, ended, return_exceptions=True)

    async def _ended(self, readers: list[asyncio.Task[None]]) -> None:
        """Everything is read, or the command has ended and a process it left behind keeps the output open."""
        await self._process.wait()
        await asyncio.wait(readers, timeout=0.2)

    async def _read(self, handle: int, pieces: asyncio.Queue[tuple[int, bytes]]) -> None:
        while True:
            try:
                data = os.read(handle, _CHUNK)
            except BlockingIOError:
                await _ready(handle, reading=True)
                continue
            except OSError:  # the other side of the terminal is closed
                return
            if not data:
                return
            await pieces.put((self._outputs[handle], data))

    async def write(self, data: bytes) -> None:
        while data and self._input in self._handles:
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                await _ready(self._input, reading=False)
            except OSError:
                return  # it reads no more input; `wait` reports its end

    async def close_input(self) -> None:
        if self._tty:
            await self.write(_END_OF_INPUT)
        else:
            self._close(self._input)

    async def resize(self, size: TerminalSize) -> None:
        if self._tty and self._input in self._handles:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetwinsize(self._input, (size.rows, size.columns))

    async def wait(self) -> int:
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        for handle in list(self._handles):
            self._close(handle)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)  # passed on by the launcher

    def _close(self, handle: int) -> None:
        if handle in self._handles:
            self._handles.discard(handle)
            loop = asyncio.get_running_loop()
            loop.remove_reader(handle)
            loop.remove_writer(handle)
            os.close(handle)


async def _ready(handle: int, *, reading: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_reader, loop.remove_reader) if reading else (loop.add_writer, loop.remove_writer)
    add(handle, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        remove(handle)


async def start_exec(command: list[str], env: dict[str, str], request: dict[str, Any]) -> ExecProcess:
    """Start the launcher with this request. `Conflict` when the command cannot run in the pod."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=theirs.fileno(), env=env, start_new_session=True
            )
        ours.settimeout(_START_SECONDS)
        try:
            handles, answer = await asyncio.to_thread(_handshake, ours, json.dumps(request).encode() + b"\n")
        except (OSError, ValueError) as exc:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise Unavailable("the command did not start in time") from exc
    if "error" in answer:
        for handle in handles:
            os.close(handle)
        await process.wait()
        raise Conflict(answer["error"])
    return ExecProcess(process, handles, request["tty"])


def _handshake(launcher: socket.socket, request: bytes) -> tuple[list[int], dict[str, Any]]:
    """The other ends of the command's terminal or pipes, and whether it runs."""
    launcher.sendall(request)
    text, handles, *_ = socket.recv_fds(launcher, 4096, 3)
    if handles:
        text = text[1:]  # the byte that carried them
    while not text.endswith(b"\n"):
        more = launcher.recv(4096)
        if not more:
            for handle in handles:
                os.close(handle)
            raise ValueError("the launcher ended")
        text += more
    return list(handles), json.loads(text)
