"""Watches over the log table: retention, trimming and reopened stores."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from aliquot.errors import Expired
from aliquot.store.driver import AnyKind, Change
from aliquot.store.drivers.sqlite import RECENT, SqliteDriver
from support.stores.namespace import DEPARTMENT, NAMESPACE, document

SHORT = 50
MANY = 1_100  # more than the log is trimmed after


async def create(driver: SqliteDriver, count: int, *, kind: AnyKind = DEPARTMENT, first: int = 0) -> None:
    numbers = range(first, first + count)
    await asyncio.gather(*(driver.create(kind, document(kind, f"x{number}")) for number in numbers))


async def take(driver: SqliteDriver, count: int, version: str, kind: AnyKind = DEPARTMENT) -> list[Change]:
    async with asyncio.timeout(30), aclosing(driver.watch(kind, version=version)) as stream:  # type: ignore[type-var]
        return [await anext(stream) for _ in range(count)]


async def to_the_end(stream: AsyncIterator[Change]) -> None:
    async for _ in stream:
        pass


async def newest(driver: SqliteDriver) -> int:
    return int((await driver.list(DEPARTMENT)).version)


def log_of(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as db:
        return [revision for (revision,) in db.execute("SELECT revision FROM log ORDER BY revision")]


async def trimmed(path: Path) -> SqliteDriver:
    """A store that has trimmed its oldest changes."""
    driver = SqliteDriver(path, log_length=SHORT)
    await create(driver, MANY)
    return driver


async def test_log_is_bounded(tmp_path: Path) -> None:
    """The log keeps at least the promised number of changes, without a gap, and not all of them."""
    driver = await trimmed(tmp_path / "store.db")
    await driver.close()
    kept = log_of(tmp_path / "store.db")
    assert kept == list(range(kept[0], MANY + 1))
    assert SHORT <= len(kept) < MANY


async def test_older_than_the_log(tmp_path: Path) -> None:
    """A watch from before the log is refused, so that its client lists again."""
    path = tmp_path / "store.db"
    await (await trimmed(path)).close()
    driver = SqliteDriver(path)
    try:
        with pytest.raises(Expired, match="too old to watch from"):
            await take(driver, 1, "1")
    finally:
        await driver.close()


async def test_just_older_than_the_log(tmp_path: Path) -> None:
    """A version one change too old is refused; from the next version on every change is served."""
    path = tmp_path / "store.db"
    await (await trimmed(path)).close()
    first = log_of(path)[0]
    driver = SqliteDriver(path)
    try:
        with pytest.raises(Expired):
            await take(driver, 1, str(first - 2))
        changes = await take(driver, MANY - first + 1, str(first - 1))
        assert [int(change.version) for change in changes] == list(range(first, MANY + 1))
    finally:
        await driver.close()


async def test_trimmed_while_in_memory(tmp_path: Path) -> None:
    """A change that was trimmed from the table but is still in memory is served."""
    driver = await trimmed(tmp_path / "store.db")
    try:
        changes = await take(driver, RECENT, str(MANY - RECENT))
        assert [int(change.version) for change in changes] == list(range(MANY - RECENT + 1, MANY + 1))
    finally:
        await driver.close()


async def test_across_a_reopen(tmp_path: Path) -> None:
    """A watch resumes after the store was closed and opened again."""
    driver = SqliteDriver(tmp_path / "store.db")
    await create(driver, 5)
    await driver.close()
    driver = SqliteDriver(tmp_path / "store.db")
    try:
        await create(driver, 1, first=5)
        changes = await take(driver, 4, "2")
        assert [int(change.version) for change in changes] == [3, 4, 5, 6]
    finally:
        await driver.close()


async def test_selection_across_a_reopen(tmp_path: Path) -> None:
    """An object that stopped matching while the watch was away is seen as DELETED."""
    driver = SqliteDriver(tmp_path / "store.db")
    await driver.create(DEPARTMENT, document(DEPARTMENT, "a", labels={"tier": "gold"}))
    version = await newest(driver)
    await driver.patch(DEPARTMENT, "a", "", {"metadata": {"labels": {"tier": "lead"}}})
    await driver.close()
    driver = SqliteDriver(tmp_path / "store.db")
    try:
        async with aclosing(driver.watch(DEPARTMENT, version=str(version), labels="tier=gold")) as stream:  # type: ignore[type-var]
            assert (await anext(stream)).type == "DELETED"
    finally:
        await driver.close()


async def test_version_of_another_life(tmp_path: Path) -> None:
    """A version from the future, as after a restored backup, is refused."""
    driver = SqliteDriver(tmp_path / "store.db")
    try:
        with pytest.raises(Expired, match="was not issued by this store"):
            await take(driver, 1, "1000")
    finally:
        await driver.close()


async def test_idle_watcher_stays_alive(tmp_path: Path) -> None:
    """Bookmarks advance an idle watch while other kinds change and the log is trimmed."""
    driver = SqliteDriver(tmp_path / "store.db", log_length=SHORT, bookmark_seconds=0.01)
    try:
        stream = driver.watch(NAMESPACE, version="0")
        async with asyncio.timeout(30), aclosing(stream):  # type: ignore[type-var]
            version = (await anext(stream)).version
            await create(driver, MANY)
            while int(version) < MANY:
                change = await anext(stream)
                assert change.type == "BOOKMARK"
                version = change.version
            await driver.create(NAMESPACE, document(NAMESPACE, "last"))
            changes = await take(driver, 1, version, NAMESPACE)
        assert [change.type for change in changes] == ["ADDED"]
    finally:
        await driver.close()


async def test_idle_watcher_without_bookmarks(tmp_path: Path) -> None:
    """The initial version of the watch would be too old by then."""
    path = tmp_path / "store.db"
    await (await trimmed(path)).close()
    driver = SqliteDriver(path)
    try:
        with pytest.raises(Expired):
            await take(driver, 1, "0", NAMESPACE)
    finally:
        await driver.close()


async def test_slow_watcher(tmp_path: Path) -> None:
    """A watch too slow for the memory buffer reads from the table, and sees every change once, in order."""
    driver = SqliteDriver(tmp_path / "store.db")
    try:
        stream: AsyncIterator[Change] = driver.watch(DEPARTMENT, version="0")
        async with asyncio.timeout(60), aclosing(stream):  # type: ignore[type-var]
            await create(driver, 1)
            seen = [await anext(stream)]
            await create(driver, RECENT + 200, first=1)
            seen += [await anext(stream) for _ in range(RECENT + 200)]
        assert [int(change.version) for change in seen] == list(range(1, RECENT + 202))
    finally:
        await driver.close()


async def test_slower_than_the_log(tmp_path: Path) -> None:
    """A watch too slow even for the table ends with an error; it never skips changes."""
    driver = SqliteDriver(tmp_path / "store.db", log_length=SHORT)
    try:
        stream: AsyncIterator[Change] = driver.watch(DEPARTMENT, version="0")
        async with asyncio.timeout(60), aclosing(stream):  # type: ignore[type-var]
            await create(driver, 1)
            await anext(stream)
            await create(driver, 2 * MANY, first=1)
            with pytest.raises(Expired):
                await to_the_end(stream)
    finally:
        await driver.close()


async def test_close_ends_watchers(tmp_path: Path) -> None:
    """Closing the store ends its watches, without an error."""
    driver = SqliteDriver(tmp_path / "store.db")

    async def follow() -> list[Change]:
        return [change async for change in driver.watch(DEPARTMENT, version="0")]

    watchers = [asyncio.create_task(follow()) for _ in range(5)]
    await create(driver, 1)
    await driver.close()
    async with asyncio.timeout(10):
        streams = await asyncio.gather(*watchers)
    assert all(len(stream) <= 1 for stream in streams)


async def test_version_ahead_of_the_news(tmp_path: Path) -> None:
    """A watch can start at a version read from the file before its change was announced."""
    path = tmp_path / "store.db"
    driver = SqliteDriver(path)
    stream = driver.watch(DEPARTMENT, version="1")
    following = asyncio.ensure_future(anext(stream))
    # Begun by hand, and its caller goes away: from here on this loop hears nothing until the commit is in the file.
    write = driver.create(DEPARTMENT, document(DEPARTMENT, "a"))
    write.send(None)
    write.close()
    deadline = time.monotonic() + 30
    while not log_of(path):
        assert time.monotonic() < deadline
    try:
        async with asyncio.timeout(30), aclosing(stream):  # type: ignore[type-var]
            await driver.create(DEPARTMENT, document(DEPARTMENT, "b"))
            change = await following
        assert (change.type, change.version) == ("ADDED", "2")
    finally:
        await driver.close()
