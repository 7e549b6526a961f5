"""The server is killed again and again while clients write and watch."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.crash.clients import Crowd, Follower
from support.stores.process import ServerProcess


async def test_kills(tmp_path: Path) -> None:
    """A server killed 20 times loses no acknowledged write, and watches go on without a gap."""
    await _under_fire(tmp_path / "data", kills=20)


@pytest.mark.soak
async def test_many_kills(tmp_path: Path) -> None:
    """The same with 200 kills."""
    await _under_fire(tmp_path / "data", kills=200)


async def _under_fire(folder: Path, kills: int) -> None:
    server = await asyncio.to_thread(ServerProcess(folder).start)
    crowd = await Crowd.on(server.driver)
    driver = server.driver()
    try:
        async with asyncio.TaskGroup() as group:
            for follower in crowd.followers:
                group.create_task(follower.run())
            writing = group.create_task(crowd.write())
            await _shoot(server, crowd, kills)
            crowd.enough()
            await writing
            await crowd.end(driver)
        late = Follower(driver, crowd.version)
        await late.run()
        await crowd.check_settled(driver)
        crowd.check_followers(late)
    finally:
        await crowd.close()
        await driver.close()
        await asyncio.to_thread(server.stop)
    _check_file(folder / "aliquot.db")
    print(
        f"\nkills: {kills}, writes acknowledged: {crowd.acknowledged}, broken off: {crowd.unanswered},"
        f" events: {len(late.seen)}, watches resumed: {sum(follower.resumed for follower in crowd.followers)}"
    )


async def _shoot(server: ServerProcess, crowd: Crowd, kills: int) -> None:
    chance = random.Random(kills)
    driver = server.driver()
    try:
        for _ in range(kills):
            await crowd.moved(chance.randint(1, 60))
            await asyncio.sleep(chance.uniform(0, 0.02))  # not in step with any write
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await crowd.check_now(driver)
    finally:
        await driver.close()


def _check_file(path: Path) -> None:
    """The file is sound, and its log has every version once, in order, without a hole."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = db.execute(
            "SELECT revision, json_extract(document, '$.metadata.resourceVersion') FROM log ORDER BY revision"
        ).fetchall()
    assert [revision for revision, _ in rows] == list(range(1, len(rows) + 1))
    assert all(version == str(revision) for revision, version in rows)
