"""Logs, exec and port-forward for jobs on real nodes: client, REST API, API server, kubelet, container."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.kubernetes.nodes import NodeCluster
from support.seeds.platform import SECONDS, Platform
from support.seeds.tmux import PROMPT, Screen, needs_tmux
from support.waiting import wait_until

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("nodes")]
PROJECT = "streams"
SERVER_SCRIPT = "mkdir -p /www && echo hello >/www/index.html && httpd -p 8080 -h /www && exec nc -ll -p 9001 -e cat"


@pytest.fixture(scope="module")
def real_node_platform(real_nodes: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder, kubeconfig = tmp_path_factory.mktemp("streams"), real_nodes.cluster.kubeconfig
    running = Platform(Path(sys.executable).parent, folder / "platform", "--kubeconfig", str(kubeconfig)).up()
    for command in (f"aliquot project create {PROJECT} --gpu 2", f"runai config project {PROJECT}"):
        done = running.sh(command)
        assert done.status == 0, done
    yield running
    running.sh(f"runai delete -A -p {PROJECT}")
    running.server.stop()


@pytest.fixture(scope="module")
def box(real_node_platform: Platform) -> str:
    """A job with a web server on port 8080 and an echo server on 9001."""
    submit(real_node_platform, "box", SERVER_SCRIPT, "--interactive")
    return "box"


def submit(platform: Platform, name: str, script: str, *flags: str, phase: str = "Running") -> None:
    arguments = f"-i ubuntu {' '.join(flags)} --command sh --args -c --args '{script}'"
    platform.submit(name, PROJECT, arguments, phase, "Completed")


class BackgroundCommand:
    """A command of the platform that runs in the background."""

    def __init__(self, platform: Platform, folder: Path, command: str) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], stdout=out, stderr=err, env=platform.environment, cwd=platform.home
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def prints(self, pattern: str) -> re.Match[str]:
        wait_until(lambda: bool(re.search(pattern, self.out)) or self.process.poll() is not None, pattern)
        match = re.search(pattern, self.out)
        assert match, (self.out, self.err)
        return match

    def ends(self) -> int:
        return self.process.wait(SECONDS)


@contextmanager
def running(platform: Platform, folder: Path, command: str) -> Iterator[BackgroundCommand]:
    started = BackgroundCommand(platform, folder, command)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


# --- logs


def test_log_to_the_end(real_node_platform: Platform) -> None:
    """A followed log has every line, and ends with the job."""
    submit(real_node_platform, "count", "for i in $(seq 1 20); do echo line $i; sleep 0.1; done")
    done = real_node_platform.sh("runai logs -f count")
    assert (done.status, done.out, done.err) == (0, "".join(f"line {n}\n" for n in range(1, 21)), "")


def test_log_options(real_node_platform: Platform) -> None:
    """Tail, timestamps, byte limit and start time, for a job that has ended."""
    submit(real_node_platform, "ended", "seq 1 100")
    real_node_platform.wait_for_phase("ended", PROJECT, "Completed")
    assert real_node_platform.sh("runai logs ended --tail 2").out == "99\n100\n"
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT[\d:.]+Z 100\n", real_node_platform.sh("runai logs ended -t 1 --timestamps").out
    )
    assert real_node_platform.sh("runai logs ended --limit-bytes 4").out == "1\n2\n"
    assert real_node_platform.sh("runai logs ended --since-time 2099-01-01T00:00:00Z").out in ("", "100\n")
    assert "was not started before" in real_node_platform.sh("runai logs ended --previous").err


def test_log_survives_a_killed_server(real_node_platform: Platform, tmp_path: Path) -> None:
    """After a kill and restart of the server a followed log continues, with no line lost or repeated."""
    submit(
        real_node_platform, "long", "i=0; until [ -e /stop ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo done"
    )
    with running(real_node_platform, tmp_path, "runai logs -f long") as following:
        following.prints("line 20\n")
        real_node_platform.kill()
        seen = following.out.count("\n")
        wait_until(lambda: following.out.count("\n") > seen + 20, "lines after the kill")
        assert real_node_platform.sh("runai exec long touch /stop").status == 0
        assert following.ends() == 0, following.err
        lines = following.out.splitlines()
    assert lines == [*(f"line {n}" for n in range(1, len(lines))), "done"]
    assert "connection lost" in following.err


def test_log_survives_a_killed_api_server(
    real_node_platform: Platform, real_nodes: NodeCluster, tmp_path: Path
) -> None:
    """The same if the cluster's API server is down for a while."""
    submit(
        real_node_platform,
        "longer",
        "i=0; until [ -e /stop ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo done",
    )
    with running(real_node_platform, tmp_path, "runai logs -f longer") as following:
        following.prints("line 20\n")
        real_nodes.cluster.kill_apiserver()
        wait_until(lambda: "connection lost" in following.err, "a message about it")
        seen = following.out.count("\n")
        real_nodes.cluster.start_apiserver()
        wait_until(lambda: following.out.count("\n") > seen + 20, "lines after the kill")
        wait_until(lambda: real_node_platform.sh("runai exec longer touch /stop").status == 0, "a command in the job")
        assert following.ends() == 0, following.err
        lines = following.out.splitlines()
    assert lines == [*(f"line {n}" for n in range(1, len(lines))), "done"]


def test_log_goes_on_after_a_restart(real_node_platform: Platform, tmp_path: Path) -> None:
    """A followed log continues after a container was restarted in its pod."""
    submit(
        real_node_platform, "again", "echo begins; until [ -e /stop ]; do sleep 0.05; done; echo ends", "--interactive"
    )
    with running(real_node_platform, tmp_path, "runai logs -f again") as following:
        following.prints("begins\n")
        assert real_node_platform.sh("runai exec again touch /stop").status == 0
        following.prints("begins\nends\nbegins\n")


def test_no_log(real_node_platform: Platform) -> None:
    """For a job whose image cannot be pulled the error has the cluster's reason."""
    done = real_node_platform.sh("runai submit nothing -i acme/nothing:1")
    assert done.status == 0, done
    wait_until(lambda: "ImagePull" in real_node_platform.sh("runai logs nothing").err, "the reason")
    done = real_node_platform.sh("runai logs nothing")
    assert (done.status, done.out) == (1, "")
    assert "acme/nothing:1" in done.err


# --- commands


def test_exit_status(real_node_platform: Platform, box: str) -> None:
    """Output, errors and exit status are those of the command; a signal gives 128 plus its number."""
    done = real_node_platform.sh(f"runai exec {box} sh -c 'echo out; echo err >&2; exit 7'")
    assert (done.status, done.out, done.err) == (7, "out\n", "err\n")
    assert real_node_platform.sh(f"runai exec {box} sh -c 'kill -9 $$'").status == 128 + signal.SIGKILL
    assert real_node_platform.sh(f"runai exec {box} true").status == 0


def test_command_not_found(real_node_platform: Platform, box: str) -> None:
    done = real_node_platform.sh(f"runai exec {box} no-such-program")
    assert (done.status, done.err) == (1, "error: command not found: no-such-program\n")


def test_input(real_node_platform: Platform, box: str) -> None:
    """Piped input reaches the command completely, with its end; without -i there is no input."""
    assert real_node_platform.sh(f"head -c 3000000 /dev/zero | runai exec -i {box} wc -c").out.strip() == "3000000"
    assert real_node_platform.sh(f"runai exec {box} cat").out == ""


@pytest.fixture
def shell(real_node_platform: Platform, box: str) -> Iterator[Screen]:
    """A terminal that runs `runai bash`."""
    needs_tmux()
    screen = Screen(real_node_platform.environment, real_node_platform.home)
    try:
        screen.shows(PROMPT.rstrip())
        screen.type(f"runai bash {box}; echo status=$?")
        screen.matches("^.*# ?$")
        yield screen
    finally:
        screen.close()


def test_terminal(shell: Screen) -> None:
    """The terminal follows the window's size; Ctrl-C reaches the command; the exit status is the shell's."""
    shell.type("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.1; done; echo first $((1 + 1))")
    shell.shows("first 2")
    shell.resize(100, 30)
    shell.type("until [ \"$(stty size)\" = '30 100' ]; do sleep 0.1; done; echo second $((1 + 1))")
    shell.shows("second 2")
    shell.type("echo up $((1 + 1)); sleep 1000")
    shell.shows("up 2")
    shell.press("C-c")
    shell.type("echo ended $?")
    shell.shows("ended 130")
    shell.type("exit 5")
    shell.shows("status=5")


# --- ports


def _get(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=SECONDS) as response:
        return bytes(response.read())


def _forwarded(forward: BackgroundCommand, remote: int) -> int:
    return int(forward.prints(rf"Forwarding from 127\.0\.0\.1:(\d+) -> {remote}\n")[1])


def test_port_forward(real_node_platform: Platform, box: str, tmp_path: Path) -> None:
    """Many connections at once to several ports; a failed one does not end the others; Ctrl-C ends the command."""
    with running(
        real_node_platform, tmp_path, f"runai port-forward {box} --port :8080 --port :9001 --port :9"
    ) as forward:
        web, echo, unused = (_forwarded(forward, port) for port in (8080, 9001, 9))
        with socket.create_connection(("127.0.0.1", echo), SECONDS) as line:
            line.sendall(b"one")
            assert line.recv(10) == b"one"
            with (
                socket.create_connection(("127.0.0.1", unused), SECONDS) as refused,
                pytest.raises(ConnectionResetError),
            ):
                refused.recv(1)
            with ThreadPoolExecutor(8) as pool:
                assert list(pool.map(_get, [web] * 16)) == [b"hello\n"] * 16
            line.sendall(b"two")
            assert line.recv(10) == b"two"
        wait_until(lambda: "nothing in pod box-0-0 listens on port 9\n" in forward.err, "a message about the port")
        forward.process.send_signal(signal.SIGINT)
        assert forward.ends() == 130


def test_much_data(real_node_platform: Platform, box: str, tmp_path: Path) -> None:
    """Every byte arrives, in both directions at once."""
    sent = bytes(range(256)) * 20_000
    with running(real_node_platform, tmp_path, f"runai port-forward {box} --port :9001") as forward:
        port = _forwarded(forward, 9001)
        with socket.create_connection(("127.0.0.1", port), SECONDS) as line, ThreadPoolExecutor(1) as pool:
            sending, received = pool.submit(line.sendall, sent), b""
            while len(received) < len(sent) and (chunk := line.recv(1 << 16)):
                received += chunk
            sending.result()
    assert received == sent


def test_port_forward_survives_a_killed_server(real_node_platform: Platform, box: str, tmp_path: Path) -> None:
    """After a kill and restart of the server the port still reaches the job."""
    with running(real_node_platform, tmp_path, f"runai port-forward {box} --port :8080") as forward:
        web = _forwarded(forward, 8080)
        assert _get(web) == b"hello\n"
        real_node_platform.kill()
        assert _get(web) == b"hello\n"
        assert forward.process.poll() is None


def test_port_forward_ends_with_the_job(real_node_platform: Platform, tmp_path: Path) -> None:
    submit(real_node_platform, "short", "until [ -e /stop ]; do sleep 0.05; done")
    with running(real_node_platform, tmp_path, "runai port-forward short --port :8080") as forward:
        _forwarded(forward, 8080)
        assert real_node_platform.sh("runai exec short touch /stop").status == 0
        assert forward.ends() == 0
        assert "Pod short-0-0 has ended (Succeeded).\n" in forward.err
