"""The disk fills up under the server."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from aliquot.errors import OutOfSpace
from aliquot.store.driver import StoreDriver
from support.crash.disk import small_disk
from support.stores.namespace import DEPARTMENT, document
from support.stores.process import ServerProcess

SIZE = 12 * 1024  # KiB: enough for a new store and some two hundred objects
BALLAST = 6 << 20  # bytes that are freed again: more than SQLite's write-ahead log, which must fit into the file then
LARGE = "x" * 20_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", SIZE) as folder:
        (folder / "ballast").write_bytes(bytes(BALLAST))
        yield folder


def free_space(disk: Path) -> None:
    (disk / "ballast").unlink()


def fill(disk: Path) -> None:
    """Use all remaining space."""
    with (disk / "rest").open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


@dataclass
class FullServer:
    """A server whose disk has just filled up, and the names that it had acknowledged by then."""

    server: ServerProcess
    driver: StoreDriver
    disk: Path
    refusal: OutOfSpace
    names: list[str] = field(default_factory=list)

    async def write(self, name: str) -> None:
        await self.driver.create(DEPARTMENT, document(DEPARTMENT, name, annotations={"aliquot.dev/load": LARGE}))
        self.names.append(name)

    async def write_on(self) -> None:
        for number in itertools.count():
            await self.write(f"d{number}")

    async def stored(self) -> list[str]:
        """The names of all complete objects."""
        items = (await self.driver.list(DEPARTMENT)).items
        return sorted(item.name for item in items if item.metadata.get("annotations") == {"aliquot.dev/load": LARGE})


@pytest_asyncio.fixture
async def full(disk: Path) -> AsyncIterator[FullServer]:
    server = await asyncio.to_thread(ServerProcess(disk).start)
    driver = server.driver()
    full_server = FullServer(server, driver, disk, OutOfSpace(""))
    try:
        with pytest.raises(OutOfSpace) as refused:
            await full_server.write_on()
        full_server.refusal = refused.value
        yield full_server
    finally:
        await driver.close()
        await asyncio.to_thread(server.kill)


async def test_write_is_refused_with_507(full: FullServer) -> None:
    """A write that does not fit is refused with 507, in one line that names the disk."""
    assert full.refusal.status == 507
    assert "is full; nothing was changed" in full.refusal.message
    assert str(full.disk) in full.refusal.message
    assert "\n" not in str(full.refusal)


async def test_keeps_what_was_acknowledged(full: FullServer) -> None:
    """On a full disk every acknowledged object can be read, and no other exists."""
    assert len(full.names) > 10
    assert await full.stored() == sorted(full.names)


async def test_reads_while_full(full: FullServer) -> None:
    """With no free byte, gets, lists, counts and health checks still work."""
    fill(full.disk)
    assert (await full.driver.get(DEPARTMENT, full.names[-1])).name == full.names[-1]
    assert await full.stored() == sorted(full.names)
    await full.driver.check()


async def test_every_write_is_refused_while_full(full: FullServer) -> None:
    """While the disk is full each write is refused, and none is done partially."""
    fill(full.disk)
    for number in range(20):
        with pytest.raises(OutOfSpace):
            await full.write(f"more{number}")
    assert await full.stored() == sorted(full.names)


async def test_continues_when_there_is_space(full: FullServer) -> None:
    """Once space is freed, writes work again, without a restart."""
    free_space(full.disk)
    for number in range(20):
        await full.write(f"more{number}")
    assert await full.stored() == sorted(full.names)


async def test_continues_after_no_byte_was_free(full: FullServer) -> None:
    """The same after the disk had no free byte."""
    fill(full.disk)
    with pytest.raises(OutOfSpace):
        await full.write("refused")
    free_space(full.disk)
    await full.write("more")
    assert await full.stored() == sorted(full.names)


async def test_killed_while_full(full: FullServer) -> None:
    """A server killed on a full disk and started when there is space has every acknowledged object."""
    fill(full.disk)
    await asyncio.to_thread(full.server.kill)
    free_space(full.disk)
    await asyncio.to_thread(full.server.start)
    assert await full.stored() == sorted(full.names)
    await full.write("more")


async def test_started_while_full(full: FullServer) -> None:
    """A start on a full disk ends with one error line, and loses nothing."""
    fill(full.disk)
    await asyncio.to_thread(full.server.kill)
    status, output = await asyncio.to_thread(start, full.server)
    assert status == 1
    assert "is full" in output
    free_space(full.disk)
    await asyncio.to_thread(full.server.start)
    assert await full.stored() == sorted(full.names)


def test_first_start_on_a_full_disk(disk: Path) -> None:
    """A first start on a full disk ends with one error line, and works once there is space."""
    fill(disk)
    server = ServerProcess(disk)
    status, output = start(server)
    assert status == 1
    assert "is full" in output
    free_space(disk)
    server.start()
    assert server.stop() == 0


def start(server: ServerProcess) -> tuple[int, str]:
    """A start that must fail: its exit status, and the one error line (a hint may follow)."""
    before = server.log if server.starts else ""
    try:
        status = server.spawn().wait(60)
    except subprocess.TimeoutExpired:
        server.kill()
        raise
    lines = server.log.removeprefix(before).splitlines()
    errors = [line for line in lines if line.startswith("error:")]
    assert len(errors) == 1, lines
    assert all(line.startswith(("error:", "hint:")) or "[info" in line for line in lines), lines
    return status, errors[0]
