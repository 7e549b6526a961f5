"""`port-forward`: the real program against a server with pods, and whoever connects to it."""

from __future__ import annotations

import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

from aliquot.cli.main import runai
from aliquot.cli.runai.port_forward import Forward, forward
from aliquot.cli.session import Session
from aliquot.client.connection import Asked
from aliquot.errors import Invalid
from support.cli.pod_server import TOKEN, PodServer
from support.cli.world import World

SPACE = "runai-team-a"
PROGRAM = [sys.executable, "-c", "from aliquot.cli.main import runai; runai()"]


def _runs(world: World) -> None:
    metadata = {"labels": {"aliquot.dev/workload": "x"}}
    world.put("pod", "x-0-0", SPACE, metadata=metadata, spec={"containers": [{"name": "main", "image": "python"}]})
    world.told("pod", "x-0-0", SPACE, phase="Running", containerStatuses=[{"name": "main", "state": {"running": {}}}])


def _env(world: World, server: PodServer) -> dict[str, str]:
    return {"ALIQUOT_URL": server.url, "ALIQUOT_TOKEN": TOKEN, "RUNAI_CLI_CONFIG_PATH": str(world.home)}


def _type(world: World, server: PodServer, *words: str) -> Result:
    here = Session(Asked(url=server.url), world.home / "config.json")
    return CliRunner().invoke(runai, ["port-forward", "x", *words], obj=here, env=_env(world, server))


@contextmanager
def _forwarding(world: World, server: PodServer, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*PROGRAM, "port-forward", "x", *words],
        env={**os.environ, **_env(world, server)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _port(process: subprocess.Popen[str], remote: int, host: str = "127.0.0.1") -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(rf"Forwarding from {re.escape(host)}:(\d+) -> {remote}\n", line)
    assert found, (line, process.poll())
    return int(found[1])


class _Upper(socketserver.StreamRequestHandler):
    """Says in capitals what it was told, once all was said."""

    def handle(self) -> None:
        self.wfile.write(self.rfile.read().upper())


@pytest.fixture
def job_port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Upper) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        yield listener.server_address[1]
        listener.shutdown()
        thread.join()


def _ask(port: int, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as line:
        line.sendall(text)
        line.shutdown(socket.SHUT_WR)
        got = b""
        while piece := line.recv(1 << 16):
            got += piece
        return got


@pytest.mark.parametrize(
    "text, wanted", [("8080:80", Forward(8080, 80)), ("80", Forward(80, 80)), (":80", Forward(0, 80))]
)
def test_which_ports(text: str, wanted: Forward) -> None:
    assert forward(text) == wanted


@pytest.mark.parametrize("text", ["", "x", "0", "80:0", "80:", "-1", "65536", "1:2:3", "٣"])
def test_wrong_ports(text: str) -> None:
    """One line that names the flag and shows what was given."""
    with pytest.raises(Invalid, match=r"^--port: must be a port from 1 to 65535, or LOCAL:REMOTE, not "):
        forward(text)


def test_connections(world: World, server: PodServer, job_port: int) -> None:
    """What one side says reaches the other, and the end of it; one that fails does not disturb the next."""
    _runs(world)
    with _forwarding(world, server, "--port", f":{job_port}", "--port", ":1", "--address", "127.0.0.1") as process:
        good, bad = _port(process, job_port), _port(process, 1)
        assert _ask(good, b"hello" * 50_000) == b"HELLO" * 50_000
        with pytest.raises(ConnectionResetError):
            _ask(bad, b"")
        assert process.stderr is not None
        assert process.stderr.readline() == "connection to port 1: nobody listens\n"
        assert _ask(good, b"again") == b"AGAIN"


def test_interrupt(world: World, server: PodServer, job_port: int) -> None:
    """Ctrl-C ends it with status 130 and no more than a line's end, also while somebody is connected."""
    _runs(world)
    with _forwarding(world, server, "--port", f":{job_port}", "--address", "127.0.0.1") as process:
        with socket.create_connection(("127.0.0.1", _port(process, job_port)), 60) as line:
            line.sendall(b"x")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, "\n")


def test_the_end_of_the_job(world: World, server: PodServer) -> None:
    _runs(world)
    with _forwarding(world, server, "--port", ":80", "--address", "127.0.0.1") as process:
        _port(process, 80)
        world.told("pod", "x-0-0", SPACE, phase="Succeeded")
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "Pod x-0-0 has ended (Succeeded).\n")


def test_waiting_for_the_start(world: World, server: PodServer) -> None:
    """A job that has not started yet is waited for, and one is told so."""
    with _forwarding(world, server, "--port", ":80", "--address", "127.0.0.1") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "Waiting for job x to start; it is Pending.\n"
        _runs(world)
        _port(process, 80)


def test_on_this_machine_alone(world: World, server: PodServer, job_port: int) -> None:
    """Without --address it listens on loopback, IPv4 and where there is one IPv6, on the same port."""
    _runs(world)
    with _forwarding(world, server, "--port", f":{job_port}") as process:
        port = _port(process, job_port)
        assert _ask(port, b"a") == b"A"
        if _has_loopback6():
            assert _port(process, job_port, "[::1]") == port


def _has_loopback6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_a_port_in_use(world: World, server: PodServer) -> None:
    _runs(world)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = _type(world, server, "--port", f"{port}:80")
    assert (said.exit_code, said.stdout, said.stderr) == (
        1,
        "",
        f"error: --port: cannot listen on 127.0.0.1:{port}: address already in use\n"
        "hint: choose another one here: --port OTHER:80\n",
    )


@pytest.mark.parametrize("words, status, said", [
    ([], 2, "which port?"),
    (["--port", "80:x"], 1, "error: --port: must be a port from 1 to 65535, or LOCAL:REMOTE, not '80:x'\n"),
    (["--port", ":80", "--address", "192.0.2.1"], 1, "error: --address: cannot listen on 192.0.2.1: "),
    (["--port", ":80", "--pod-running-timeout", "soon"], 1, "error: --pod-running-timeout: must be a duration"),
    (["--port", ":80", "--pod", "x-7-0"], 1, "error: job 'x' has no pod 'x-7-0'; it has: x-0-0\n"),
])  # fmt: skip
def test_wrong_words(world: World, server: PodServer, words: list[str], status: int, said: str) -> None:
    """One line, with the flag that is wrong."""
    _runs(world)
    result = _type(world, server, *words)
    assert (result.exit_code, result.stdout) == (status, "")
    assert said in result.stderr


def test_a_job_that_does_not_run(world: World, server: PodServer) -> None:
    world.told("workload", "x", SPACE, phase="Completed")
    result = _type(world, server, "--port", ":80")
    assert (result.exit_code, result.stderr) == (1, "error: nothing runs in job 'x': it is Succeeded\n")
