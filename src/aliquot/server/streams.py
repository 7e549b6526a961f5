"""Looking inside a pod over HTTP: its log as a stream of text, commands in it over a websocket.

Addresses and framing are Kubernetes' own (`pods/NAME/log`, `pods/NAME/exec`, protocol `v5.channel.k8s.io`: the first
byte of each message says which channel the rest belongs to), so that one client can talk to us and to a kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from aliquot import units
from aliquot.errors import Fault, Invalid, NotFound, PlatformError, Unavailable
from aliquot.server.access import Access
from aliquot.server.answers import error_response
from aliquot.server.objects import PREFIX
from aliquot.store.typed import Store
from aliquot.streams import LOG_OFFSET, LogOptions, Session, Streams, TerminalSize
from aliquot.types import KINDS, Pod

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
# How long a log may take to say that there is none; after that the stream has begun.
_OPENING_SECONDS = 0.25
_POD = f"{PREFIX}/namespaces/{{namespace}}/pods/{{name}}"


class StreamRoutes:
    def __init__(self, store: Store, access: Access, streams: Streams | None, stopping: asyncio.Event) -> None:
        self._store = store
        self._access = access
        self._streams = streams
        self._stopping = stopping

    def routes(self) -> list[BaseRoute]:
        return [Route(f"{_POD}/log", self.log), WebSocketRoute(f"{_POD}/exec", self.exec)]

    async def log(self, request: Request) -> Response:
        caller = await self._access.authenticate(request.headers.get("authorization"))
        name, namespace = request.path_params["name"], request.path_params["namespace"]
        self._access.require(caller, "view", KINDS.of(Pod), namespace, name)
        options = _options(request.query_params)
        pod = await self._store.get(Pod, name, namespace)
        if options.pod_uid not in ("", pod.metadata.uid):
            raise NotFound(f"pod {name} is gone with its log; another pod has its name")
        start = self._runner().log_start(pod, options)
        source = aiter(self._runner().logs(pod, dataclasses.replace(options, offset=start)))
        first = asyncio.ensure_future(anext(source))
        await asyncio.wait((first,), timeout=_OPENING_SECONDS)
        if first.done() and isinstance(first.exception(), PlatformError):
            raise first.exception() or AssertionError
        headers = {} if start is None else {LOG_OFFSET: str(start)}
        return StreamingResponse(self._pieces(first, source), headers=headers, media_type="text/plain; charset=utf-8")

    async def _pieces(self, first: asyncio.Future[bytes], source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The log's pieces, until it ends, the reader goes or the server stops."""
        step = first
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                await asyncio.wait((step, stop), return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    return
                yield step.result()
                step = asyncio.ensure_future(anext(source))
        except StopAsyncIteration:
            return
        finally:
            stop.cancel()
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
            await source.aclose()  # type: ignore[attr-defined]  # every log is a generator

    async def exec(self, socket: WebSocket) -> None:
        try:
            session = await self._open(socket)
        except PlatformError as exc:
            await socket.send_denial_response(error_response(exc))
            return
        await socket.accept(subprotocol=PROTOCOL)
        try:
            await self._converse(socket, session)
        except WebSocketDisconnect:
            pass  # the reader hung up
        finally:
            await session.close()

    async def _open(self, socket: WebSocket) -> Session:
        caller = await self._access.authenticate(socket.headers.get("authorization"))
        name, namespace = socket.path_params["name"], socket.path_params["namespace"]
        self._access.require(caller, "edit", KINDS.of(Pod), namespace, name)
        query = socket.query_params
        command = query.getlist("command")
        if not command:
            raise Invalid.because("exec", [Fault("command", "is required")])
        pod = await self._store.get(Pod, name, namespace)
        size = TerminalSize(_whole(query, "rows", 24), _whole(query, "columns", 80))
        return await self._runner().exec(pod, command, tty=_flag(query, "tty"), size=size)

    async def _converse(self, socket: WebSocket, session: Session) -> None:
        """Both directions at once; the command's end ends them."""
        reading = asyncio.ensure_future(self._from_client(socket, session))
        writing = asyncio.ensure_future(self._to_client(socket, session))
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            # The client may close its input and go on listening, so only its leaving ends the conversation early.
            await asyncio.wait((writing, stop, reading), return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not writing.done() and reading.exception() is None:
                await asyncio.wait((writing, stop), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
                await socket.send_bytes(bytes([STATUS]) + _status(await session.wait()))
                await socket.close()
        finally:
            for task in (reading, writing, stop):
                task.cancel()
            await asyncio.gather(reading, writing, stop, return_exceptions=True)

    async def _to_client(self, socket: WebSocket, session: Session) -> None:
        async for channel, data in session.output():
            await socket.send_bytes(bytes([channel]) + data)

    async def _from_client(self, socket: WebSocket, session: Session) -> None:
        while True:
            message = await socket.receive_bytes()
            channel, data = message[:1], message[1:]
            match channel[0] if channel else None:
                case 0:  # STDIN
                    await session.write(data)
                case 4:  # RESIZE
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        size = json.loads(data)
                        await session.resize(TerminalSize(int(size["Height"]), int(size["Width"])))
                case 255 if data[:1] == bytes([STDIN]):  # CLOSE
                    await session.close_input()
                case _:
                    continue

    def _runner(self) -> Streams:
        if self._streams is None:
            raise Unavailable("nobody runs pods here", hint="start the platform with an agent, or ask the cluster")
        return self._streams


def _status(code: int) -> bytes:
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    causes = [{"reason": "ExitCode", "message": str(code)}]
    failure = {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"the command ended with exit status {code}",
        "details": {"causes": causes},
    }
    return json.dumps(failure).encode()


def _options(query: QueryParams) -> LogOptions:
    since = None
    if query.get("sinceSeconds"):
        since = time.time() - _whole(query, "sinceSeconds", 0)
    elif query.get("sinceTime"):
        try:
            since = units.timestamp(query["sinceTime"])
        except ValueError as exc:
            raise Invalid.because("log", [Fault("sinceTime", str(exc))]) from None
    return LogOptions(
        follow=_flag(query, "follow"),
        tail_lines=_whole(query, "tailLines", 0) if query.get("tailLines") else None,
        since=since,
        timestamps=_flag(query, "timestamps"),
        previous=_flag(query, "previous"),
        limit_bytes=_whole(query, "limitBytes", 0) if query.get("limitBytes") else None,
        offset=_whole(query, "offset", 0) if query.get("offset") else None,
        pod_uid=query.get("uid", ""),
    )


def _flag(query: QueryParams, name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def _whole(query: QueryParams, name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise Invalid.because("request", [Fault(name, f"must be a whole number, not {text!r}")])
    return int(text)
