"""`aliquot up`: what it refuses to start on, and how it says so."""

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


def aliquot(*words: str) -> subprocess.CompletedProcess[str]:
    """The real command, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "aliquot.cli.main", *words], capture_output=True, text=True, timeout=60, check=False
    )


def up(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return aliquot("up", "--data-dir", str(folder), *words)


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one error line; a hint may follow, and nothing else is said."""
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
    """A file for --data-dir is refused, and stays as it is."""
    path = tmp_path / "notes"
    path.write_text("mine")
    done = up(path)
    assert done.returncode == 1
    assert f"--data-dir: {path} is a file" in error_of(done)
    assert path.read_text() == "mine"


def test_parent_is_a_file(tmp_path: Path) -> None:
    """So is a folder inside a file."""
    (tmp_path / "notes").write_text("mine")
    done = up(tmp_path / "notes" / "data")
    assert done.returncode == 1
    assert "is a file" in error_of(done)


def test_port_in_use(tmp_path: Path) -> None:
    """A port in use is named, and nothing is created."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = up(tmp_path / "data", "--port", str(port))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in error_of(done)
    assert not (tmp_path / "data" / "aliquot.db").exists()
    assert not (tmp_path / "data" / "admin.token").exists()


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_no_port(tmp_path: Path, port: str) -> None:
    """What is no port is rejected as a wrong argument."""
    done = up(tmp_path / "data", "--port", port)
    assert done.returncode == 2
    assert "--port" in error_of(done)
    assert not (tmp_path / "data").exists()


def test_damaged_database(tmp_path: Path) -> None:
    """A database that is none is refused in one line, and stays as it is."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "aliquot.db").write_text("not a database " * 50)
    done = up(folder, "--port", "0")
    assert done.returncode == 1
    assert "is not a database of ours" in error_of(done)
    assert (folder / "aliquot.db").read_text() == "not a database " * 50


def test_second_server(running: ServerProcess) -> None:
    """A second server on the same data names the first: its process and its address."""
    done = up(running.folder, "--port", "0")
    assert done.returncode == 1
    told = error_of(done)
    assert f"{running.folder} is already served by process {running.pid} at {running.url}" in told
    assert running.ready()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_need_consent(tmp_path: Path, host: str) -> None:
    """An address that other machines reach is refused unless the user says so."""
    done = up(tmp_path / "data", "--host", host, "--port", "0")
    assert done.returncode == 1
    assert "can be reached from other machines, and there is no TLS" in error_of(done)
    assert not (tmp_path / "data").exists()


def test_other_machines_with_consent(tmp_path: Path) -> None:
    """With consent it listens there."""
    server = ServerProcess(tmp_path / "data", "--host", "0.0.0.0", "--listen-anywhere").start()
    try:
        assert _listening(server.port) == {"00000000"}
    finally:
        server.stop()


def test_loopback_only(running: ServerProcess) -> None:
    """By default it listens on loopback and nowhere else."""
    assert _listening(running.port) == {"0100007F"}


def test_any_port(running: ServerProcess) -> None:
    """Port 0 takes a free one, and server.json says which."""
    assert running.port > 0
    assert running.ready()


def test_stale_word_of_a_killed_server(running: ServerProcess) -> None:
    """What a killed server left behind disturbs nobody: no server is found, and the next one starts."""
    running.kill()
    assert (running.folder / "server.json").exists()
    done = aliquot("status", "--data-dir", str(running.folder))
    assert done.returncode == 1
    assert "no server is running" in error_of(done)
    running.start()
    assert aliquot("status", "--data-dir", str(running.folder)).returncode == 0


def test_killed_while_starting(tmp_path: Path) -> None:
    """However often a start is killed half way, the next one works."""
    server = ServerProcess(tmp_path / "data")
    chance = random.Random(3)
    for _ in range(10):
        process = server.spawn()
        time.sleep(chance.uniform(0.2, 0.9))  # at any moment of a start
        process.kill()
        process.wait()
    server.start()
    assert server.stop() == 0


def _listening(port: int) -> set[str]:
    """Addresses, as the kernel writes them, that somebody listens on at this port."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}
