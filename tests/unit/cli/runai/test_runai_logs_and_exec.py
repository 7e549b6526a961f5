"""`logs`, `bash` and `exec`: the real program against a server with scripted pods."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aliquot.cli.context import CommandContext
from aliquot.cli.main import runai
from aliquot.client.connection import ServerOptions
from aliquot.errors import Conflict
from support.cli.environment import CliEnvironment
from support.cli.pod_server import TOKEN, PodServer

NAMESPACE = "runai-team-a"
PROGRAM = [sys.executable, "-c", "from aliquot.cli.main import runai; runai()"]


def _create_pod(cli: CliEnvironment, name: str = "x-0-0", phase: str = "Running", **state: Any) -> None:
    job = cli.get("workload", "x", NAMESPACE)["metadata"]
    owner = {"apiVersion": "aliquot.dev/v1", "kind": "Workload", "name": "x", "uid": job["uid"]}
    spec = {"nodeName": "dgx1-1", "containers": [{"name": "main", "image": "python"}]}
    cli.create("pod", name, NAMESPACE, metadata={"ownerReferences": [owner]}, spec=spec)
    statuses = [{"name": "main", "image": "python", "state": state or {"running": {}}}]
    cli.set_status("pod", name, NAMESPACE, phase=phase, containerStatuses=statuses)


def _env(cli: CliEnvironment, server: PodServer) -> dict[str, str]:
    return {"ALIQUOT_URL": server.url, "ALIQUOT_TOKEN": TOKEN, "RUNAI_CLI_CONFIG_PATH": str(cli.home)}


def _run(cli: CliEnvironment, server: PodServer, *arguments: str, input: bytes | None = None) -> Result:
    context = CommandContext(ServerOptions(url=server.url), cli.home / "config.json")
    return CliRunner().invoke(runai, list(arguments), obj=context, input=input, env=_env(cli, server))


def test_logs(cli: CliEnvironment, server: PodServer) -> None:
    """The log is printed byte for byte, and flags become query parameters."""
    _create_pod(cli)
    server.logs = [[b"Epoch 1 \xff\n", b"loss 0.5\n"]]
    result = _run(cli, server, "logs", "x", "--tail", "5", "--since", "2m", "--timestamps")
    assert (result.exit_code, result.stdout_bytes) == (0, b"Epoch 1 \xff\nloss 0.5\n")
    (query,) = server.queries
    assert query.pop("uid") == cli.get("pod", "x-0-0", NAMESPACE)["metadata"]["uid"]
    assert 120 <= int(query.pop("sinceSeconds")) <= 130
    assert query == {"tailLines": "5", "timestamps": "true"}


def test_all_lines(cli: CliEnvironment, server: PodServer) -> None:
    _create_pod(cli)
    server.logs = [[b"x"]]
    _run(cli, server, "logs", "x", "-t", "-1", "--pod", "x-0")
    assert [set(query) for query in server.queries] == [{"uid"}]


def test_follow_reconnects(cli: CliEnvironment, server: PodServer) -> None:
    """After a connection that breaks in the middle of a line no byte is lost or printed twice."""
    _create_pod(cli)
    server.offsets = True
    server.logs = [[b"one\n", b"tw", None], [b"o\nthree\n"], [b"fo"], [b"ur\n"]]
    server.ends_as = {"phase": "Succeeded"}
    result = _run(cli, server, "logs", "-f", "x")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\nthree\nfour\n")
    assert "connection lost" in result.stderr
    assert [query.get("follow") for query in server.queries] == ["true", "true", "true", None]
    assert [query.get("offset") for query in server.queries] == [None, "6", "14", "16"]


def test_follow_reconnects_without_offsets(cli: CliEnvironment, server: PodServer) -> None:
    """A log with times instead of offsets can be resumed as well."""
    _create_pod(cli)
    server.stamped = True
    texts = (b"one", b"two", b"three", b"four")
    line_1, line_2, line_3, line_4 = (b"2026-01-31T12:00:0%d.000000000Z %s\n" % each for each in enumerate(texts))
    server.logs = [[line_1, line_2[:-2], None], [line_1, line_2, line_3], [line_3, line_4]]
    server.ends_as = {"phase": "Succeeded"}
    result = _run(cli, server, "logs", "-f", "x", "--tail", "9")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\nthree\nfour\n")
    assert [query.get("tailLines") for query in server.queries] == ["9", None, None]
    times = [query.get("sinceTime") for query in server.queries]
    assert times == [None, "2026-01-31T12:00:00Z", "2026-01-31T12:00:01Z"]
    assert all(query["marks"] == "true" for query in server.queries)


def test_follow_a_restarted_container(cli: CliEnvironment, server: PodServer) -> None:
    """After a restart the rest of the previous container's log is read before the new one."""
    _create_pod(cli)
    server.stamped = True
    old, last, new = (b"2026-01-31T12:00:0%d.000000000Z %s\n" % (n, text) for n, text in enumerate((b"a", b"b", b"c")))
    ended = {"name": "main", "image": "python", "restartCount": 1, "state": {"terminated": {"exitCode": 0}}}
    server.ends_as, server.ends_at = {"phase": "Succeeded", "containerStatuses": [ended]}, 3
    server.logs = [[old, None], [old, last], [new]]
    result = _run(cli, server, "logs", "-f", "x")
    assert (result.exit_code, result.stdout) == (0, "a\nb\nc\n")
    assert [query.get("previous") for query in server.queries] == [None, "true", None]


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["--tail", "x"], "--tail: must be a whole number, not 'x'"),
        (["--since", "soon"], "--since: must be a duration such as 30s, 5m, 2h or 1d, not 'soon'"),
        (["--since", "1m", "--since-time", "2026-01-01T00:00:00Z"], "--since and --since-time: give one of them"),
        (["--since-time", "noon"], "--since-time: must be a time such as 2026-01-31T12:00:00Z, not 'noon'"),
    ],
)
def test_wrong_values(cli: CliEnvironment, server: PodServer, arguments: list[str], error: str) -> None:
    result = _run(cli, server, "logs", "x", *arguments)
    assert (result.exit_code, result.stderr) == (1, f"error: {error}\n")


def test_a_pending_job(cli: CliEnvironment, server: PodServer) -> None:
    """The error says why the job is pending."""
    refusal = {"step": "allocate", "code": "enough-gpu", "text": "no node has 1 GPU free"}
    cli.set_status("workload", "x", NAMESPACE, phase="Pending", refusals=[refusal])
    result = _run(cli, server, "logs", "x")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: job 'x' has no log: it is Pending: no node has 1 GPU free\n",
    )
    result = _run(cli, server, "bash", "x")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: nothing runs in job 'x': it is Pending: no node has 1 GPU free\n",
    )


def test_an_image_that_cannot_be_pulled(cli: CliEnvironment, server: PodServer) -> None:
    _create_pod(cli, phase="Pending", waiting={"reason": "ErrImagePull", "message": "no image foo"})
    result = _run(cli, server, "logs", "x")
    assert result.stderr == "error: job 'x' has no log: it is ErrImagePull: no image foo\n"


def test_an_error_of_the_server(cli: CliEnvironment, server: PodServer) -> None:
    _create_pod(cli)
    server.refusal = Conflict("its log has been removed")
    assert _run(cli, server, "logs", "x").stderr == "error: its log has been removed\n"


def test_waiting_for_the_start(cli: CliEnvironment, server: PodServer) -> None:
    """--wait-timeout limits the wait."""
    result = _run(cli, server, "logs", "x", "--wait-timeout", "0s")
    assert result.exit_code == 1


def test_bash_in_a_finished_job(cli: CliEnvironment, server: PodServer) -> None:
    _create_pod(cli, phase="Succeeded", terminated={"exitCode": 0})
    cli.set_status("workload", "x", NAMESPACE, phase="Completed")
    result = _run(cli, server, "bash", "x")
    assert (result.exit_code, result.stderr) == (1, "error: nothing runs in job 'x': it is Succeeded\n")
    assert "x-0-0" in _run(cli, server, "bash", "x", "--pod", "x-9-9").stderr


def _process(
    cli: CliEnvironment, server: PodServer, *arguments: str, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, **_env(cli, server)}
    return subprocess.run([*PROGRAM, *arguments], env=env, capture_output=True, timeout=60, check=False, **more)


def test_exec(cli: CliEnvironment, server: PodServer) -> None:
    """Arguments after the job belong to the command; its output and exit status are those of the program."""
    _create_pod(cli)
    done = _process(cli, server, "exec", "x", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert _process(cli, server, "exec", "-p", "team-a", "x", "--", "echo", "-n", "-p").stdout == b"-p"
    assert _run(cli, server, "exec", "x").exit_code == 2


def test_exec_with_input(cli: CliEnvironment, server: PodServer) -> None:
    """Standard input is passed to the command."""
    _create_pod(cli)
    assert _process(cli, server, "exec", "-i", "x", "wc", "-c", input=b"x" * 300_000).stdout.split() == [b"300000"]
    assert _process(cli, server, "bash", "x", input=b"echo $((6*7)); exit 5").returncode == 5


class ProgramInTerminal:
    """Runs the program in a pseudo-terminal."""

    def __init__(self, cli: CliEnvironment, server: PodServer, *arguments: str) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **_env(cli, server)}
        )
        self.output = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self.ours, text)

    def read_until(self, text: bytes, timeout: float = 30.0) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.output:
            ready, _, _ = select.select([self.ours], [], [], max(0, deadline - time.monotonic()))
            assert ready, self.output
            self.output += os.read(self.ours, 1 << 16)
        self.output = self.output.partition(text)[2]

    def interrupt(self) -> None:
        """Press Ctrl-C until the shell has ended; a shell that is starting a command may ignore it."""
        for _ in range(30):
            self.type(b"\x03")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
                return

    def __enter__(self) -> ProgramInTerminal:
        return self

    def __exit__(self, *failure: object) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self.theirs)
        os.close(self.ours)

    def end(self) -> int:
        code = self.process.wait(30)
        assert termios.tcgetattr(self.theirs) == self.before  # the mode of the terminal is restored
        return code


def test_a_shell_in_a_terminal(cli: CliEnvironment, server: PodServer) -> None:
    """With a terminal on both sides: type-ahead, size, Ctrl-C, and the exit status of the shell."""
    _create_pod(cli)
    with ProgramInTerminal(cli, server, "exec", "-it", "x", "bash", "--norc") as screen:
        screen.type(b"tty >/dev/null && stty size; echo A$((1+1))\n")
        screen.read_until(b"30 100")
        screen.read_until(b"A2")
        screen.resize(40, 120)
        screen.process.send_signal(signal.SIGWINCH)
        screen.type(b"until [ \"$(stty size)\" = '40 120' ]; do :; done; echo B$((1+1))\n")
        screen.read_until(b"B2")
        # The trap ends the shell. A shell that continued could discard input that was typed before.
        screen.type(b"trap 'exit 9' INT; echo C$((1+1)); sleep 1000\n")
        screen.read_until(b"C2")
        screen.interrupt()
        assert screen.end() == 9


def test_the_terminal_is_restored_on_sigterm(cli: CliEnvironment, server: PodServer) -> None:
    _create_pod(cli)
    with ProgramInTerminal(cli, server, "bash", "x") as screen:
        screen.type(b"echo A$((1+1))\n")
        screen.read_until(b"A2")
        screen.process.terminate()
        assert screen.end() == 128 + signal.SIGTERM
