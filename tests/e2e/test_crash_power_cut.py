"""A power cut loses what was not synced, and no acknowledged write.

The shim copies a file at each of its syncs, and records the folder's names at each sync of the folder. A disk
guarantees only these copies after a power cut, so a server that starts on them shows whether the store syncs enough.
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
from support.crash.clients import ClientGroup
from support.crash.disk import Disk, build_shim
from support.stores.namespace import DEPARTMENT
from support.stores.process import ServerProcess

CUTS = 4
OBJECTS = 40
WRITER = Path(__file__).parents[1] / "support" / "crash" / "sqlite_writer.py"


async def test_power_cut(tmp_path: Path) -> None:
    """Repeated power cuts lose no acknowledged write, and watches miss no event."""
    shim = build_shim(tmp_path)
    disk, server = await _machine(tmp_path, shim, 0)
    clients = await ClientGroup.connect(server.driver)
    driver = server.driver()
    rng = random.Random(11)
    try:
        async with asyncio.TaskGroup() as group:
            for watch in clients.watches:
                group.create_task(watch.run())
            for number in range(1, CUTS + 1):
                writing = group.create_task(clients.run())
                await clients.wait_for_writes(rng.randint(20, 80))
                await asyncio.sleep(rng.uniform(0, 0.02))  # not in step with any write
                await asyncio.to_thread(server.kill)
                disk.after_power_cut(tmp_path / f"data{number}")
                # On the same port, so that clients continue and settle their interrupted writes.
                disk, server = await _machine(tmp_path, shim, number, server.port)
                clients.stop()
                await writing
                await clients.check_settled(driver)
            await clients.write_end_marker(driver)
        clients.check_watches()
    finally:
        await clients.close()
        await driver.close()
        await asyncio.to_thread(server.kill)
    print(f"\npower cuts: {CUTS}, writes acknowledged: {clients.acknowledged}, broken off: {clients.unanswered}")


async def test_store_without_sync_loses_writes(tmp_path: Path) -> None:
    """The test above can fail: a store that does not sync loses acknowledged writes."""
    acknowledged, stored = await _write_until_killed(tmp_path, "OFF")
    assert len(acknowledged) == OBJECTS
    assert stored < acknowledged


async def test_store_with_sync_keeps_writes(tmp_path: Path) -> None:
    """The same store with the production setting keeps everything."""
    acknowledged, stored = await _write_until_killed(tmp_path, "FULL")
    assert len(acknowledged) == OBJECTS
    assert stored == acknowledged


async def _write_until_killed(tmp_path: Path, synchronous: str) -> tuple[set[str], set[str]]:
    """The names that a store acknowledged before the power cut, and those stored afterwards."""
    folder = tmp_path / "data"
    folder.mkdir()
    disk = Disk(build_shim(tmp_path), folder, tmp_path / "disk", shadow=True)
    writer = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(WRITER), str(folder / "store.db"), synchronous, str(OBJECTS)],
        env={**os.environ, **disk.environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.returncode == -signal.SIGKILL
    driver = SqliteDriver(disk.after_power_cut(tmp_path / "after") / "store.db")
    try:
        stored = {item.name for item in (await driver.list(DEPARTMENT)).items}
    finally:
        await driver.close()
    return set(writer.stdout.split()), stored


async def _machine(tmp_path: Path, shim: Path, number: int, port: int = 0) -> tuple[Disk, ServerProcess]:
    folder = tmp_path / f"data{number}"
    disk = Disk(shim, folder, tmp_path / f"disk{number}", shadow=True)
    server = ServerProcess(folder, port=port, environment=disk.environment)
    return disk, await asyncio.to_thread(server.start)
