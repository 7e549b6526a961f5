"""`aliquot up`: how it stops on signals, and `aliquot status` and `aliquot down`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.store.driver import AnyKind
from support.crash.clients import ClientGroup
from support.stores.namespace import DEPARTMENT, NAMESPACE
from support.stores.process import ServerProcess

TIMEOUT_S = 10  # on an idle machine it takes a fraction of a second


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "data").start()
    yield server
    server.stop()


def aliquot(server: ServerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aliquot.cli.main", *arguments, "--data-dir", str(server.folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_stops_with_open_watches(running: ServerProcess, number: signal.Signals) -> None:
    """SIGINT and SIGTERM stop the server quickly with status 0, also with many open watches."""
    driver = running.driver()
    watching = asyncio.Semaphore(0)

    async def follow(kind: AnyKind) -> None:
        async for _ in driver.watch(kind, version="0"):
            watching.release()

    followers = [asyncio.create_task(follow(kind)) for kind in (DEPARTMENT, NAMESPACE) * 10]
    async with asyncio.timeout(TIMEOUT_S):
        for _ in followers:  # each watch gets one object
            await watching.acquire()
    async with asyncio.timeout(TIMEOUT_S):
        assert await asyncio.to_thread(running.end, number) == 0
    for task in followers:
        task.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
    await driver.close()
    assert "Traceback" not in running.log


def test_last_log_line(running: ServerProcess) -> None:
    """The last log line says that it stopped, and server.json is removed."""
    assert running.stop() == 0
    assert running.log.splitlines()[-1].endswith("stopped")
    assert not (running.folder / "server.json").exists()


def test_nothing_left_open(running: ServerProcess) -> None:
    """After a clean stop the database is one file."""
    running.stop()
    assert [name for name in os.listdir(running.folder) if name.startswith("aliquot.db")] == ["aliquot.db"]


async def test_stops_during_writes(running: ServerProcess) -> None:
    """Writes during the stop are done and answered, or not done at all."""
    clients = await ClientGroup.connect(running.driver, clients=4, watches=0)
    async with asyncio.TaskGroup() as group:
        group.create_task(clients.run())
        await clients.wait_for_writes(20)
        assert await asyncio.to_thread(running.stop) == 0
        await asyncio.to_thread(running.start)
        clients.stop()
    driver = running.driver()
    await clients.check_settled(driver)
    clients.check_errors()
    await driver.close()
    await clients.close()


def test_status(running: ServerProcess) -> None:
    """`aliquot status` prints the address, the process and what the server holds."""
    done = aliquot(running, "status", "--json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert (report["url"], report["pid"], report["ready"]) == (running.url, running.pid, True)
    assert report["flavour"] == "embedded"
    assert report["counts"]["departments"] == 1


def test_status_without_a_server(running: ServerProcess) -> None:
    """Without a server `status` fails with a hint how to start one."""
    running.stop()
    done = aliquot(running, "status")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no server is running for ")
    assert "aliquot up" in done.stderr


def test_down(running: ServerProcess) -> None:
    """`aliquot down` stops the server and waits for its end."""
    done = aliquot(running, "down")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"server stopped (pid {running.pid}, {running.url})\n"
    assert running.end(signal.SIGTERM) == 0  # it has already stopped cleanly
    assert not (running.folder / "server.json").exists()


def test_down_twice(running: ServerProcess) -> None:
    """A second `down` does nothing and is no error."""
    aliquot(running, "down")
    done = aliquot(running, "down")
    assert done.returncode == 0
    assert done.stdout == f"no server is running for {running.folder}\n"


def test_down_does_not_stop_another_process(running: ServerProcess) -> None:
    """A process that reuses the process id of a killed server is not stopped."""
    running.kill()
    with subprocess.Popen(["sleep", "60"]) as other:
        facts = json.loads((running.folder / "server.json").read_text())
        (running.folder / "server.json").write_text(json.dumps({**facts, "pid": other.pid}))
        done = aliquot(running, "down")
        alive = other.poll() is None
        other.kill()
    assert alive
    assert done.returncode == 0
    assert "no server is running" in done.stdout
