"""The disk fails at random while clients write and watch."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from support.crash.clients import ClientGroup, WatchRecorder
from support.crash.disk import Disk, build_shim
from support.stores.process import ServerProcess

ROUNDS = 10


@pytest.mark.parametrize("calls", ["all", "syncs"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "both"])
async def test_failing_disk(tmp_path: Path, error: str, calls: str) -> None:
    """On a failing disk every acknowledged write survives, also a restart, and watches saw exactly these writes."""
    folder = tmp_path / "data"
    disk = Disk(build_shim(tmp_path), folder, tmp_path / "disk", seed=len(error + calls))
    server = await asyncio.to_thread(ServerProcess(folder, environment=disk.environment).start)
    clients = await ClientGroup.connect(server.driver)
    driver = server.driver()
    try:
        async with asyncio.TaskGroup() as group:
            for watch in clients.watches:
                group.create_task(watch.run())
            writing = group.create_task(clients.run())
            await _fail_at_random(disk, clients, error, calls)
            clients.stop()
            await writing
            await clients.check_settled(driver)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await clients.check_settled(driver)
            await clients.write_end_marker(driver)
        late = WatchRecorder(driver, clients.version)
        await late.run()
        clients.check_watches(late)
        clients.check_errors()
        assert clients.unanswered, "the disk never failed"
    finally:
        await clients.close()
        await driver.close()
        await asyncio.to_thread(server.stop)
    assert "Traceback" not in server.log
    print(
        f"\n{error} on {calls}: writes acknowledged: {clients.acknowledged}, failed: {clients.unanswered},"
        f" events: {len(late.seen)}"
    )


@pytest.mark.parametrize("calls", ["all", "syncs"])
def test_first_start_on_a_failing_disk(tmp_path: Path, calls: str) -> None:
    """A first start on a failing disk ends with one error line, and works after the disk is repaired."""
    folder = tmp_path / "data"
    disk = Disk(build_shim(tmp_path), folder, tmp_path / "disk")
    disk.fail(1000, "EIO", calls)
    server = ServerProcess(folder, environment=disk.environment)
    assert server.spawn().wait(60) == 1
    _check_one_error(server.log)
    disk.repair()
    assert server.start().stop() == 0


def test_start_on_a_failing_disk(tmp_path: Path) -> None:
    """A later start on a failing disk ends with one error line and changes nothing: the token stays valid."""
    folder = tmp_path / "data"
    disk = Disk(build_shim(tmp_path), folder, tmp_path / "disk")
    server = ServerProcess(folder, environment=disk.environment).start()
    token, before = server.token, server.stop()
    log_before = server.log
    disk.fail(1000, "EIO", "all")
    assert server.spawn().wait(60) == 1
    _check_one_error(server.log.removeprefix(log_before))
    disk.repair()
    server.start()
    assert (server.token, before, server.stop()) == (token, 0, 0)


def _check_one_error(log: str) -> None:
    lines = log.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], lines


async def _fail_at_random(disk: Disk, clients: ClientGroup, error: str, calls: str) -> None:
    """Fails some or all calls for a while, and works in between."""
    rng = random.Random(error + calls)
    for _ in range(ROUNDS):
        await clients.wait_for_writes(rng.randint(1, 30))
        disk.fail(rng.choice((50, 300, 1000)), error, calls)
        await clients.wait_for_writes(rng.randint(5, 40), acknowledged=False)
        disk.repair()
    await clients.wait_for_writes(20)
