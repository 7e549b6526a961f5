"""`aliquot up`: how it ends, and how others end it."""

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
from support.crash.clients import Crowd
from support.stores.namespace import DEPARTMENT, NAMESPACE
from support.stores.process import ServerProcess

SOON = 10  # seconds; it takes a fraction of one on a quiet machine


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "data").start()
    yield server
    server.stop()


def aliquot(server: ServerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aliquot.cli.main", *words, "--data-dir", str(server.folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
async def test_ends_under_watches(running: ServerProcess, how: signal.Signals) -> None:
    """Ctrl-C and a polite kill end it with status 0, soon, however many watch."""
    driver = running.driver()
    watching = asyncio.Semaphore(0)

    async def follow(kind: AnyKind) -> None:
        async for _ in driver.watch(kind, version="0"):
            watching.release()

    followers = [asyncio.create_task(follow(kind)) for kind in (DEPARTMENT, NAMESPACE) * 10]
    async with asyncio.timeout(SOON):
        for _ in followers:  # each is brought one object
            await watching.acquire()
    async with asyncio.timeout(SOON):
        assert await asyncio.to_thread(running.end, how) == 0
    for task in followers:
        task.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
    await driver.close()
    assert "Traceback" not in running.log


def test_says_that_it_stopped(running: ServerProcess) -> None:
    """Its last word is that it stopped, and server.json is gone."""
    assert running.stop() == 0
    assert running.log.splitlines()[-1].endswith("stopped")
    assert not (running.folder / "server.json").exists()


def test_nothing_left_open(running: ServerProcess) -> None:
    """After a clean end the database is one file."""
    running.stop()
    assert [name for name in os.listdir(running.folder) if name.startswith("aliquot.db")] == ["aliquot.db"]


async def test_ends_under_writes(running: ServerProcess) -> None:
    """Writes at the moment of the end are done and answered, or not done: none is lost or half."""
    crowd = await Crowd.on(running.driver, clients=4, followers=0)
    async with asyncio.TaskGroup() as group:
        group.create_task(crowd.write())
        await crowd.moved(20)
        assert await asyncio.to_thread(running.stop) == 0
        await asyncio.to_thread(running.start)
        crowd.enough()
    driver = running.driver()
    await crowd.check_settled(driver)
    crowd.check_errors()
    await driver.close()
    await crowd.close()


def test_status(running: ServerProcess) -> None:
    """`aliquot status` says where it is, who it is and what it holds."""
    done = aliquot(running, "status", "--json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert (report["url"], report["pid"], report["ready"]) == (running.url, running.pid, True)
    assert report["flavour"] == "embedded"
    assert report["counts"]["departments"] == 1


def test_status_of_none(running: ServerProcess) -> None:
    """With no server it says how to start one, and fails."""
    running.stop()
    done = aliquot(running, "status")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no server is running for ")
    assert "aliquot up" in done.stderr


def test_down(running: ServerProcess) -> None:
    """`aliquot down` ends it and returns when it has ended."""
    done = aliquot(running, "down")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"server stopped (pid {running.pid}, {running.url})\n"
    assert running.end(signal.SIGTERM) == 0  # it had ended by itself, cleanly
    assert not (running.folder / "server.json").exists()


def test_down_twice(running: ServerProcess) -> None:
    """A second `down` finds nothing to do, and that is no error."""
    aliquot(running, "down")
    done = aliquot(running, "down")
    assert done.returncode == 0
    assert done.stdout == f"no server is running for {running.folder}\n"


def test_down_spares_a_stranger(running: ServerProcess) -> None:
    """A process that merely has the number of a killed server is not touched."""
    running.kill()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        facts = json.loads((running.folder / "server.json").read_text())
        (running.folder / "server.json").write_text(json.dumps({**facts, "pid": stranger.pid}))
        done = aliquot(running, "down")
        alive = stranger.poll() is None
        stranger.kill()
    assert alive
    assert done.returncode == 0
    assert "no server is running" in done.stdout
