"""The disk fails at random while clients write and watch."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from support.crash.clients import Crowd, Follower
from support.crash.disk import Disk, built_shim
from support.stores.process import ServerProcess

ROUNDS = 10


@pytest.mark.parametrize("calls", ["all", "syncs"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "both"])
async def test_failing_disk(tmp_path: Path, error: str, calls: str) -> None:
    """What was acknowledged on a failing disk is there, before and after a restart, and watchers saw just that."""
    folder = tmp_path / "data"
    disk = Disk(built_shim(tmp_path), folder, tmp_path / "disk", seed=len(error + calls))
    server = await asyncio.to_thread(ServerProcess(folder, environment=disk.environment).start)
    crowd = await Crowd.on(server.driver)
    driver = server.driver()
    try:
        async with asyncio.TaskGroup() as group:
            for follower in crowd.followers:
                group.create_task(follower.run())
            writing = group.create_task(crowd.write())
            await _trouble(disk, crowd, error, calls)
            crowd.enough()
            await writing
            await crowd.check_settled(driver)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await crowd.check_settled(driver)
            await crowd.end(driver)
        late = Follower(driver, crowd.version)
        await late.run()
        crowd.check_followers(late)
        crowd.check_errors()
        assert crowd.unanswered, "the disk never failed"
    finally:
        await crowd.close()
        await driver.close()
        await asyncio.to_thread(server.stop)
    assert "Traceback" not in server.log
    print(
        f"\n{error} on {calls}: writes acknowledged: {crowd.acknowledged}, failed: {crowd.unanswered},"
        f" events: {len(late.seen)}"
    )


@pytest.mark.parametrize("calls", ["all", "syncs"])
def test_first_start_on_a_failing_disk(tmp_path: Path, calls: str) -> None:
    """A first start on a failing disk ends with one line, and works when the disk does."""
    folder = tmp_path / "data"
    disk = Disk(built_shim(tmp_path), folder, tmp_path / "disk")
    disk.fail(1000, "EIO", calls)
    server = ServerProcess(folder, environment=disk.environment)
    assert server.spawn().wait(60) == 1
    _check_one_error(server.log)
    disk.heal()
    assert server.start().stop() == 0


def test_start_on_a_failing_disk(tmp_path: Path) -> None:
    """A later start on a failing disk ends with one line and changes nothing: the token is still good."""
    folder = tmp_path / "data"
    disk = Disk(built_shim(tmp_path), folder, tmp_path / "disk")
    server = ServerProcess(folder, environment=disk.environment).start()
    token, before = server.token, server.stop()
    told = server.log
    disk.fail(1000, "EIO", "all")
    assert server.spawn().wait(60) == 1
    _check_one_error(server.log.removeprefix(told))
    disk.heal()
    server.start()
    assert (server.token, before, server.stop()) == (token, 0, 0)


def _check_one_error(told: str) -> None:
    lines = told.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], lines


async def _trouble(disk: Disk, crowd: Crowd, error: str, calls: str) -> None:
    """Now it fails often, now seldom, now always; in between it works."""
    chance = random.Random(error + calls)
    for _ in range(ROUNDS):
        await crowd.moved(chance.randint(1, 30))
        disk.fail(chance.choice((50, 300, 1000)), error, calls)
        await crowd.moved(chance.randint(5, 40), acknowledged=False)
        disk.heal()
    await crowd.moved(20)
