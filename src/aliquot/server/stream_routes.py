"""Looking inside a pod over HTTP: its log as a stream of text, commands in it and its ports over a websocket.

Addresses and framing are Kubernetes' own (`pods/NAME/log`, `pods/NAME/exec`, protocol `v5.channel.k8s.io`: the first
byte of each message says which channel the rest belongs to), so that one client can talk to us and to a kubelet. For
`pods/NAME/portforward` Kubernetes has that framing without a way to end one direction; we end it as for commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from aliquot import units
from aliquot.api import KINDS, Pod
from aliquot.errors import Fault, Invalid, NotFound, PlatformError, Unavailable
from aliquot.server.access_control import AccessControl
from aliquot.server.http_json import error_response, status_of
from aliquot.server.object_routes import PREFIX
from aliquot.store.typed_store import Store
from aliquot.streams import (
    CHANNELS,
    CLOSE,
    DATA,
    ERROR,
    LOG_OFFSET,
    LOG_STAMPED,
    STATUS,
    STDIN,
    ExecStream,
    LogOptions,
    PortStream,
    Streams,
    TerminalSize,
)

_POD = f"{PREFIX}/namespaces/{{namespace}}/pods/{{name}}"
_HIGHEST_PORT = 65535


class ResponseAborted(Exception):
    """An answer cannot be finished. Its reader must see that, so the connection is cut."""


class StreamRoutes:
    def __init__(self, store: Store, access: AccessControl, streams: Streams | None, stopping: asyncio.Event) -> None:
        self._store = store
        self._access = access
        self._streams = streams
        self._stopping = stopping

    def routes(self) -> list[BaseRoute]:
        return [
            Route(f"{_POD}/log", self.log),
            WebSocketRoute(f"{_POD}/exec", self.exec),
            WebSocketRoute(f"{_POD}/portforward", self.port_forward),
        ]

    # --- logs

    async def log(self, request: Request) -> Response:
        caller = await self._access.authenticate(request.headers.get("authorization"))
        name, namespace = request.path_params["name"], request.path_params["namespace"]
        self._access.require(caller, "view", KINDS.of(Pod), namespace, name, inside=True)
        options = _options(request.query_params)
        pod = await self._store.get(Pod, name, namespace)
        if options.pod_uid not in ("", pod.metadata.uid):
            raise NotFound(f"pod {name} is gone with its log; another pod has its name")
        opened = await self._runner().open_log(pod, options)
        headers = {} if opened.offset is None else {LOG_OFFSET: str(opened.offset)}
        if opened.stamped:
            headers[LOG_STAMPED] = "true"
        return StreamingResponse(self._pieces(opened.pieces), headers=headers, media_type="text/plain; charset=utf-8")

    async def _pieces(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The log's pieces, until it ends, the reader goes or the server stops."""
        stop = asyncio.ensure_future(self._stopping.wait())
        step = asyncio.ensure_future(anext(source))
        try:
            while True:
                await asyncio.wait((step, stop), return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    return
                yield step.result()
                step = asyncio.ensure_future(anext(source))
        except StopAsyncIteration:
            return
        except PlatformError as exc:
            raise ResponseAborted(exc.message) from exc
        finally:
            stop.cancel()
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
            await source.aclose()  # type: ignore[attr-defined]  # every log is a generator

    # --- commands

    async def exec(self, socket: WebSocket) -> None:
        query = socket.query_params
        try:
            pod = await self._pod_to_enter(socket)
            if not (command := query.getlist("command")):
                raise Invalid.because("exec", [Fault("command", "is required")])
            size = TerminalSize(_whole(query, "rows", 24), _whole(query, "columns", 80))
            session = await self._runner().exec(pod, command, tty=_flag(query, "tty"), size=size)
        except PlatformError as exc:
            await socket.send_denial_response(error_response(exc))
            return
        try:
            await socket.accept(subprotocol=CHANNELS)
            if not _flag(query, "stdin") and not _flag(query, "tty"):
                await session.close_input()
            if await self._converse(_typed(socket, session), _printed(socket, session)):
                await _last_words(socket, STATUS, _status(await session.wait()))
        except PlatformError as exc:
            await _last_words(socket, STATUS, json.dumps(status_of(exc)).encode())
        except WebSocketDisconnect:
            pass  # the reader hung up
        finally:
            await session.close()

    # --- ports

    async def port_forward(self, socket: WebSocket) -> None:
        try:
            pod = await self._pod_to_enter(socket)
            port = _whole(socket.query_params, "ports", 0)
            if not 0 < port <= _HIGHEST_PORT:
                raise Invalid.because("portforward", [Fault("ports", "must be one port, from 1 to 65535")])
            pipe = await self._runner().connect(pod, port)
        except PlatformError as exc:
            await socket.send_denial_response(error_response(exc))
            return
        try:
            await socket.accept(subprotocol=CHANNELS)
            if await self._converse(_sent(socket, pipe), _received(socket, pipe)):
                await _last_words(socket, CLOSE, bytes([DATA]))
        except PlatformError as exc:
            await _last_words(socket, ERROR, exc.message.encode())
        except WebSocketDisconnect:
            pass
        finally:
            await pipe.close()

    # --- what both need

    async def _pod_to_enter(self, socket: WebSocket) -> Pod:
        """The pod, for who may change it."""
        caller = await self._access.authenticate(socket.headers.get("authorization"))
        name, namespace = socket.path_params["name"], socket.path_params["namespace"]
        self._access.require(caller, "edit", KINDS.of(Pod), namespace, name)
        return await self._store.get(Pod, name, namespace)

    async def _converse(self, to_pod: Coroutine[Any, Any, None], from_pod: Coroutine[Any, Any, None]) -> bool:
        """Both directions at once. True when the pod's side has ended; the client may leave before, or we stop."""
        reading, writing = asyncio.ensure_future(to_pod), asyncio.ensure_future(from_pod)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((writing, stop, reading), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
            elif reading.done():
                reading.result()
            return writing.done()
        finally:
            for task in (reading, writing, stop):
                task.cancel()
            await asyncio.gather(reading, writing, stop, return_exceptions=True)

    def _runner(self) -> Streams:
        if self._streams is None:
            raise Unavailable("nobody runs pods here", hint="start the platform with an agent, or ask the cluster")
        return self._streams


async def _message(socket: WebSocket) -> bytes:
    """What the client sends next, in whichever form it does."""
    said = await socket.receive()
    if said["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(said["code"])
    return said.get("bytes") or (said.get("text") or "").encode()


async def _typed(socket: WebSocket, session: ExecStream) -> None:
    """What the client says to a command, until it leaves."""
    while True:
        message = await _message(socket)
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


async def _printed(socket: WebSocket, session: ExecStream) -> None:
    async for channel, data in session.output():
        await socket.send_bytes(bytes([channel]) + data)


async def _sent(socket: WebSocket, pipe: PortStream) -> None:
    while True:
        message = await _message(socket)
        if message[:1] == bytes([DATA]):
            await pipe.write(message[1:])
        elif message == bytes([CLOSE, DATA]):
            await pipe.close_input()


async def _received(socket: WebSocket, pipe: PortStream) -> None:
    async for data in pipe.output():
        await socket.send_bytes(bytes([DATA]) + data)


async def _last_words(socket: WebSocket, channel: int, words: bytes) -> None:
    with contextlib.suppress(WebSocketDisconnect):  # the reader left first
        await socket.send_bytes(bytes([channel]) + words)
        await socket.close()


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
        line_times=_flag(query, "marks"),
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
