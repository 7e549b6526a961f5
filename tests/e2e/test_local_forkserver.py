"""The process that forks launchers holds nothing: it may be killed at any moment, and never outlives its platform."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from aliquot.backends.local.runtimes import process, syscalls
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


def stop(starter: int) -> None:
    """Stop it: from now on it accepts orders and reads none."""
    os.kill(starter, signal.SIGSTOP)
    os.waitid(os.P_PID, starter, os.WSTOPPED)


async def test_a_starter_that_dies_with_an_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that the starter accepted and took along into its end is given to the next one."""
    async with world.agent():
        await world.run(pod("p-0-0", "sleep", "1000"))
        (starter,) = starters(os.getpid())
        stop(starter)
        send, sent = socket.send_fds, []

        def send_and_kill(*order: object) -> int:
            size = send(*order)  # type: ignore[arg-type]
            if not sent:
                os.kill(starter, signal.SIGKILL)
            sent.append(size)
            return size

        monkeypatch.setattr(socket, "send_fds", send_and_kill)
        ended, log = await world.finish(shell("q-0-0", "echo fine"))
        assert (ended.status.phase, log) == ("Succeeded", "fine\n")
        assert len(sent) == 2


async def test_a_launcher_that_always_dies(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries are limited: the pod fails, and the message says why."""
    monkeypatch.setattr(process, "_RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(process, "_LAUNCHER", ["/bin/false"])
    async with world.agent():
        seen = await world.run(pod("p-0-0", "true"))
        assert (seen.status.phase, seen.status.message) == ("Failed", "the launcher did not finish")


async def test_an_order_that_nobody_waits_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod whose start was reported as failed does not run when the starter reads the order after all."""
    async with world.agent():
        await world.run(pod("p-0-0", "sleep", "1000"))
        (starter,) = starters(os.getpid())
        stop(starter)
        with monkeypatch.context() as patch:
            patch.setattr(process, "_LAUNCH_SECONDS", 0.2)
            late = await world.run(shell("late-0-0", "echo ran"))
        assert (late.status.phase, late.status.message) == ("Failed", "the launcher did not finish")
        os.kill(starter, signal.SIGCONT)
        await world.finish(shell("q-0-0", "echo fine"))  # orders are read one after the other

        async def idle() -> bool:
            return not syscalls.children(starter)

        await until(idle)
        assert not (world.data / "pods" / late.metadata.uid / "state.json").exists()


async def test_killed_again_and_again(world: World) -> None:
    """However often it is killed while pods start, each pod runs, and runs once."""
    async with world.agent():
        wanted = [await world.create(shell(f"p{i}-0-0", "echo started; sleep 1000")) for i in range(12)]
        for _ in range(10):
            for starter in starters(os.getpid()):
                os.kill(starter, signal.SIGKILL)
            await asyncio.sleep(0.02)  # not to wait for anything: to hit another moment
        for one in wanted:
            seen = await world.phase(one, "Running", "Failed")
            assert seen.status.phase == "Running", seen.status.message
            assert await world.printed(seen, "started") == "started\n"


def test_it_ends_with_its_platform(tmp_path: Path) -> None:
    """After kill -9 of the platform no starter is left."""
    server = ServerProcess(tmp_path / "data").start()
    found = {pid: syscalls.start_time(pid) for pid in starters(server.pid)}
    assert len(found) == 1
    server.kill()

    async def away() -> bool:
        return all(syscalls.start_time(pid) != since for pid, since in found.items())

    asyncio.run(until(away))
