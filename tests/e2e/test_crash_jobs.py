"""The platform is killed again and again while users submit, delete, list and follow jobs on the demo cluster."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from aliquot.client.connection import Connection
from aliquot.store.driver import StoreDriver
from support.crash.clients import SECONDS
from support.crash.jobs import PROJECTS, JobUser, JobUserGroup, check_store
from support.crash.processes import PodProcess, PodProcessMonitor
from support.stores.namespace import NAMESPACE
from support.stores.process import ServerProcess

_NAMESPACES = {f"runai-{project}" for project in PROJECTS}


async def test_jobs_live_through_kills(tmp_path: Path) -> None:
    """Through 20 kills no job is lost, none runs twice or again without a reason, no GPU is given out twice, and no
    log has a gap."""
    await _kill_repeatedly(tmp_path / "data", kills=20)


@pytest.mark.soak
async def test_jobs_live_through_many_kills(tmp_path: Path) -> None:
    """The same with 200 kills."""
    await _kill_repeatedly(tmp_path / "data", kills=200)


async def _kill_repeatedly(folder: Path, kills: int) -> None:
    server = await asyncio.to_thread(ServerProcess(folder, "--simulate", "demo").start)
    monitor, driver = PodProcessMonitor(folder), server.driver()
    team = JobUserGroup(
        [JobUser(server.driver(), lambda: Connection(server.url, server.token), f"p{n}") for n in range(8)]
    )
    try:
        await _projects(driver)
        async with asyncio.TaskGroup() as group:
            working = group.create_task(team.run())
            guard = group.create_task(_guard(monitor))
            still_alive = await _kill_and_check(server, team, monitor, driver, kills)
            team.stop()
            await working
            await team.wait_until_settled()
            guard.cancel()
        await _check_known(monitor, driver)
        for user in team.users:
            _check_starts(monitor, await user.starts())
        lines = sum([await user.check_logs() for user in team.users])
    finally:
        await team.close()
        await driver.close()
        ended = await asyncio.to_thread(server.down)
    assert ended == 0
    assert monitor.surviving_processes() == []
    resumed = sum(follower.resumed for user in team.users for follower in user.followers)
    done = team.done
    print(
        f"\nkills: {kills}, jobs submitted: {done['submitted']}, deleted: {done['deleted']},"
        f" stopped for others: {done['stopped']},"
        f" listings: {done['listed']}, requests broken off: {done['broken off']}"
        f"\npods seen alive: {len(monitor.processes)}, at the same time at most: {monitor.most_alive},"
        f" still alive after a kill: {still_alive}, checks of /proc: {monitor.checks},"
        f" with a shared GPU: {monitor.shared}"
        f"\nlog lines checked: {lines}, logs followed: {sum(len(user.followers) for user in team.users)},"
        f" resumed: {resumed}"
    )


async def _projects(driver: StoreDriver) -> None:
    """Until the demo's projects can be used."""
    async with asyncio.timeout(SECONDS):
        while not {item.name for item in (await driver.list(NAMESPACE)).items} >= _NAMESPACES:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _guard(monitor: PodProcessMonitor) -> None:
    """Looks all the time; what it finds ends the test."""
    while True:
        await asyncio.to_thread(monitor.check)
        await asyncio.sleep(0.3)


async def _kill_and_check(
    server: ServerProcess, team: JobUserGroup, monitor: PodProcessMonitor, driver: StoreDriver, kills: int
) -> int:
    """How many pods were found again, over all kills."""
    rng, still_alive = random.Random(kills), 0
    for number in range(kills):
        await team.wait_for_steps(rng.randint(1, 30))
        await asyncio.sleep(rng.uniform(0, 0.1))  # not in step with any request
        await asyncio.to_thread(server.kill)
        if number % 4 == 3:  # and once more before it serves
            await asyncio.to_thread(server.spawn)
            await asyncio.sleep(rng.uniform(0, 2))
            await asyncio.to_thread(server.kill)
        before = await asyncio.to_thread(monitor.check)
        await asyncio.to_thread(server.start)
        still_alive += await _found_again(monitor, driver, before)
    return still_alive


async def _found_again(monitor: PodProcessMonitor, driver: StoreDriver, before: dict[str, PodProcess]) -> int:
    """Until the platform says of everything that is still alive that it runs, and was never started again."""
    wrong: list[str] = ["not looked at yet"]
    still: dict[str, PodProcess] = {}
    try:
        async with asyncio.timeout(SECONDS):
            while wrong:
                pods = await check_store(driver)
                # Looked at after the list: who is alive now was alive then, so the list must have it.
                still = {uid: main for uid, main in before.items() if main.alive}
                assert not still.keys() - pods.keys(), "it runs, and the store does not know it"
                seen = [(main, pods[uid].status) for uid, main in still.items()]
                wrong = [f"{main}: {status}" for main, status in seen if status.phase != "Running"]
                for main, status in seen:
                    assert status.phase not in ("Succeeded", "Failed"), f"{main} is alive: {status}"
                    assert not any(container.restart_count for container in status.container_statuses), main
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError("\n".join(wrong)) from None
    return len(still)


async def _check_known(monitor: PodProcessMonitor, driver: StoreDriver) -> None:
    """When all is quiet: what the store says runs is what runs."""
    running = {uid for uid, pod in (await check_store(driver)).items() if pod.status.phase == "Running"}
    assert running == (await asyncio.to_thread(monitor.check)).keys()


def _check_starts(monitor: PodProcessMonitor, most: dict[tuple[str, str], int]) -> None:
    """No job was started more often than it failed or was stopped for others."""
    seen = Counter(main.job for main in monitor.processes.values())
    over = {job: seen[job] for job, starts in most.items() if seen[job] > starts}
    assert not over, f"{over}, at most {most}"
