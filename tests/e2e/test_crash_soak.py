"""A soak test of sixteen simulated nodes with three departments, fractions and gangs.

Users submit and delete jobs, which fail or finish, while the platform is killed. After each round the cluster must
reach steady state, and then every check must hold.
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
from support.crash.gangs import GangUser
from support.crash.jobs import JobUser
from support.crash.processes import PodProcessMonitor
from support.crash.steady_state import AllocationCheck, wait_for_steady_state
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
    """Nodes with one or two GPUs, 24 in total: fewer than the jobs request."""
    return _CLUSTER.format(nodes="\n".join(_NODE.format(number=n, gpus=1 + n % 2) for n in range(16)))


async def test_two_minutes(tmp_path: Path) -> None:
    """A minute with kills, then one without kills, in which memory does not grow."""
    await _soak(tmp_path, seconds=60)


@pytest.mark.soak
async def test_twenty_minutes(tmp_path: Path) -> None:
    """The same, ten minutes each."""
    await _soak(tmp_path, seconds=600)


async def _soak(folder: Path, seconds: float) -> None:
    preset = folder / "cluster.yaml"
    preset.write_text(_cluster())
    server = await asyncio.to_thread(ServerProcess(folder / "data", "--simulate", str(preset)).start)
    monitor, driver = PodProcessMonitor(folder / "data"), server.driver()
    users = [
        JobUser(server.driver(), lambda: Connection(server.url, server.token), f"p{n}", TEAMS, "team-d")
        for n in range(6)
    ]
    gangs = GangUser(server.driver(), "gangs", 1)
    run = SoakRun(server, driver, users, gangs, monitor)
    try:
        await _departments(driver)
        await run.rounds(seconds, kills=True)
        await run.rounds(seconds / 2, kills=False)  # fills caches that keep entries for a while
        before = await run.memory()
        await run.rounds(seconds / 2, kills=False)
        after = await run.memory()
    finally:
        for user in users:
            await user.close()
        await gangs.close()
        await driver.close()
        ended = await asyncio.to_thread(server.down)
    assert ended == 0
    assert monitor.surviving_processes() == []
    done = sum((user.done for user in users), Counter()) + gangs.done
    print(
        f"\nrounds: {run.count}, kills: {run.kills}, jobs submitted: {done['submitted']},"
        f" deleted: {done['deleted']}, evicted: {done['stopped']}, gangs: {done['gangs']},"
        f" gangs seen complete: {done['whole']}, pods seen alive: {len(monitor.processes)},"
        f" at the same time at most: {monitor.most_alive}, checks with a shared GPU: {monitor.shared},"
        f" memory: {before:.1f} -> {after:.1f} MB"
    )
    assert done["stopped"], "no job was evicted: the cluster was never full"
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


class SoakRun:
    def __init__(
        self,
        server: ServerProcess,
        driver: StoreDriver,
        users: list[JobUser],
        gangs: GangUser,
        monitor: PodProcessMonitor,
    ) -> None:
        self._server, self._driver, self._users, self._gangs = server, driver, users, gangs
        self._monitor = monitor
        self._random = random.Random(7)
        self.count = self.kills = 0

    async def rounds(self, seconds: float, *, kills: bool) -> None:
        end = time.monotonic() + seconds
        while True:
            await self._round(kills)
            if time.monotonic() >= end:
                return

    async def _round(self, kills: bool) -> None:
        async with asyncio.TaskGroup() as group:
            workers: list[JobUser | GangUser] = [*self._users, self._gangs]
            busy = [group.create_task(self._work(worker)) for worker in workers]
            check = group.create_task(self._check_continuously())
            if kills:
                for _ in range(self._random.randint(0, 2)):
                    await asyncio.sleep(self._random.uniform(0, 2))
                    await asyncio.to_thread(self._server.kill)
                    await asyncio.to_thread(self._server.start)
                    self.kills += 1
            await asyncio.wait(busy)
            check.cancel()
        snapshot = await self._steady_state()
        AllocationCheck(snapshot).check()
        await self._gangs.check()
        for user in self._users:
            await user.list_jobs()
        running = {"/".join(process.job) for process in (await asyncio.to_thread(self._monitor.check)).values()}
        stored = {
            self._process_name(job.queue, job.name, task.name)
            for job in snapshot.jobs
            for task in job.tasks
            if task.node
        }
        assert running == stored, f"running processes and the store differ: {running ^ stored}"
        self.count += 1

    async def _steady_state(self) -> Snapshot:
        passing = {job.name for user in self._users for job in user.jobs.values() if job.form != "stays"}
        return await wait_for_steady_state(self._driver, time.time(), passing)

    def _process_name(self, queue: str, job: str, task: str) -> str:
        """The name in the process environment: that of the job, or of the pod where a job has several."""
        return f"{queue}/{task if queue == 'gangs' else job.partition('/')[2]}"

    async def _work(self, user: JobUser | GangUser) -> None:
        for _ in range(self._random.randint(2, 6)):
            await user.step()
            await asyncio.sleep(self._random.uniform(0, 0.4))

    async def _check_continuously(self) -> None:
        """Checks the processes all the time; a failed check ends the test."""
        while True:
            await asyncio.to_thread(self._monitor.check)
            await asyncio.sleep(0.5)

    async def memory(self) -> float:
        """The platform's memory in MB, in steady state."""
        await self._steady_state()
        status = await asyncio.to_thread(Path(f"/proc/{self._server.pid}/status").read_text)
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return int(fields["VmRSS"].split()[0]) / 1024
