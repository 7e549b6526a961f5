"""A forwarded port over a real websocket: what the other side says in SPDY frames, whatever their pieces."""

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


def says(heard: list[bytes], messages: Iterable[bytes]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        line = web.WebSocketResponse(protocols=(PROTOCOL,))
        await line.prepare(request)
        heard.append(await line.receive_bytes())
        for message in messages:
            await line.send_bytes(message)
        async for message in line:
            heard.append(message.data)  # noqa: PERF401  # each as it comes: the test looks once the line is closed
        return line

    return answer


async def talk(messages: Iterable[bytes], typed: bytes = b"") -> tuple[bytes, list[Frame]]:
    """What the pod's side said, and the frames it heard."""
    heard: list[bytes] = []
    async with ScriptedServer(says(heard, messages)) as server:
        transport = Transport(Endpoint(server.url), Timeouts())
        pipe = PortPipe(await transport.socket("/portforward", [], PROTOCOL), "web-0-0", 80)
        try:
            await pipe.open()
            if typed:
                await pipe.write(typed)
                await pipe.close_input()
            got = b"".join([piece async for piece in pipe.output()])
        finally:
            await pipe.close()
            await transport.close()
    return got, split(b"".join(heard))[0]


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_frames_in_any_pieces(size: int) -> None:
    """Messages of the websocket end anywhere in a frame."""
    sent = REPLIES + data(DATA, b"hello, ") + data(DATA, b"") + data(DATA, b"world") + END
    got, _ = await talk([sent[at : at + size] for at in range(0, len(sent), size)])
    assert got == b"hello, world"


async def test_what_is_asked_and_written() -> None:
    """Two streams are opened, errors first; what is written comes in data frames, and its end is one."""
    typed = b"x" * 200_000
    _, frames = await talk([REPLIES, END], typed)
    opened, written = frames[:2], frames[2:]
    assert [(frame.type, frame.stream, frame.flags) for frame in opened] == [(1, ERROR, 1), (1, DATA, 0)]
    assert {frame.stream for frame in written} == {DATA}
    assert b"".join(frame.data for frame in written) == typed
    assert [frame.flags for frame in written] == [0] * (len(written) - 1) + [1]


async def test_a_ping_is_answered() -> None:
    _, frames = await talk([PING, END])
    assert [frame.data for frame in frames if frame.type == 6] == [b"\0\0\0\2"]


async def test_nobody_listens() -> None:
    """The error's text comes after the end of the data, and becomes ours."""
    with pytest.raises(Conflict, match=r"^nothing in pod web-0-0 listens on port 80$"):
        await talk(
            [data(DATA, last=True), data(ERROR, REFUSED[:20]), data(ERROR, REFUSED[20:]), data(ERROR, last=True)]
        )


async def test_another_error() -> None:
    with pytest.raises(Conflict, match=r"^port 80 of pod web-0-0: out of file handles$"):
        await talk([data(ERROR, b"out of\nfile handles"), END])


@pytest.mark.parametrize("message", [control(3, struct.pack(">II", DATA, 5)), data(DATA, b"half")])
async def test_broken_off(message: bytes) -> None:
    """A stream that is reset, or a websocket that ends early, is no end of the data."""

    async def answer(request: web.Request) -> web.StreamResponse:
        line = web.WebSocketResponse(protocols=(PROTOCOL,))
        await line.prepare(request)
        await line.send_bytes(message)
        await line.close()
        return line

    async with ScriptedServer(answer) as server:
        transport = Transport(Endpoint(server.url), Timeouts())
        pipe = PortPipe(await transport.socket("/portforward", [], PROTOCOL), "web-0-0", 80)
        with pytest.raises(Unavailable, match="broke"):
            [piece async for piece in pipe.output()]
        await pipe.close()
        await transport.close()
