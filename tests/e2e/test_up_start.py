"""`aliquot up`: starts, and errors that keep it from starting."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.stores.process import ServerProcess


def aliquot(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the real command and wait for its end."""
    return subprocess.run(
        [sys.executable, "-m", "aliquot.cli.main", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def up(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return aliquot("up", "--data-dir", str(folder), *arguments)


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The error line. Only hints may follow it."""
    lines = done.stderr.splitlines()
    assert lines, done
    assert lines[0].startswith("error: "), lines
    assert [line for line in lines[1:] if not line.startswith("hint: ")] == []
    assert done.stdout == ""
    return lines[0]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "data").start()
    yield server
    server.stop()


def test_data_dir_is_a_file(tmp_path: Path) -> None:
    """A file for --data-dir is refused and not changed."""
    path = tmp_path / "notes"
    path.write_text("text")
    done = up(path)
    assert done.returncode == 1
    assert f"--data-dir: {path} is a file" in error_of(done)
    assert path.read_text() == "text"


def test_parent_is_a_file(tmp_path: Path) -> None:
    """A --data-dir below a file is refused."""
    (tmp_path / "notes").write_text("text")
    done = up(tmp_path / "notes" / "data")
    assert done.returncode == 1
    assert "is a file" in error_of(done)


def test_port_in_use(tmp_path: Path) -> None:
    """The error names a port that is in use, and nothing is created."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = up(tmp_path / "data", "--port", str(port))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in error_of(done)
    assert not (tmp_path / "data" / "aliquot.db").exists()
    assert not (tmp_path / "data" / "admin.token").exists()


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_invalid_port(tmp_path: Path, port: str) -> None:
    """An invalid port is wrong usage."""
    done = up(tmp_path / "data", "--port", port)
    assert done.returncode == 2
    assert "--port" in error_of(done)
    assert not (tmp_path / "data").exists()


def test_damaged_database(tmp_path: Path) -> None:
    """A damaged database is refused in one line and not changed."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "aliquot.db").write_text("not a database " * 50)
    done = up(folder, "--port", "0")
    assert done.returncode == 1
    assert "is not a database of ours" in error_of(done)
    assert (folder / "aliquot.db").read_text() == "not a database " * 50


def test_second_server(running: ServerProcess) -> None:
    """A second server on the same data folder is refused; the error names the process and the address of the first."""
    done = up(running.folder, "--port", "0")
    assert done.returncode == 1
    error = error_of(done)
    assert f"{running.folder} is already served by process {running.pid} at {running.url}" in error
    assert running.ready()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_need_consent(tmp_path: Path, host: str) -> None:
    """An address that other machines can reach is refused without --listen-anywhere."""
    done = up(tmp_path / "data", "--host", host, "--port", "0")
    assert done.returncode == 1
    assert "can be reached from other machines, and there is no TLS" in error_of(done)
    assert not (tmp_path / "data").exists()


def test_other_machines_with_consent(tmp_path: Path) -> None:
    """With --listen-anywhere the server listens on all addresses."""
    server = ServerProcess(tmp_path / "data", "--host", "0.0.0.0", "--listen-anywhere").start()
    try:
        assert _listening(server.port) == {"00000000"}
    finally:
        server.stop()


def test_loopback_only(running: ServerProcess) -> None:
    """By default the server listens only on loopback."""
    assert _listening(running.port) == {"0100007F"}


def test_any_port(running: ServerProcess) -> None:
    """With port 0 the server takes a free port, and writes it to server.json."""
    assert running.port > 0
    assert running.ready()


def test_stale_server_file(running: ServerProcess) -> None:
    """The server.json of a killed server is ignored, and the next server starts."""
    running.kill()
    assert (running.folder / "server.json").exists()
    done = aliquot("status", "--data-dir", str(running.folder))
    assert done.returncode == 1
    assert "no server is running" in error_of(done)
    running.start()
    assert aliquot("status", "--data-dir", str(running.folder)).returncode == 0


def test_killed_while_starting(tmp_path: Path) -> None:
    """After starts that were killed half way, the next start works."""
    server = ServerProcess(tmp_path / "data")
    chance = random.Random(3)
    for _ in range(10):
        process = server.spawn()
        time.sleep(chance.uniform(0.2, 0.9))  # anywhere within the start
        process.kill()
        process.wait()
    server.start()
    assert server.stop() == 0


def _listening(port: int) -> set[str]:
    """The addresses with a listener on this port, in the kernel's notation."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}
