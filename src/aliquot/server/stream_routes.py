"""Logs, exec and port-forward for a pod: logs as a stream of text, the other two over a websocket.

Paths and framing are those of Kubernetes (`pods/NAME/log`, `pods/NAME/exec`, protocol `v5.channel.k8s.io`: the first
byte of each message is the channel), so that one client works with us and with a kubelet. For `pods/NAME/portforward`
Kubernetes' framing has no way to close one direction; we close it as for exec.
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
_MAX_PORT = 65535


class ResponseAborted(Exception):
    """A response cannot be completed. The connection is closed, so that the client notices."""


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
        options = _log_options(request.query_params)
        pod = await self._store.get(Pod, name, namespace)
        if options.pod_uid not in ("", pod.metadata.uid):
            raise NotFound(f"pod {name} is gone with its log; another pod has its name")
        log = await self._pod_streams().open_log(pod, options)
        headers = {} if log.offset is None else {LOG_OFFSET: str(log.offset)}
        if log.has_line_times:
            headers[LOG_STAMPED] = "true"
        return StreamingResponse(self._log_chunks(log.chunks), headers=headers, media_type="text/plain; charset=utf-8")

    async def _log_chunks(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The log, until it ends, the client disconnects or the server stops."""
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

    # --- exec

    async def exec(self, socket: WebSocket) -> None:
        query = socket.query_params
        try:
            pod = await self._editable_pod(socket)
            if not (command := query.getlist("command")):
                raise Invalid.because("exec", [Fault("command", "is required")])
            size = TerminalSize(_whole_number(query, "rows", 24), _whole_number(query, "columns", 80))
            session = await self._pod_streams().exec(pod, command, tty=_flag(query, "tty"), size=size)
        except PlatformError as exc:
            await socket.send_denial_response(error_response(exc))
            return
        try:
            await socket.accept(subprotocol=CHANNELS)
            if not _flag(query, "stdin") and not _flag(query, "tty"):
                await session.close_input()
            if await self._relay(_relay_input(socket, session), _relay_output(socket, session)):
                await _send_and_close(socket, STATUS, _exit_status(await session.wait()))
        except PlatformError as exc:
            await _send_and_close(socket, STATUS, json.dumps(status_of(exc)).encode())
        except WebSocketDisconnect:
            pass  # the client disconnected
        finally:
            await session.close()

    # --- port-forward

    async def port_forward(self, socket: WebSocket) -> None:
        try:
            pod = await self._editable_pod(socket)
            port = _whole_number(socket.query_params, "ports", 0)
            if not 0 < port <= _MAX_PORT:
                raise Invalid.because("portforward", [Fault("ports", "must be one port, from 1 to 65535")])
            pipe = await self._pod_streams().connect(pod, port)
        except PlatformError as exc:
            await socket.send_denial_response(error_response(exc))
            return
        try:
            await socket.accept(subprotocol=CHANNELS)
            if await self._relay(_relay_to_port(socket, pipe), _relay_from_port(socket, pipe)):
                await _send_and_close(socket, CLOSE, bytes([DATA]))
        except PlatformError as exc:
            await _send_and_close(socket, ERROR, exc.message.encode())
        except WebSocketDisconnect:
            pass
        finally:
            await pipe.close()

    # --- shared

    async def _editable_pod(self, socket: WebSocket) -> Pod:
        """The pod; `Denied` unless the caller may edit pods in its namespace."""
        caller = await self._access.authenticate(socket.headers.get("authorization"))
        name, namespace = socket.path_params["name"], socket.path_params["namespace"]
        self._access.require(caller, "edit", KINDS.of(Pod), namespace, name)
        return await self._store.get(Pod, name, namespace)

    async def _relay(self, to_pod: Coroutine[Any, Any, None], from_pod: Coroutine[Any, Any, None]) -> bool:
        """Relays both directions. True when the pod's side ended, False when the client left or the server stops."""
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

    def _pod_streams(self) -> Streams:
        if self._streams is None:
            raise Unavailable("this server runs no pods", hint="start the platform with an agent, or ask the cluster")
        return self._streams


async def _message(socket: WebSocket) -> bytes:
    """The client's next message, binary or text, as bytes."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    return message.get("bytes") or (message.get("text") or "").encode()


async def _relay_input(socket: WebSocket, session: ExecStream) -> None:
    """Relays the client's messages to a command, until the client disconnects."""
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


async def _relay_output(socket: WebSocket, session: ExecStream) -> None:
    async for channel, data in session.output():
        await socket.send_bytes(bytes([channel]) + data)


async def _relay_to_port(socket: WebSocket, pipe: PortStream) -> None:
    while True:
        message = await _message(socket)
        if message[:1] == bytes([DATA]):
            await pipe.write(message[1:])
        elif message == bytes([CLOSE, DATA]):
            await pipe.close_input()


async def _relay_from_port(socket: WebSocket, pipe: PortStream) -> None:
    async for data in pipe.output():
        await socket.send_bytes(bytes([DATA]) + data)


async def _send_and_close(socket: WebSocket, channel: int, data: bytes) -> None:
    with contextlib.suppress(WebSocketDisconnect):  # the client disconnected first
        await socket.send_bytes(bytes([channel]) + data)
        await socket.close()


def _exit_status(code: int) -> bytes:
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


def _log_options(query: QueryParams) -> LogOptions:
    since = None
    if query.get("sinceSeconds"):
        since = time.time() - _whole_number(query, "sinceSeconds", 0)
    elif query.get("sinceTime"):
        try:
            since = units.timestamp(query["sinceTime"])
        except ValueError as exc:
            raise Invalid.because("log", [Fault("sinceTime", str(exc))]) from None
    return LogOptions(
        follow=_flag(query, "follow"),
        tail_lines=_whole_number(query, "tailLines", 0) if query.get("tailLines") else None,
        since=since,
        timestamps=_flag(query, "timestamps"),
        previous=_flag(query, "previous"),
        limit_bytes=_whole_number(query, "limitBytes", 0) if query.get("limitBytes") else None,
        offset=_whole_number(query, "offset", 0) if query.get("offset") else None,
        line_times=_flag(query, "marks"),
        pod_uid=query.get("uid", ""),
    )


def _flag(query: QueryParams, name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def _whole_number(query: QueryParams, name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise Invalid.because("request", [Fault(name, f"must be a whole number, not {text!r}")])
    return int(text)
