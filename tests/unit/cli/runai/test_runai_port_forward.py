"""`port-forward`: the real program against a server with scripted pods."""

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

from aliquot.cli.context import CommandContext
from aliquot.cli.main import runai
from aliquot.cli.runai.port_forward import Forward, parse_forward
from aliquot.client.connection import ServerOptions
from aliquot.errors import Invalid
from support.cli.environment import CliEnvironment
from support.cli.pod_server import TOKEN, PodServer

NAMESPACE = "runai-team-a"
PROGRAM = [sys.executable, "-c", "from aliquot.cli.main import runai; runai()"]


def _start_pod(cli: CliEnvironment) -> None:
    metadata = {"labels": {"aliquot.dev/workload": "x"}}
    cli.create("pod", "x-0-0", NAMESPACE, metadata=metadata, spec={"containers": [{"name": "main", "image": "python"}]})
    cli.set_status(
        "pod", "x-0-0", NAMESPACE, phase="Running", containerStatuses=[{"name": "main", "state": {"running": {}}}]
    )


def _env(cli: CliEnvironment, server: PodServer) -> dict[str, str]:
    return {"ALIQUOT_URL": server.url, "ALIQUOT_TOKEN": TOKEN, "RUNAI_CLI_CONFIG_PATH": str(cli.home)}


def _run(cli: CliEnvironment, server: PodServer, *arguments: str) -> Result:
    context = CommandContext(ServerOptions(url=server.url), cli.home / "config.json")
    return CliRunner().invoke(runai, ["port-forward", "x", *arguments], obj=context, env=_env(cli, server))


@contextmanager
def _forwarding(cli: CliEnvironment, server: PodServer, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*PROGRAM, "port-forward", "x", *arguments],
        env={**os.environ, **_env(cli, server)},
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
    match = re.fullmatch(rf"Forwarding from {re.escape(host)}:(\d+) -> {remote}\n", line)
    assert match, (line, process.poll())
    return int(match[1])


class _UpperCaseHandler(socketserver.StreamRequestHandler):
    """Answers with the whole request in upper case."""

    def handle(self) -> None:
        self.wfile.write(self.rfile.read().upper())


@pytest.fixture
def job_port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _UpperCaseHandler) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        yield listener.server_address[1]
        listener.shutdown()
        thread.join()


def _send(port: int, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as line:
        line.sendall(text)
        line.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := line.recv(1 << 16):
            answer += chunk
        return answer


@pytest.mark.parametrize(
    "text, expected", [("8080:80", Forward(8080, 80)), ("80", Forward(80, 80)), (":80", Forward(0, 80))]
)
def test_parse_forward(text: str, expected: Forward) -> None:
    assert parse_forward(text) == expected


@pytest.mark.parametrize("text", ["", "x", "0", "80:0", "80:", "-1", "65536", "1:2:3", "٣"])
def test_wrong_ports(text: str) -> None:
    """The error names the flag and the value."""
    with pytest.raises(Invalid, match=r"^--port: must be a port from 1 to 65535, or LOCAL:REMOTE, not "):
        parse_forward(text)


def test_connections(cli: CliEnvironment, server: PodServer, job_port: int) -> None:
    """Data and end of input reach the other side; a connection that fails does not affect the others."""
    _start_pod(cli)
    with _forwarding(cli, server, "--port", f":{job_port}", "--port", ":1", "--address", "127.0.0.1") as process:
        good, bad = _port(process, job_port), _port(process, 1)
        assert _send(good, b"hello" * 50_000) == b"HELLO" * 50_000
        with pytest.raises(ConnectionResetError):
            _send(bad, b"")
        assert process.stderr is not None
        assert process.stderr.readline() == "connection to port 1: nobody listens\n"
        assert _send(good, b"again") == b"AGAIN"


def test_interrupt(cli: CliEnvironment, server: PodServer, job_port: int) -> None:
    """Ctrl-C ends the program with status 130 and only a newline, also while a client is connected."""
    _start_pod(cli)
    with _forwarding(cli, server, "--port", f":{job_port}", "--address", "127.0.0.1") as process:
        with socket.create_connection(("127.0.0.1", _port(process, job_port)), 60) as line:
            line.sendall(b"x")
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        assert (process.returncode, stderr) == (130, "\n")


def test_the_end_of_the_job(cli: CliEnvironment, server: PodServer) -> None:
    _start_pod(cli)
    with _forwarding(cli, server, "--port", ":80", "--address", "127.0.0.1") as process:
        _port(process, 80)
        cli.set_status("pod", "x-0-0", NAMESPACE, phase="Succeeded")
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "Pod x-0-0 has ended (Succeeded).\n")


def test_waiting_for_the_start(cli: CliEnvironment, server: PodServer) -> None:
    """The program waits for a job that has not started yet, and prints a note."""
    with _forwarding(cli, server, "--port", ":80", "--address", "127.0.0.1") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "Waiting for job x to start; it is Pending.\n"
        _start_pod(cli)
        _port(process, 80)


def test_default_address(cli: CliEnvironment, server: PodServer, job_port: int) -> None:
    """Without --address it listens on loopback, IPv4 and, if available, IPv6, on the same port."""
    _start_pod(cli)
    with _forwarding(cli, server, "--port", f":{job_port}") as process:
        port = _port(process, job_port)
        assert _send(port, b"a") == b"A"
        if _has_loopback6():
            assert _port(process, job_port, "[::1]") == port


def _has_loopback6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_a_port_in_use(cli: CliEnvironment, server: PodServer) -> None:
    _start_pod(cli)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = _run(cli, server, "--port", f"{port}:80")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "",
        f"error: --port: cannot listen on 127.0.0.1:{port}: address already in use\n"
        "hint: choose another one here: --port OTHER:80\n",
    )


@pytest.mark.parametrize("arguments, status, error", [
    ([], 2, "which port?"),
    (["--port", "80:x"], 1, "error: --port: must be a port from 1 to 65535, or LOCAL:REMOTE, not '80:x'\n"),
    (["--port", ":80", "--address", "192.0.2.1"], 1, "error: --address: cannot listen on 192.0.2.1: "),
    (["--port", ":80", "--pod-running-timeout", "soon"], 1, "error: --pod-running-timeout: must be a duration"),
    (["--port", ":80", "--pod", "x-7-0"], 1, "error: job 'x' has no pod 'x-7-0'; it has: x-0-0\n"),
])  # fmt: skip
def test_wrong_arguments(cli: CliEnvironment, server: PodServer, arguments: list[str], status: int, error: str) -> None:
    """The error is one line with the wrong flag."""
    _start_pod(cli)
    result = _run(cli, server, *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert error in result.stderr


def test_a_job_that_does_not_run(cli: CliEnvironment, server: PodServer) -> None:
    cli.set_status("workload", "x", NAMESPACE, phase="Completed")
    result = _run(cli, server, "--port", ":80")
    assert (result.exit_code, result.stderr) == (1, "error: nothing runs in job 'x': it is Succeeded\n")
