"""A forwarded port over a real websocket: SPDY frames, in whatever chunks they arrive."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterable

import pytest
from aiohttp import web

from aliquot.backends.kubernetes.port_forward import PROTOCOL, Frame, PortPipe, split
from aliquot.errors import Conflict, Unavailable
from aliquot.store.http.transport import Endpoint, Timeouts, Transport
from support.kubernetes.scripted_server import ScriptedServer

ERROR, DATA = 1, 3
REFUSED = b"dial tcp4 127.0.0.1:80: connect: connection refused"


def data(stream: int, text: bytes = b"", *, last: bool = False) -> bytes:
    return struct.pack(">II", stream, last << 24 | len(text)) + text


def control(kind: int, text: bytes) -> bytes:
    return struct.pack(">II", 0x80030000 | kind, len(text)) + text


PING = control(6, b"\0\0\0\2")
REPLIES = control(2, struct.pack(">I", DATA) + b"headers") + control(2, struct.pack(">I", ERROR))
END = data(DATA, last=True) + data(ERROR, last=True)


def pod_side(
    received: list[bytes], messages: Iterable[bytes]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        websocket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await websocket.prepare(request)
        received.append(await websocket.receive_bytes())
        for message in messages:
            await websocket.send_bytes(message)
        async for reply in websocket:
            received.append(reply.data)  # noqa: PERF401  # one by one: the websocket may end in between
        return websocket

    return answer


async def exchange(messages: Iterable[bytes], typed: bytes = b"") -> tuple[bytes, list[Frame]]:
    """The data that the pod's side sent, and the frames it received."""
    received: list[bytes] = []
    async with ScriptedServer(pod_side(received, messages)) as server:
        transport = Transport(Endpoint(server.url), Timeouts())
        pipe = PortPipe(await transport.socket("/portforward", [], PROTOCOL), "web-0-0", 80)
        try:
            await pipe.open()
            if typed:
                await pipe.write(typed)
                await pipe.close_input()
            output = b"".join([chunk async for chunk in pipe.output()])
        finally:
            await pipe.close()
            await transport.close()
    return output, split(b"".join(received))[0]


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_frames_in_any_chunks(size: int) -> None:
    """A websocket message may end anywhere in a frame."""
    sent = REPLIES + data(DATA, b"hello, ") + data(DATA, b"") + data(DATA, b"world") + END
    output, _ = await exchange([sent[start : start + size] for start in range(0, len(sent), size)])
    assert output == b"hello, world"


async def test_streams_and_input() -> None:
    """Two streams are opened, the error stream first; input is sent in data frames, and its end is a flag."""
    typed = b"x" * 200_000
    _, frames = await exchange([REPLIES, END], typed)
    opened, written = frames[:2], frames[2:]
    assert [(frame.type, frame.stream, frame.flags) for frame in opened] == [(1, ERROR, 1), (1, DATA, 0)]
    assert {frame.stream for frame in written} == {DATA}
    assert b"".join(frame.data for frame in written) == typed
    assert [frame.flags for frame in written] == [0] * (len(written) - 1) + [1]


async def test_a_ping_is_answered() -> None:
    _, frames = await exchange([PING, END])
    assert [frame.data for frame in frames if frame.type == 6] == [b"\0\0\0\2"]


async def test_port_without_a_listener() -> None:
    """The runtime's error may arrive after the end of the data, and becomes a short message."""
    with pytest.raises(Conflict, match=r"^nothing in pod web-0-0 listens on port 80$"):
        await exchange(
            [data(DATA, last=True), data(ERROR, REFUSED[:20]), data(ERROR, REFUSED[20:]), data(ERROR, last=True)]
        )


async def test_another_error() -> None:
    with pytest.raises(Conflict, match=r"^port 80 of pod web-0-0: out of file handles$"):
        await exchange([data(ERROR, b"out of\nfile handles"), END])


@pytest.mark.parametrize("message", [control(3, struct.pack(">II", DATA, 5)), data(DATA, b"half")])
async def test_broken_connection(message: bytes) -> None:
    """A reset stream, or a websocket that ends early, is an error and not the end of the data."""

    async def answer(request: web.Request) -> web.StreamResponse:
        websocket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await websocket.prepare(request)
        await websocket.send_bytes(message)
        await websocket.close()
        return websocket

    async with ScriptedServer(answer) as server:
        transport = Transport(Endpoint(server.url), Timeouts())
        pipe = PortPipe(await transport.socket("/portforward", [], PROTOCOL), "web-0-0", 80)
        with pytest.raises(Unavailable, match="broke"):
            [chunk async for chunk in pipe.output()]
        await pipe.close()
        await transport.close()
