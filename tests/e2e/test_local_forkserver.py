"""The forkserver keeps no state: it may be killed at any moment, and never outlives its platform."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from aliquot.backends.local.runtimes import process, syscalls
from support.pods.agent_harness import AgentHarness, command_pod, shell
from support.stores.process import ServerProcess
from support.waiting import eventually


def forkservers(parent: int) -> list[int]:
    pids = []
    for pid in syscalls.children(parent):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[-3:] == [b"aliquot.backends.local.runtimes.launcher", b"serve", b""]:
            pids.append(pid)
    return pids


async def test_a_killed_forkserver_is_replaced(harness: AgentHarness) -> None:
    """The next pod starts all the same, and running pods go on."""
    async with harness.agent():
        before = await harness.run(command_pod("p-0-0", "sleep", "1000"))
        (forkserver,) = forkservers(os.getpid())
        os.kill(forkserver, signal.SIGKILL)
        _, log = await harness.finish(shell("q-0-0", "echo fine"))
        assert log == "fine\n"
        assert (await harness.see(before)).status.phase == "Running"
        assert forkserver not in forkservers(os.getpid())


def stop(forkserver: int) -> None:
    """Stop the forkserver: from now on it accepts requests and reads none."""
    os.kill(forkserver, signal.SIGSTOP)
    os.waitid(os.P_PID, forkserver, os.WSTOPPED)


async def test_a_request_that_a_killed_forkserver_accepted(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that a killed forkserver accepted and did not read is sent to the next one."""
    async with harness.agent():
        await harness.run(command_pod("p-0-0", "sleep", "1000"))
        (forkserver,) = forkservers(os.getpid())
        stop(forkserver)
        send = socket.send_fds
        sent: list[int] = []

        def send_and_kill(*request: object) -> int:
            size = send(*request)  # type: ignore[arg-type]
            if not sent:
                os.kill(forkserver, signal.SIGKILL)
            sent.append(size)
            return size

        monkeypatch.setattr(socket, "send_fds", send_and_kill)
        ended, log = await harness.finish(shell("q-0-0", "echo fine"))
        assert (ended.status.phase, log) == ("Succeeded", "fine\n")
        assert len(sent) == 2


async def test_a_launcher_that_always_dies(harness: AgentHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries are limited: the pod fails, and the message says why."""
    monkeypatch.setattr(process, "_RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(process, "_LAUNCHER", ["/bin/false"])
    async with harness.agent():
        seen = await harness.run(command_pod("p-0-0", "true"))
        assert (seen.status.phase, seen.status.message) == ("Failed", "the launcher did not finish")


async def test_a_request_after_its_timeout(harness: AgentHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod whose start was reported as failed does not run when the forkserver reads the request after all."""
    async with harness.agent():
        await harness.run(command_pod("p-0-0", "sleep", "1000"))
        (forkserver,) = forkservers(os.getpid())
        stop(forkserver)
        with monkeypatch.context() as patch:
            patch.setattr(process, "_LAUNCH_SECONDS", 0.2)
            late = await harness.run(shell("late-0-0", "echo ran"))
        assert (late.status.phase, late.status.message) == ("Failed", "the launcher did not finish")
        os.kill(forkserver, signal.SIGCONT)
        await harness.finish(shell("q-0-0", "echo fine"))  # requests are read one after the other

        async def idle() -> bool:
            return not syscalls.children(forkserver)

        await eventually(idle)
        assert not (harness.data / "pods" / late.metadata.uid / "state.json").exists()


async def test_killed_again_and_again(harness: AgentHarness) -> None:
    """However often the forkserver is killed while pods start, each pod runs exactly once."""
    async with harness.agent():
        wanted = [await harness.create(shell(f"p{i}-0-0", "echo started; sleep 1000")) for i in range(12)]
        for _ in range(10):
            for forkserver in forkservers(os.getpid()):
                os.kill(forkserver, signal.SIGKILL)
            await asyncio.sleep(0.02)  # not to wait for anything: to hit another moment
        for pod in wanted:
            seen = await harness.phase(pod, "Running", "Failed")
            assert seen.status.phase == "Running", seen.status.message
            assert await harness.printed(seen, "started") == "started\n"


def test_it_ends_with_its_platform(tmp_path: Path) -> None:
    """After kill -9 of the platform no forkserver is left."""
    server = ServerProcess(tmp_path / "data").start()
    start_times = {pid: syscalls.start_time(pid) for pid in forkservers(server.pid)}
    assert len(start_times) == 1
    server.kill()

    async def away() -> bool:
        return all(syscalls.start_time(pid) != since for pid, since in start_times.items())

    asyncio.run(eventually(away))
