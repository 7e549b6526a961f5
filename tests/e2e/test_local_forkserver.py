"""The process that forks launchers holds nothing: it may be killed at any moment, and never outlives its platform."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from aliquot.backends.local.runtimes import syscalls
from support.pods.world import World, pod, shell
from support.stores.process import ServerProcess
from support.stores.running import until


def starters(parent: int) -> list[int]:
    found = []
    for pid in syscalls.children(parent):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[-3:] == [b"aliquot.backends.local.runtimes.launcher", b"serve", b""]:
            found.append(pid)
    return found


async def test_a_starter_that_was_killed(world: World) -> None:
    """The next pod starts all the same, and those that run go on."""
    async with world.agent():
        before = await world.run(pod("p-0-0", "sleep", "1000"))
        (starter,) = starters(os.getpid())
        os.kill(starter, signal.SIGKILL)
        _, log = await world.finish(shell("q-0-0", "echo fine"))
        assert log == "fine\n"
        assert (await world.see(before)).status.phase == "Running"
        assert starter not in starters(os.getpid())


async def test_killed_again_and_again(world: World) -> None:
    """However often it is killed while pods start, each pod runs once or says that it could not start."""
    async with world.agent():
        wanted = [await world.create(shell(f"p{i}-0-0", "echo started; sleep 1000")) for i in range(12)]
        for _ in range(10):
            for starter in starters(os.getpid()):
                os.kill(starter, signal.SIGKILL)
            await asyncio.sleep(0.02)  # not to wait for anything: to hit another moment
        for one in wanted:
            seen = await world.phase(one, "Running", "Failed")
            if seen.status.phase == "Running":
                assert await world.printed(seen, "started") == "started\n"
            else:
                assert seen.status.message == "the launcher did not finish"


def test_it_ends_with_its_platform(tmp_path: Path) -> None:
    """After kill -9 of the platform no starter is left."""
    server = ServerProcess(tmp_path / "data").start()
    found = {pid: syscalls.start_time(pid) for pid in starters(server.pid)}
    assert len(found) == 1
    server.kill()

    async def away() -> bool:
        return all(syscalls.start_time(pid) != since for pid, since in found.items())

    asyncio.run(until(away))
