"""A small HTTP server for tests of the client: objects from a store, logs from a list, commands as real processes.

It implements the wire format of the platform's routes (`pods/NAME/log`; `pods/NAME/exec` and `pods/NAME/portforward` in
`v5.channel.k8s.io`), and can break connections on demand, which the platform's own server cannot.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aiohttp import WSMsgType, web

from aliquot.api import KINDS
from aliquot.errors import PlatformError
from aliquot.store.driver import StoreDriver
from aliquot.streams import LOG_OFFSET, LOG_STAMPED

TOKEN = "alq_test"
ROOT = "/apis/aliquot.dev/v1"


class PodServer:
    """Serves the objects of a store, and logs, exec and port-forward of pods."""

    def __init__(self, driver: StoreDriver) -> None:
        self.driver = driver
        self.url = ""
        self.queries: list[dict[str, str]] = []
        # The answers to log requests, in order: chunks, with None where the connection breaks.
        self.logs: list[list[bytes | None]] = []
        # Written to the pod's status when `ends_at` answers are left, including the current one.
        self.ends_as: dict[str, Any] = {}
        self.ends_at = 2
        # Whether an answer has the header with its offset in the log, or the one for lines that begin with their time.
        self.offsets = False
        self.stamped = False
        self.refusal: PlatformError | None = None
        self.sizes: list[tuple[int, int]] = []

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Run the server in a thread, and yield its address."""
        ready, loop = threading.Event(), asyncio.new_event_loop()
        stop = asyncio.Event()

        async def run() -> None:
            runner = web.AppRunner(self._app(), shutdown_timeout=1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
            self.url = f"http://127.0.0.1:{port}"
            ready.set()
            await stop.wait()
            await runner.cleanup()

        thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
        thread.start()
        assert ready.wait(10)
        try:
            yield self.url
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(10)
            loop.close()

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(ROOT + "/namespaces/{namespace}/pods/{name}/log", self._log)
        app.router.add_get(ROOT + "/namespaces/{namespace}/pods/{name}/exec", self._exec)
        app.router.add_get(ROOT + "/namespaces/{namespace}/pods/{name}/portforward", self._port)
        app.router.add_get(ROOT + "/namespaces/{namespace}/{plural}", self._list)
        app.router.add_get(ROOT + "/namespaces/{namespace}/{plural}/{name}", self._get)
        app.router.add_get(ROOT + "/{plural}", self._list)
        app.router.add_get(ROOT + "/{plural}/{name}", self._get)
        return app

    async def _get(self, request: web.Request) -> web.Response:
        route = request.match_info
        try:
            document = await self.driver.get(KINDS.named(route["plural"]), route["name"], route.get("namespace", ""))
        except PlatformError as exc:
            return _refused(exc)
        return web.json_response(document.data)

    async def _list(self, request: web.Request) -> web.Response:
        route = request.match_info
        listing = await self.driver.list(KINDS.named(route["plural"]), route.get("namespace"))
        items = [each.data for each in listing.items]
        return web.json_response({"metadata": {"resourceVersion": listing.version}, "items": items})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"message": "who are you?", "reason": "Unauthorized"}, status=401)
        if self.refusal:
            return _refused(self.refusal)
        if len(self.logs) == self.ends_at and self.ends_as:
            route, status = request.match_info, {"status": self.ends_as}
            await self.driver.patch(KINDS.named("pod"), route["name"], route["namespace"], status, status=True)
        headers = {LOG_OFFSET: request.query.get("offset", "0")} if self.offsets else {}
        headers |= {LOG_STAMPED: "true"} if self.stamped else {}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for chunk in self.logs.pop(0):
            if chunk is None:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(chunk)
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        if self.refusal:
            return _refused(self.refusal)
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        terminal = request.query["tty"] == "true"
        run = self._run_in_terminal if terminal else self._run_in_pipes
        code = await run(socket, request.query.getall("command"), request)
        failure = {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
        await socket.send_bytes(b"\x03" + json.dumps(failure if code else {"status": "Success"}).encode())
        await socket.close()
        return socket

    async def _port(self, request: web.Request) -> web.StreamResponse:
        """Connect to a port of this machine: all pods share its network."""
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(request.query["ports"]))
        except OSError:
            await socket.send_bytes(b"\x01nobody listens")
            return socket

        async def write() -> None:
            async for message in socket:
                if message.data[:1] == b"\x00":
                    writer.write(message.data[1:])
                else:
                    writer.write_eof()

        writing = asyncio.create_task(write())
        while data := await reader.read(1 << 16):
            await socket.send_bytes(b"\x00" + data)
        writing.cancel()
        writer.close()
        await socket.send_bytes(b"\xff\x00")
        await socket.close()
        return socket

    async def _run_in_pipes(self, socket: web.WebSocketResponse, command: list[str], request: web.Request) -> int:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None

        async def read(channel: int, stream: asyncio.StreamReader) -> None:
            while data := await stream.read(1 << 16):
                await socket.send_bytes(bytes([channel]) + data)

        async def write() -> None:
            async for message in socket:
                if message.type == WSMsgType.BINARY and message.data[:2] == b"\xff\x00":
                    stdin.close()
                elif message.type == WSMsgType.BINARY and message.data[:1] == b"\x00":
                    stdin.write(message.data[1:])
                    await stdin.drain()

        writing = asyncio.create_task(write())
        await asyncio.gather(read(1, stdout), read(2, stderr))
        writing.cancel()
        return await process.wait()

    async def _run_in_terminal(self, socket: web.WebSocketResponse, command: list[str], request: web.Request) -> int:
        ours, theirs = pty.openpty()
        self._resize(theirs, int(request.query["rows"]), int(request.query["columns"]))
        process = await asyncio.create_subprocess_exec(
            *command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=_own_terminal
        )
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        loop.add_reader(ours, lambda: _feed(loop, ours, reader))

        async def write() -> None:
            async for message in socket:
                if message.data[:1] == b"\x00":
                    os.write(ours, message.data[1:])
                elif message.data[:1] == b"\x04":
                    size = json.loads(message.data[1:])
                    self._resize(ours, size["Height"], size["Width"])

        writing = asyncio.create_task(write())
        os.close(theirs)
        while data := await reader.read(1 << 16):
            await socket.send_bytes(b"\x01" + data)
        writing.cancel()
        code = await process.wait()
        os.close(ours)
        return code if code >= 0 else 128 - code

    def _resize(self, handle: int, rows: int, columns: int) -> None:
        self.sizes.append((rows, columns))
        fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _feed(loop: asyncio.AbstractEventLoop, handle: int, reader: asyncio.StreamReader) -> None:
    data = b""
    with suppress(OSError):  # the last process has closed its end
        data = os.read(handle, 1 << 16)
    if data:
        reader.feed_data(data)
    else:
        loop.remove_reader(handle)
        reader.feed_eof()


def _refused(exc: PlatformError) -> web.Response:
    status = {"kind": "Status", "message": exc.message, "reason": exc.reason, "code": exc.status}
    return web.json_response(status, status=exc.status)
