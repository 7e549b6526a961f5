"""Of several processes one leads; another takes over when it is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from aliquot.api import Lease, Metadata, Namespace
from aliquot.controllers.runtime.leader import LeaderElector, LeaseTiming
from aliquot.errors import Unavailable
from aliquot.labels import SYSTEM_NAMESPACE
from aliquot.store.driver import Document, StoreDriver
from aliquot.store.lease_fence import MAY_WRITE
from aliquot.store.typed_store import Store
from support.stores.namespace import StoreNamespace
from support.stores.running import running, until

QUICK = LeaseTiming(duration=1, deadline=0.6, interval=0.05)


class Lost:
    """A way to the store that breaks."""

    def __init__(self, driver: StoreDriver) -> None:
        self._driver = driver
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        if self.broken and name in ("get", "patch", "update", "create"):
            raise Unavailable("nobody there")
        return getattr(self._driver, name)


class Candidate:
    """Counts how many of them lead at a time."""

    leading: list[str]

    def __init__(self, driver: StoreDriver, name: str, leading: list[str], most: list[int]) -> None:
        self.name, self._leading, self._most = name, leading, most
        self.leader = LeaderElector(Store(driver), "test", name, QUICK)

    def run(self) -> Coroutine[Any, Any, None]:
        return self.leader.run(lambda: [self._work()])

    async def _work(self) -> None:
        self._leading.append(self.name)
        self._most.append(len(self._leading))
        try:
            await asyncio.Event().wait()
        finally:
            self._leading.remove(self.name)


async def _system(driver: StoreDriver) -> None:
    await Store(driver).create(Namespace(metadata=Metadata(name=SYSTEM_NAMESPACE)))


async def test_one_leads(embedded: StoreNamespace) -> None:
    """However many there are, one works."""
    await _system(embedded.driver)
    leading: list[str] = []
    most: list[int] = []
    candidates = [Candidate(embedded.driver, f"c{index}", leading, most) for index in range(4)]
    async with running(*(one.run() for one in candidates)):

        async def somebody() -> bool:
            return len(leading) == 1

        await until(somebody)
        assert sum(one.leader.is_leader for one in candidates) == 1
        assert (await Store(embedded.driver).get(Lease, "test", SYSTEM_NAMESPACE)).spec.holder_identity == leading[0]
    assert most == [1]


async def test_who_stops_gives_it_back(embedded: StoreNamespace) -> None:
    """The next one need not wait for the end of the lease."""
    await _system(embedded.driver)
    leading: list[str] = []
    most: list[int] = []
    first, second = (Candidate(embedded.driver, name, leading, most) for name in ("first", "second"))

    async def leads(name: str) -> bool:
        return leading == [name]

    async with running(first.run()):
        await until(lambda: leads("first"))
    lease = await Store(embedded.driver).get(Lease, "test", SYSTEM_NAMESPACE)
    assert not lease.spec.holder_identity
    async with running(second.run()):
        await until(lambda: leads("second"))
    assert most == [1, 1]


class Unheard:
    """A way to the store on which a write arrives, and its answer does not come."""

    def __init__(self, driver: StoreDriver, unheard: int) -> None:
        self._driver, self._unheard, self._writes = driver, unheard, 0
        self.arrived = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        if name not in ("create", "patch"):
            return found

        async def write(*asked: Any, **more: Any) -> Any:
            answer = await found(*asked, **more)
            self._writes += 1
            if self._writes == self._unheard:
                self.arrived.set()
                await asyncio.Event().wait()
            return answer

        return write


@pytest.mark.parametrize("unheard", [1, 2, 3], ids=["taken", "renewed", "renewed-again"])
async def test_who_stops_gives_back_what_it_does_not_know_of(embedded: StoreNamespace, unheard: int) -> None:
    """It is told to stop while it waits for the answer to a write, which has arrived."""
    await _system(embedded.driver)
    way = Unheard(embedded.driver, unheard)
    async with running(Candidate(way, "only", [], []).run()):  # type: ignore[arg-type]
        await asyncio.wait_for(way.arrived.wait(), 30)
        assert (await Store(embedded.driver).get(Lease, "test", SYSTEM_NAMESPACE)).spec.holder_identity == "only"
    assert not (await Store(embedded.driver).get(Lease, "test", SYSTEM_NAMESPACE)).spec.holder_identity


async def test_who_hears_nothing_stops_before_others_start(embedded: StoreNamespace) -> None:
    """A leader whose way to the store is broken stops by itself, and only then another one leads."""
    await _system(embedded.driver)
    leading: list[str] = []
    most: list[int] = []
    way = Lost(embedded.driver)
    cut = Candidate(way, "cut", leading, most)  # type: ignore[arg-type]
    other = Candidate(embedded.driver, "other", leading, most)

    async def leads(name: str) -> bool:
        return leading == [name]

    async with running(cut.run()):
        await until(lambda: leads("cut"))
        async with running(other.run()):
            way.broken = True
            await until(lambda: leads("other"))
            way.broken = False
            assert not cut.leader.is_leader
    assert max(most) == 1


async def test_who_stood_still_writes_no_more(embedded: StoreNamespace) -> None:
    """Work of a leader that stood still for too long may not write, even before anybody has noticed."""
    await _system(embedded.driver)
    said: list[bool] = []

    async def work() -> None:
        said.append(MAY_WRITE.get()())
        time.sleep(QUICK.deadline)  # noqa: ASYNC251  # the whole process stands still
        said.append(MAY_WRITE.get()())
        await asyncio.Event().wait()

    async with running(LeaderElector(Store(embedded.driver), "test", "still", QUICK).run(lambda: [work()])):

        async def both() -> bool:
            return len(said) >= 2

        await until(both)
    assert said[:2] == [True, False]
    assert MAY_WRITE.get()()


class Slow:
    """A way to the store on which the first look outlasts a lease, and sees the last renewal before a break."""

    def __init__(self, driver: StoreDriver, way: Lost) -> None:
        self._driver, self._way = driver, way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def get(self, *asked: Any) -> Document:
        if not self._way.broken:
            await asyncio.sleep(QUICK.duration + 0.2)
            self._way.broken = True
        return await self._driver.get(*asked)


async def test_a_slow_look_does_not_count_as_waiting(embedded: StoreNamespace) -> None:
    """Who waited long for an answer has not seen the lease unchanged for that long."""
    await _system(embedded.driver)
    leading: list[str] = []
    most: list[int] = []
    way = Lost(embedded.driver)
    holder = Candidate(way, "holder", leading, most)  # type: ignore[arg-type]
    late = Candidate(Slow(embedded.driver, way), "late", leading, most)  # type: ignore[arg-type]

    async def leads(name: str) -> bool:
        return leading == [name]

    async with running(holder.run()):
        await until(lambda: leads("holder"))
        async with running(late.run()):
            await until(lambda: leads("late"))
    assert most == [1, 1]
