"""Stopping pods: TERM, grace period, KILL, and nothing left behind."""

from __future__ import annotations

import time

from aliquot.backends.local.runtimes import syscalls
from aliquot.streams import LogOptions
from support.pods.agent_harness import AgentHarness, command_pod, shell


async def test_term_first(harness: AgentHarness) -> None:
    """A deleted pod gets TERM, can still print, and is removed with its folder."""
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    async with harness.agent() as runtime:
        seen = await harness.run(shell("p-0-0", script))
        await harness.printed(seen, "up")
        following = runtime.logs(seen, LogOptions(follow=True))
        await harness.delete(seen)
        assert b"".join([piece async for piece in following]) == b"up\nbye\n"
        await harness.gone(seen)


async def test_term_is_obeyed_at_once(harness: AgentHarness) -> None:
    """A pod that ends at TERM does not use up its grace period."""
    async with harness.agent():
        seen = await harness.run(command_pod("p-0-0", "sleep", "infinity", grace=30))
        began = time.monotonic()
        await harness.delete(seen)
        await harness.gone(seen)
    assert time.monotonic() - began < 10


async def test_term_is_ignored(harness: AgentHarness) -> None:
    """A pod that ignores TERM is killed when its grace period is over."""
    async with harness.agent():
        seen = await harness.run(shell("p-0-0", "trap '' TERM; echo up; while :; do sleep 0.05; done"))
        await harness.printed(seen, "up")
        await harness.delete(seen, grace=1)
        await harness.gone(seen)


async def test_forced_deletion_kills(harness: AgentHarness) -> None:
    """A pod that is gone from the store is killed at once."""
    async with harness.agent():
        seen = await harness.run(shell("p-0-0", "trap '' TERM; echo up; while :; do sleep 0.05; done"))
        await harness.delete(seen, grace=0)
        await harness.gone(seen)
    assert not syscalls.pids_with_variable(f"ALIQUOT_POD={seen.metadata.uid}".encode())


async def test_detached_processes_end_with_the_pod(harness: AgentHarness) -> None:
    """Processes that a job detached end with its pod when it is deleted."""
    async with harness.agent():
        seen = await harness.run(
            shell("p-0-0", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo up; sleep infinity")
        )
        await harness.printed(seen, "up")
        variable = f"ALIQUOT_POD={seen.metadata.uid}".encode()
        assert syscalls.pids_with_variable(variable)
        await harness.delete(seen, grace=1)
        await harness.gone(seen)
        assert not syscalls.pids_with_variable(variable)


async def test_detached_processes_do_not_outlive_the_command(harness: AgentHarness) -> None:
    """A pod ends with its command, also when a detached process still holds its output."""
    async with harness.agent():
        ended, log = await harness.finish(shell("p-0-0", "setsid sleep 1000 & echo done"))
        assert not syscalls.pids_with_variable(f"ALIQUOT_POD={ended.metadata.uid}".encode())
    assert (ended.status.phase, log) == ("Succeeded", "done\n")


async def test_finished_pod_is_deleted(harness: AgentHarness) -> None:
    """A pod that has ended is removed at once when it is deleted."""
    async with harness.agent():
        ended, _ = await harness.finish(shell("p-0-0", "true"))
        await harness.delete(ended)
        await harness.gone(ended)


async def test_deletion_while_starting(harness: AgentHarness) -> None:
    """A pod that is deleted while it starts is removed too."""
    async with harness.agent():
        for number in range(5):
            seen = await harness.create(command_pod(f"p{number}-0-0", "sleep", "infinity"))
            await harness.delete(seen)
            await harness.gone(seen)
