"""Streams and websockets through the transport use the same tokens and report the same errors as requests."""

from __future__ import annotations

import pytest
from aiohttp import web

from aliquot.errors import Conflict, Unauthenticated, Unavailable
from aliquot.store.http.transport import Endpoint, Timeouts, Transport
from support.kubernetes.scripted_server import ScriptedServer

PROTOCOL = "v5.channel.k8s.io"
REFUSED = {"kind": "Status", "status": "Failure", "message": "not now", "reason": "Conflict", "code": 409}


async def echo(request: web.Request) -> web.StreamResponse:
    line = web.WebSocketResponse(protocols=(PROTOCOL,))
    await line.prepare(request)
    async for message in line:
        await line.send_bytes(message.data)
        await line.send_str("text")
        await line.close()
    return line


async def cut(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"one")
    assert request.transport is not None
    request.transport.abort()
    return answer


class Tokens:
    """Returns a new token after one was refused."""

    def __init__(self) -> None:
        self.number = 1

    async def current(self) -> str:
        return f"token-{self.number}"

    def refused(self, token: str) -> None:
        if token == f"token-{self.number}":
            self.number += 1


async def test_messages() -> None:
    """A websocket sends and receives bytes, treats text as bytes, and reports the end."""
    async with ScriptedServer(echo) as server:
        transport = Transport(Endpoint(server.url), Timeouts())
        line = await transport.socket("/x", [("a", "1"), ("a", "2")], PROTOCOL)
        await line.send(b"\x00hello")
        assert [await line.receive() for _ in range(3)] == [b"\x00hello", b"text", None]
        assert server.requests[0].query.getall("a") == ["1", "2"]
        await line.close()
        await transport.close()


async def test_a_refused_websocket() -> None:
    """The server's error message arrives."""
    async with ScriptedServer((409, REFUSED)) as server:
        transport = Transport(Endpoint(server.url), Timeouts())
        with pytest.raises(Conflict, match=r"^not now$"):
            await transport.socket("/x", [], PROTOCOL)
        await transport.close()


async def test_a_token_is_renewed() -> None:
    """A websocket that is refused for its token is opened again with a fresh one."""
    tokens = Tokens()
    async with ScriptedServer((401, {"message": "old"}), echo) as server:
        transport = Transport(Endpoint(server.url, tokens.current, tokens.refused), Timeouts())
        await (await transport.socket("/x", [], PROTOCOL)).close()
        assert [request.headers["Authorization"] for request in server.requests] == ["Bearer token-1", "Bearer token-2"]
        await transport.close()


async def test_a_token_that_stays_wrong() -> None:
    async with ScriptedServer((401, {"message": "who are you?"})) as server:
        transport = Transport(Endpoint(server.url), Timeouts())
        with pytest.raises(Unauthenticated, match="who are you"):
            await transport.socket("/x", [], PROTOCOL)
        await transport.close()


async def test_another_protocol() -> None:
    """A server that opens a websocket without our subprotocol is refused."""
    async with ScriptedServer(echo) as server:
        transport = Transport(Endpoint(server.url), Timeouts())
        with pytest.raises(Unavailable, match="does not speak v9"):
            await transport.socket("/x", [], "v9")
        await transport.close()


async def test_a_stream_that_is_cut() -> None:
    """A broken stream delivers what arrived and then raises an error."""
    async with ScriptedServer(cut) as server:
        transport = Transport(Endpoint(server.url), Timeouts())
        pieces = (await transport.stream("/x", {})).chunks()
        assert await anext(pieces) == b"one"
        with pytest.raises(Unavailable):
            await anext(pieces)
        await transport.close()
