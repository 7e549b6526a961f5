"""The writer thread: writes share commits, but not failures."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from aliquot.errors import Exists, Unavailable
from aliquot.store import object_table
from aliquot.store.driver import Document
from aliquot.store.drivers.sqlite import SqliteDriver
from aliquot.store.drivers.sqlite_writer import BATCH, Writer
from aliquot.store.object_table import Entry, ObjectTable
from support.stores.namespace import DEPARTMENT, document

Work = Callable[[ObjectTable], Document]


def holding(busy: threading.Event, go: threading.Event) -> Callable[[ObjectTable], None]:
    """Work that reports its start and blocks the thread until it is released."""

    def hold(_: ObjectTable) -> None:
        busy.set()
        go.wait(30)

    return hold


class Bench:
    """A writer whose thread can be blocked, so that writes queue up."""

    def __init__(self, path: Path) -> None:
        self.commits: list[list[Entry]] = []
        self.writer = Writer(path, self.commits.append, log_length=1000, synchronous="FULL")
        self._go = threading.Event()

    async def together(self, *work: Work) -> list[object]:
        """The results of writes that were all queued while the thread was blocked."""
        self._go.clear()
        busy = threading.Event()
        first = asyncio.create_task(self.writer.do(holding(busy, self._go)))
        await asyncio.to_thread(busy.wait, 30)
        tasks = [asyncio.create_task(self.writer.do(each)) for each in work]
        await asyncio.sleep(0)  # each has put its work into the queue
        self.commits.clear()
        self._go.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def batches(self) -> list[int]:
        return [len(entries) for entries in self.commits if entries]


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "store.db")
    yield bench
    await bench.writer.close()


def creating(name: str) -> Work:
    return lambda on: object_table.create(on, DEPARTMENT, document(DEPARTMENT, name), 0.0)


def failing(error: Exception) -> Work:
    def work(on: ObjectTable) -> Document:
        raise error

    return work


def names(answers: Sequence[object]) -> list[str]:
    return [answer.name if isinstance(answer, Document) else type(answer).__name__ for answer in answers]


async def test_commits_are_shared(bench: Bench) -> None:
    """200 queued writes are one commit."""
    answers = await bench.together(*(creating(f"d{number}") for number in range(200)))
    assert names(answers) == [f"d{number}" for number in range(200)]
    assert bench.batches == [200]


async def test_commits_are_bounded(bench: Bench) -> None:
    """A commit has a limited number of writes, so that the first does not wait for the last."""
    await bench.together(*(creating(f"d{number}") for number in range(BATCH + 10)))
    assert bench.batches == [BATCH, 10]


async def test_eight_clients(tmp_path: Path) -> None:
    """Eight clients that write sequentially share commits too."""
    bench = Bench(tmp_path / "store.db")

    async def client(number: int) -> None:
        for step in range(25):
            await bench.writer.do(creating(f"c{number}-{step}"))

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(client(number))
    await bench.writer.close()
    assert sum(bench.batches) == 200
    assert len(bench.batches) < 150


async def test_refusal_among_neighbours(bench: Bench) -> None:
    """A refused write does not affect the others of its commit."""
    answers = await bench.together(creating("a"), creating("a"), creating("b"))
    assert names(answers) == ["a", "Exists", "b"]
    assert isinstance(answers[1], Exists)
    assert bench.batches == [2]


async def test_bug_among_neighbours(bench: Bench) -> None:
    """A write that fails unexpectedly does not affect the others either."""
    answers = await bench.together(creating("a"), failing(KeyError("bug")), creating("b"))
    assert names(answers) == ["a", "KeyError", "b"]
    assert sum(bench.batches) == 2


async def test_bug_leaves_no_gap(bench: Bench) -> None:
    """Versions continue without a gap after it."""
    await bench.together(creating("a"), failing(KeyError("bug")), creating("b"))
    answers = await bench.together(creating("c"))
    assert [entry.revision for entries in bench.commits for entry in entries] == [3]
    assert names(answers) == ["c"]


async def test_disk_error_is_everybodys(bench: Bench) -> None:
    """When the disk fails, every write of the commit fails, and none is stored."""
    answers = await bench.together(creating("a"), failing(sqlite3.OperationalError("disk I/O error")))
    assert names(answers) == ["Unavailable", "Unavailable"]
    assert isinstance(answers[0], Unavailable)
    assert bench.batches == []


async def test_works_after_a_disk_error(bench: Bench) -> None:
    """The next write succeeds."""
    await bench.together(creating("a"), failing(sqlite3.OperationalError("disk I/O error")))
    assert names(await bench.together(creating("a"))) == ["a"]


async def test_cancelled_caller(bench: Bench) -> None:
    """A cancelled caller does not affect the results of others, and its write still happens."""
    go, busy = threading.Event(), threading.Event()
    first = asyncio.create_task(bench.writer.do(holding(busy, go)))
    await asyncio.to_thread(busy.wait, 30)
    tasks = [asyncio.create_task(bench.writer.do(creating(name))) for name in ("a", "b", "c")]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    go.set()
    await first
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert names(answers) == ["a", "CancelledError", "c"]
    assert names(await bench.together(creating("b"))) == ["Exists"]


async def test_cancelled_caller_of_a_refused_write(bench: Bench) -> None:
    """The refusal of a cancelled caller's write is no unhandled exception."""
    go, busy = threading.Event(), threading.Event()
    first = asyncio.create_task(bench.writer.do(holding(busy, go)))
    await asyncio.to_thread(busy.wait, 30)
    task = asyncio.create_task(bench.writer.do(failing(Exists("taken"))))
    await asyncio.sleep(0)
    task.cancel()
    go.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_close_finishes(tmp_path: Path) -> None:
    """Writes queued before the store closes are done and answered."""
    driver = SqliteDriver(tmp_path / "store.db")
    tasks = [asyncio.create_task(driver.create(DEPARTMENT, document(DEPARTMENT, f"d{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    await driver.close()
    assert names(await asyncio.gather(*tasks)) == [f"d{n}" for n in range(50)]


async def test_closed(tmp_path: Path) -> None:
    """A write to a closed store is refused with the reason."""
    driver = SqliteDriver(tmp_path / "store.db")
    await driver.close()
    with pytest.raises(Unavailable, match="is closed"):
        await driver.create(DEPARTMENT, document(DEPARTMENT, "a"))
    with pytest.raises(Unavailable, match="is closed"):
        await driver.get(DEPARTMENT, "a")


async def test_close_twice(tmp_path: Path) -> None:
    """A store can be closed twice."""
    driver = SqliteDriver(tmp_path / "store.db")
    await driver.close()
    await driver.close()
