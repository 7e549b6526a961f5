"""The power goes: what was not synced is gone, what was acknowledged is not.

The shim copies a file at each of its syncs, and takes the folder's names at each sync of the folder. These copies are
all that a disk must hold after a power cut, so a server that starts on them shows whether we synced enough.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from aliquot.store.drivers.sqlite import SqliteDriver
from support.crash.clients import Crowd
from support.crash.disk import Disk, built_shim
from support.stores.namespace import DEPARTMENT
from support.stores.process import ServerProcess

CUTS = 4
OBJECTS = 40
SCRIBE = Path(__file__).parents[1] / "support" / "crash" / "scribe.py"


async def test_power_cut(tmp_path: Path) -> None:
    """A machine that loses its power again and again loses no acknowledged write, and its watchers miss nothing."""
    shim = built_shim(tmp_path)
    disk, server = await _machine(tmp_path, shim, 0)
    crowd = await Crowd.on(server.driver)
    driver = server.driver()
    chance = random.Random(11)
    try:
        async with asyncio.TaskGroup() as group:
            for follower in crowd.followers:
                group.create_task(follower.run())
            for number in range(1, CUTS + 1):
                writing = group.create_task(crowd.write())
                await crowd.moved(chance.randint(20, 80))
                await asyncio.sleep(chance.uniform(0, 0.02))  # not in step with any write
                await asyncio.to_thread(server.kill)
                disk.after_power_cut(tmp_path / f"data{number}")
                # On the same port: clients go on as if it were the same machine, and settle what was broken off.
                disk, server = await _machine(tmp_path, shim, number, server.port)
                crowd.enough()
                await writing
                await crowd.check_settled(driver)
            await crowd.end(driver)
        crowd.check_followers()
    finally:
        await crowd.close()
        await driver.close()
        await asyncio.to_thread(server.kill)
    print(f"\npower cuts: {CUTS}, writes acknowledged: {crowd.acknowledged}, broken off: {crowd.unanswered}")


async def test_without_sync_it_would_lose(tmp_path: Path) -> None:
    """The test above can fail: a store that does not sync loses what it acknowledged."""
    told, found = await _alone(tmp_path, "OFF")
    assert len(told) == OBJECTS
    assert found < told


async def test_with_sync_it_does_not(tmp_path: Path) -> None:
    """The same store, as we use it, keeps everything."""
    told, found = await _alone(tmp_path, "FULL")
    assert len(told) == OBJECTS
    assert found == told


async def _alone(tmp_path: Path, synchronous: str) -> tuple[set[str], set[str]]:
    """What a store acknowledged until the power went, and what was there afterwards."""
    folder = tmp_path / "data"
    folder.mkdir()
    disk = Disk(built_shim(tmp_path), folder, tmp_path / "disk", shadow=True)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(SCRIBE), str(folder / "store.db"), synchronous, str(OBJECTS)],
        env={**os.environ, **disk.environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL
    driver = SqliteDriver(disk.after_power_cut(tmp_path / "after") / "store.db")
    try:
        found = {item.name for item in (await driver.list(DEPARTMENT)).items}
    finally:
        await driver.close()
    return set(done.stdout.split()), found


async def _machine(tmp_path: Path, shim: Path, number: int, port: int = 0) -> tuple[Disk, ServerProcess]:
    folder = tmp_path / f"data{number}"
    disk = Disk(shim, folder, tmp_path / f"disk{number}", shadow=True)
    server = ServerProcess(folder, port=port, environment=disk.environment)
    return disk, await asyncio.to_thread(server.start)
