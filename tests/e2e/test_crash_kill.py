"""The server is killed repeatedly while clients write and watch."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.crash.clients import ClientGroup, WatchRecorder
from support.stores.process import ServerProcess


async def test_kills(tmp_path: Path) -> None:
    """A server killed 20 times loses no acknowledged write, and watches resume without a gap."""
    await _kill_repeatedly(tmp_path / "data", kills=20)


@pytest.mark.soak
async def test_many_kills(tmp_path: Path) -> None:
    """The same with 200 kills."""
    await _kill_repeatedly(tmp_path / "data", kills=200)


async def _kill_repeatedly(folder: Path, kills: int) -> None:
    server = await asyncio.to_thread(ServerProcess(folder).start)
    clients = await ClientGroup.connect(server.driver)
    driver = server.driver()
    try:
        async with asyncio.TaskGroup() as group:
            for watch in clients.watches:
                group.create_task(watch.run())
            writing = group.create_task(clients.run())
            await _kill_and_check(server, clients, kills)
            clients.stop()
            await writing
            await clients.write_end_marker(driver)
        late = WatchRecorder(driver, clients.version)
        await late.run()
        await clients.check_settled(driver)
        clients.check_watches(late)
    finally:
        await clients.close()
        await driver.close()
        await asyncio.to_thread(server.stop)
    _check_file(folder / "aliquot.db")
    print(
        f"\nkills: {kills}, writes acknowledged: {clients.acknowledged}, broken off: {clients.unanswered},"
        f" events: {len(late.seen)}, watches resumed: {sum(watch.resumed for watch in clients.watches)}"
    )


async def _kill_and_check(server: ServerProcess, clients: ClientGroup, kills: int) -> None:
    rng = random.Random(kills)
    driver = server.driver()
    try:
        for _ in range(kills):
            await clients.wait_for_writes(rng.randint(1, 60))
            await asyncio.sleep(rng.uniform(0, 0.02))  # not in step with a write
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await clients.check_now(driver)
    finally:
        await driver.close()


def _check_file(path: Path) -> None:
    """The database passes its integrity check, and its log has every version once, in order, without a gap."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = db.execute(
            "SELECT revision, json_extract(document, '$.metadata.resourceVersion') FROM log ORDER BY revision"
        ).fetchall()
    assert [revision for revision, _ in rows] == list(range(1, len(rows) + 1))
    assert all(version == str(revision) for revision, version in rows)
