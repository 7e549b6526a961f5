"""Following a kind: every change is reported once, also after a broken connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aliquot.api import KINDS
from aliquot.cli import watch
from aliquot.errors import Expired, Unavailable
from aliquot.store.driver import AnyKind, Change, Document, StoreDriver
from aliquot.store.drivers.memory import MemoryDriver
from support.cli.environment import CliEnvironment

PROJECT = KINDS.named("project")


def _project_document(name: str) -> Document:
    return Document({"apiVersion": PROJECT.api_version, "kind": "Project", "metadata": {"name": name}})


class DriverWithBrokenWatch(MemoryDriver):
    """A store whose first watch breaks; changes happen before the next one."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error: Exception | None = error

    async def _broken(self) -> AsyncIterator[Change]:
        error, self._error = self._error, None
        await self.create(PROJECT, _project_document("in-the-gap"))
        await self.delete(PROJECT, "old")
        assert error is not None
        raise error
        yield  # type: ignore[unreachable]  # makes this a generator

    def watch(self, kind: AnyKind, namespace: str | None = None, **more: Any) -> AsyncIterator[Change]:
        return self._broken() if self._error else super().watch(kind, namespace, **more)


async def _follow(driver: StoreDriver, act: Any, expected: int) -> list[tuple[str, bool]]:
    """The first reported changes while `act` runs."""
    seen: list[tuple[str, bool]] = []
    enough = asyncio.Event()

    def record(document: Document, deleted: bool) -> None:
        seen.append((document.name, deleted))
        if len(seen) >= expected:
            enough.set()

    follower = asyncio.create_task(
        watch.follow(
            driver, PROJECT, None, labels="", fields="",
            on_list=lambda documents: seen.extend((each.name, False) for each in documents),
            on_change=record, note=lambda text: None,
        )
    )  # fmt: skip
    await asyncio.sleep(0)
    await act()
    async with asyncio.timeout(10):
        await enough.wait()
    follower.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follower
    return seen


async def test_every_change_is_shown() -> None:
    """Existing objects come first, then changes."""
    driver = MemoryDriver()
    await driver.create(PROJECT, _project_document("a"))

    async def act() -> None:
        await asyncio.sleep(0.01)
        await driver.create(PROJECT, _project_document("b"))
        await driver.delete(PROJECT, "a")

    assert await _follow(driver, act, 3) == [("a", False), ("b", False), ("a", True)]


@pytest.mark.parametrize("error", [Expired("too old"), Unavailable("gone away")])
async def test_changes_during_a_broken_watch(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a broken watch the missed changes are reported, deletions too, and nothing twice."""
    driver = DriverWithBrokenWatch(error)
    await driver.create(PROJECT, _project_document("old"))
    await driver.create(PROJECT, _project_document("stays"))

    async def act() -> None:
        return None

    seen = await _follow(driver, act, 4)
    assert seen == [("old", False), ("stays", False), ("old", True), ("in-the-gap", False)]


def test_watch_is_for_one_kind(cli: CliEnvironment) -> None:
    assert cli.invoke("get", "projects,departments", "-w").exit_code == 2
    assert cli.invoke("get", "projects", "a", "b", "-w").exit_code == 2
