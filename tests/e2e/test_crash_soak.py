"""Sixteen simulated nodes, three departments, fractions and gangs; people submit, delete, fail and finish at random,
and the platform is killed meanwhile. Again and again everybody pauses: then the cluster comes to rest, and all is well.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from aliquot.api import KINDS
from aliquot.client.connection import Connection
from aliquot.planner import Snapshot
from aliquot.store.driver import StoreDriver
from support.crash.clients import SECONDS
from support.crash.gangs import Gangs
from support.crash.jobs import Person
from support.crash.processes import Watchman
from support.crash.settled import Ledger, at_rest
from support.stores.namespace import NAMESPACE, document
from support.stores.process import ServerProcess

TEAMS = ("team-a", "team-b", "team-c", "team-d")
_CLUSTER = """
nodes:
{nodes}
projects:
  team-a: {{department: one, quota: {{gpu: 4}}}}
  team-b: {{department: one, quota: {{gpu: 2}}}}
  team-c: {{department: two, quota: {{gpu: 2}}}}
  team-d: {{department: two, quota: {{gpu: 6}}}}
  gangs: {{department: three, quota: {{gpu: 12}}}}
"""
_NODE = "  - {{name: n{number:02}, cpu: 64, memory: 256Gi, gpus: [{{count: {gpus}, model: T, memoryMiB: 16000}}]}}"


def _cluster() -> str:
    """Nodes of one GPU and of two, 24 in all: less than everybody wants."""
    return _CLUSTER.format(nodes="\n".join(_NODE.format(number=n, gpus=1 + n % 2) for n in range(16)))


async def test_two_minutes(tmp_path: Path) -> None:
    """A minute with kills, then one without, in which memory does not grow."""
    await _soak(tmp_path, seconds=60)


@pytest.mark.soak
async def test_twenty_minutes(tmp_path: Path) -> None:
    """The same, ten minutes each."""
    await _soak(tmp_path, seconds=600)


async def _soak(folder: Path, seconds: float) -> None:
    preset = folder / "cluster.yaml"
    preset.write_text(_cluster())
    server = await asyncio.to_thread(ServerProcess(folder / "data", "--simulate", str(preset)).start)
    watchman, driver = Watchman(folder / "data"), server.driver()
    people = [
        Person(server.driver(), lambda: Connection(server.url, server.token), f"p{n}", TEAMS, "team-d")
        for n in range(6)
    ]
    gangs = Gangs(server.driver(), "gangs", 1)
    crowd = Crowd(server, driver, people, gangs, watchman)
    try:
        await _departments(driver)
        await crowd.rounds(seconds, kills=True)
        await crowd.rounds(seconds / 2, kills=False)  # what is kept for a while is there then
        before = await crowd.memory()
        await crowd.rounds(seconds / 2, kills=False)
        after = await crowd.memory()
    finally:
        for person in people:
            await person.close()
        await gangs.close()
        await driver.close()
        ended = await asyncio.to_thread(server.down)
    assert ended == 0
    assert watchman.left_behind() == []
    done = sum((person.done for person in people), Counter()) + gangs.done
    print(
        f"\nrounds at rest: {crowd.count}, kills: {crowd.kills}, jobs submitted: {done['submitted']},"
        f" deleted: {done['deleted']}, stopped for others: {done['stopped']}, gangs: {done['gangs']},"
        f" seen whole: {done['whole']}, pods seen alive: {len(watchman.mains)}, together at most: {watchman.fullest},"
        f" looks with a shared GPU: {watchman.shared}, memory: {before:.1f} -> {after:.1f} MB"
    )
    assert done["stopped"], "nobody was ever stopped for anybody: the cluster was never full"
    assert done["whole"], "no gang ever ran"
    assert after < before * 1.15 + 5, f"memory grew from {before:.1f} to {after:.1f} MB"


async def _departments(driver: StoreDriver) -> None:
    kind = KINDS.named("Department")
    for name, quota in (("one", 6), ("two", 8), ("three", 12)):
        await driver.create(kind, document(kind, name, "", {"quota": {"gpu": quota}}))
    async with asyncio.timeout(SECONDS):
        wanted = {f"runai-{team}" for team in (*TEAMS, "gangs")}
        while not {item.name for item in (await driver.list(NAMESPACE)).items} >= wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


class Crowd:
    def __init__(
        self, server: ServerProcess, driver: StoreDriver, people: list[Person], gangs: Gangs, watchman: Watchman
    ) -> None:
        self._server, self._driver, self._people, self._gangs = server, driver, people, gangs
        self._watchman = watchman
        self._random = random.Random(7)
        self.count = self.kills = 0

    async def rounds(self, seconds: float, *, kills: bool) -> None:
        end = time.monotonic() + seconds
        while True:
            await self._once(kills)
            if time.monotonic() >= end:
                return

    async def _once(self, kills: bool) -> None:
        async with asyncio.TaskGroup() as group:
            workers: list[Person | Gangs] = [*self._people, self._gangs]
            busy = [group.create_task(self._work(worker)) for worker in workers]
            guard = group.create_task(self._guard())
            if kills:
                for _ in range(self._random.randint(0, 2)):
                    await asyncio.sleep(self._random.uniform(0, 2))
                    await asyncio.to_thread(self._server.kill)
                    await asyncio.to_thread(self._server.start)
                    self.kills += 1
            await asyncio.wait(busy)
            guard.cancel()
        snapshot = await self._at_rest()
        Ledger(snapshot).check()
        await self._gangs.check()
        for person in self._people:
            await person.list_jobs()
        running = {f"{one.job[0]}/{one.job[1]}" for one in (await asyncio.to_thread(self._watchman.look)).values()}
        said = {
            self._process(job.queue, job.name, task.name) for job in snapshot.jobs for task in job.tasks if task.node
        }
        assert running == said, f"what runs is not what the store says: {running ^ said}"
        self.count += 1

    async def _at_rest(self) -> Snapshot:
        passing = {job.name for person in self._people for job in person.jobs.values() if job.form != "stays"}
        return await at_rest(self._driver, time.time(), passing)

    def _process(self, queue: str, job: str, task: str) -> str:
        """As its environment names it: by the job, or by the pod where a job has several."""
        return f"{queue}/{task if queue == 'gangs' else job.partition('/')[2]}"

    async def _work(self, one: Person | Gangs) -> None:
        for _ in range(self._random.randint(2, 6)):
            await one.step()
            await asyncio.sleep(self._random.uniform(0, 0.4))

    async def _guard(self) -> None:
        """Looks all the time; what it finds ends the test."""
        while True:
            await asyncio.to_thread(self._watchman.look)
            await asyncio.sleep(0.5)

    async def memory(self) -> float:
        """Of the platform in MB, when all is quiet."""
        await self._at_rest()
        status = await asyncio.to_thread(Path(f"/proc/{self._server.pid}/status").read_text)
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return int(fields["VmRSS"].split()[0]) / 1024
