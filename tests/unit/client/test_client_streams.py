"""Logs and exec over a real connection, from the client's side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aliquot.client.connection import Connection
from aliquot.client.remote import RemoteServer, open_server
from aliquot.client.streams import log_query
from aliquot.errors import Conflict, Denied, PlatformError, Unauthenticated, Unavailable
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.http.exec_session import exit_status
from aliquot.streams import LogOptions, TerminalSize
from support.cli.pod_server import TOKEN, PodServer


@pytest.fixture
def server() -> Iterator[PodServer]:
    server = PodServer(MemoryDriver())
    with server.serving():
        yield server


def _client(server: PodServer, token: str = TOKEN) -> RemoteServer:
    return open_server(Connection(server.url, token), 0.0)


async def _log(server: PodServer, options: LogOptions | None = None) -> bytes:
    async with _client(server) as here, here.logs("runai-team-a", "x-0-0", options or LogOptions()) as log:
        return b"".join([chunk async for chunk in log.chunks])


async def test_a_log(server: PodServer) -> None:
    server.logs = [[b"one\n", b"two", b"\n"]]
    assert await _log(server, LogOptions(follow=True, tail_lines=5)) == b"one\ntwo\n"
    assert server.queries == [{"follow": "true", "tailLines": "5"}]


def test_log_query() -> None:
    options = LogOptions(True, 0, 90.5, True, True, 9, 7, pod_uid="u1")
    assert log_query(options, 100.0) == {
        "follow": "true", "timestamps": "true", "previous": "true",
        "tailLines": "0", "sinceSeconds": "10", "limitBytes": "9", "offset": "7", "uid": "u1",
    }  # fmt: skip
    assert log_query(LogOptions(since=200.0), 100.0) == {"sinceSeconds": "1"}
    resumed = LogOptions(since=90.5, line_times=True, resume=86400.0)
    assert log_query(resumed, 100.0) == {"marks": "true", "sinceTime": "1970-01-02T00:00:00Z"}


async def test_log_offset(server: PodServer) -> None:
    """The log's offset is that of the server, or None if the server does not report it."""
    server.logs = [[b"abc"], [b"c"]]
    async with _client(server) as here, here.logs("n", "p", LogOptions()) as log:
        assert log.offset is None
    server.offsets = True
    async with _client(server) as here, here.logs("n", "p", LogOptions(offset=2)) as log:
        assert log.offset == 2


async def test_broken_log(server: PodServer) -> None:
    """A broken connection is an error, not the end of the log."""
    server.logs = [[b"one\n", None]]
    with pytest.raises(Unavailable):
        await _log(server)


async def test_refused_log(server: PodServer) -> None:
    """The server's error message arrives."""
    server.refusal = Conflict("the pod has not started")
    with pytest.raises(Conflict, match="the pod has not started"):
        await _log(server)
    with pytest.raises(Unauthenticated):
        async with _client(server, "wrong") as here, here.logs("n", "p", LogOptions()):
            pass


async def test_no_server_listens() -> None:
    client = open_server(Connection("http://127.0.0.1:9", TOKEN), 0.0)
    with pytest.raises(Unavailable) as raised:
        async with client as here, here.logs("n", "p", LogOptions()):
            pass
    assert not raised.value.sent


async def _run(server: PodServer, *command: str, typed: bytes = b"") -> tuple[int, bytes, bytes]:
    out = {1: b"", 2: b""}
    size = TerminalSize(30, 100)
    async with _client(server) as here, here.exec("n", "p", command, tty=False, stdin=True, size=size) as session:
        if typed:
            await session.write(typed)
        await session.close_input()
        async for channel, data in session.output():
            out[channel] += data
        return await session.wait(), out[1], out[2]


async def test_a_command(server: PodServer) -> None:
    """Output, errors and the exit status are returned, and arguments are passed unchanged."""
    assert await _run(server, "sh", "-c", "echo out; echo err >&2; exit 7") == (7, b"out\n", b"err\n")
    assert await _run(server, "printf", "%s", "a b  c&d=é") == (0, "a b  c&d=é".encode(), b"")


async def test_input_and_its_end(server: PodServer) -> None:
    assert await _run(server, "cat", typed=b"hello") == (0, b"hello", b"")


async def test_much_output(server: PodServer) -> None:
    status, out, _ = await _run(server, "head", "-c", "5000000", "/dev/zero")
    assert (status, len(out)) == (0, 5_000_000)


async def test_refused_command(server: PodServer) -> None:
    """The server's error message arrives for exec too."""
    server.refusal = Denied("not in this pod")
    with pytest.raises(Denied, match="not in this pod"):
        await _run(server, "ls")


def test_exit_status() -> None:
    """An exec ends with an exit status, or with an error of the platform."""
    assert exit_status(b'{"status": "Success"}') == 0
    with pytest.raises(Conflict, match="it has ended"):
        exit_status(b'{"status": "Failure", "code": 409, "message": "it has ended"}')
    with pytest.raises(PlatformError, match="nonsense"):
        exit_status(b"nonsense")
