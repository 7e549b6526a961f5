"""Of several replicas one leads, and another takes over when it is gone."""

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
from support.stores.running import running
from support.waiting import eventually

QUICK = LeaseTiming(duration=1, deadline=0.6, interval=0.05)


class BreakableDriver:
    """A driver that fails once `broken` is set."""

    def __init__(self, driver: StoreDriver) -> None:
        self._driver = driver
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        if self.broken and name in ("get", "patch", "update", "create"):
            raise Unavailable("no answer")
        return getattr(self._driver, name)


class Candidate:
    """Records how many candidates lead at a time."""

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
    """Of several candidates exactly one leads."""
    await _system(embedded.driver)
    leading: list[str] = []
    most: list[int] = []
    candidates = [Candidate(embedded.driver, f"c{index}", leading, most) for index in range(4)]
    async with running(*(candidate.run() for candidate in candidates)):

        async def one_leads() -> bool:
            return len(leading) == 1

        await eventually(one_leads)
        assert sum(candidate.leader.is_leader for candidate in candidates) == 1
        assert (await Store(embedded.driver).get(Lease, "test", SYSTEM_NAMESPACE)).spec.holder_identity == leading[0]
    assert most == [1]


async def test_a_shutdown_releases_the_lease(embedded: StoreNamespace) -> None:
    """The next leader need not wait for the lease to expire."""
    await _system(embedded.driver)
    leading: list[str] = []
    most: list[int] = []
    first, second = (Candidate(embedded.driver, name, leading, most) for name in ("first", "second"))

    async def leads(name: str) -> bool:
        return leading == [name]

    async with running(first.run()):
        await eventually(lambda: leads("first"))
    lease = await Store(embedded.driver).get(Lease, "test", SYSTEM_NAMESPACE)
    assert not lease.spec.holder_identity
    async with running(second.run()):
        await eventually(lambda: leads("second"))
    assert most == [1, 1]


class LosesAnswer:
    """A driver on which the nth write takes effect, but its answer never comes."""

    def __init__(self, driver: StoreDriver, lost: int) -> None:
        self._driver, self._lost, self._writes = driver, lost, 0
        self.arrived = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._driver, name)
        if name not in ("create", "patch"):
            return method

        async def write(*arguments: Any, **options: Any) -> Any:
            answer = await method(*arguments, **options)
            self._writes += 1
            if self._writes == self._lost:
                self.arrived.set()
                await asyncio.Event().wait()
            return answer

        return write


@pytest.mark.parametrize("lost", [1, 2, 3], ids=["taken", "renewed", "renewed-again"])
async def test_a_shutdown_releases_a_lease_it_may_hold(embedded: StoreNamespace, lost: int) -> None:
    """A replica that shuts down while it waits for the answer to a write releases the lease all the same."""
    await _system(embedded.driver)
    driver = LosesAnswer(embedded.driver, lost)
    async with running(Candidate(driver, "only", [], []).run()):
        await asyncio.wait_for(driver.arrived.wait(), 30)
        assert (await Store(embedded.driver).get(Lease, "test", SYSTEM_NAMESPACE)).spec.holder_identity == "only"
    assert not (await Store(embedded.driver).get(Lease, "test", SYSTEM_NAMESPACE)).spec.holder_identity


async def test_a_cut_off_leader_stops_first(embedded: StoreNamespace) -> None:
    """A leader that cannot reach the store stops by itself, before another one leads."""
    await _system(embedded.driver)
    leading: list[str] = []
    most: list[int] = []
    breakable = BreakableDriver(embedded.driver)
    cut = Candidate(breakable, "cut", leading, most)
    other = Candidate(embedded.driver, "other", leading, most)

    async def leads(name: str) -> bool:
        return leading == [name]

    async with running(cut.run()):
        await eventually(lambda: leads("cut"))
        async with running(other.run()):
            breakable.broken = True
            await eventually(lambda: leads("other"))
            breakable.broken = False
            assert not cut.leader.is_leader
    assert max(most) == 1


async def test_no_writes_after_a_long_pause(embedded: StoreNamespace) -> None:
    """A leader whose process paused for too long may not write, even before another replica leads."""
    await _system(embedded.driver)
    may_write: list[bool] = []

    async def work() -> None:
        may_write.append(MAY_WRITE.get()())
        time.sleep(QUICK.deadline)  # noqa: ASYNC251  # the whole process pauses
        may_write.append(MAY_WRITE.get()())
        await asyncio.Event().wait()

    async with running(LeaderElector(Store(embedded.driver), "test", "paused", QUICK).run(lambda: [work()])):

        async def both() -> bool:
            return len(may_write) >= 2

        await eventually(both)
    assert may_write[:2] == [True, False]
    assert MAY_WRITE.get()()


class SlowDriver:
    """A driver whose first read takes longer than a lease, breaks the other driver, and shows its last renewal."""

    def __init__(self, driver: StoreDriver, other: BreakableDriver) -> None:
        self._driver, self._other = driver, other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def get(self, *arguments: Any) -> Document:
        if not self._other.broken:
            await asyncio.sleep(QUICK.duration + 0.2)
            self._other.broken = True
        return await self._driver.get(*arguments)


async def test_a_slow_read_does_not_count_as_waiting(embedded: StoreNamespace) -> None:
    """A candidate that waits long for an answer has not seen the lease unchanged for that long."""
    await _system(embedded.driver)
    leading: list[str] = []
    most: list[int] = []
    breakable = BreakableDriver(embedded.driver)
    holder = Candidate(breakable, "holder", leading, most)
    late = Candidate(SlowDriver(embedded.driver, breakable), "late", leading, most)

    async def leads(name: str) -> bool:
        return leading == [name]

    async with running(holder.run()):
        await eventually(lambda: leads("holder"))
        async with running(late.run()):
            await eventually(lambda: leads("late"))
    assert most == [1, 1]
