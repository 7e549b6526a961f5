"""Stopping pods: TERM, grace, KILL, and nothing left behind."""

from __future__ import annotations

import time

from aliquot.backends.local.runtimes import syscalls
from aliquot.streams import LogOptions
from support.pods.world import World, pod, shell


async def test_term_first(world: World) -> None:
    """A pod that is deleted gets TERM, may say goodbye in its log, and is gone with its folder."""
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    async with world.agent() as runtime:
        seen = await world.run(shell("p-0-0", script))
        await world.printed(seen, "up")
        following = runtime.logs(seen, LogOptions(follow=True))
        await world.delete(seen)
        assert b"".join([piece async for piece in following]) == b"up\nbye\n"
        await world.gone(seen)


async def test_term_is_obeyed_at_once(world: World) -> None:
    """A pod that heeds TERM does not wait for its grace."""
    async with world.agent():
        seen = await world.run(pod("p-0-0", "sleep", "infinity", grace=30))
        began = time.monotonic()
        await world.delete(seen)
        await world.gone(seen)
    assert time.monotonic() - began < 10


async def test_term_is_ignored(world: World) -> None:
    """A pod that ignores TERM is killed when its grace is over."""
    async with world.agent():
        seen = await world.run(shell("p-0-0", "trap '' TERM; echo up; while :; do sleep 0.05; done"))
        await world.printed(seen, "up")
        await world.delete(seen, grace=1)
        await world.gone(seen)


async def test_forced_deletion_kills(world: World) -> None:
    """A pod that is gone from the store is killed at once."""
    async with world.agent():
        seen = await world.run(shell("p-0-0", "trap '' TERM; echo up; while :; do sleep 0.05; done"))
        await world.delete(seen, grace=0)
        await world.gone(seen)
    assert not syscalls.pids_with_variable(f"ALIQUOT_POD={seen.metadata.uid}".encode())


async def test_detached_processes_go_with_the_pod(world: World) -> None:
    """What a job forked and detached ends with the pod that is deleted."""
    async with world.agent():
        seen = await world.run(shell("p-0-0", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo up; sleep infinity"))
        await world.printed(seen, "up")
        mark = f"ALIQUOT_POD={seen.metadata.uid}".encode()
        assert syscalls.pids_with_variable(mark)
        await world.delete(seen, grace=1)
        await world.gone(seen)
        assert not syscalls.pids_with_variable(mark)


async def test_detached_processes_do_not_outlive_the_command(world: World) -> None:
    """A pod whose command has ended has ended, also when something it detached still holds its output."""
    async with world.agent():
        ended, log = await world.finish(shell("p-0-0", "setsid sleep 1000 & echo done"))
        assert not syscalls.pids_with_variable(f"ALIQUOT_POD={ended.metadata.uid}".encode())
    assert (ended.status.phase, log) == ("Succeeded", "done\n")


async def test_finished_pod_is_deleted(world: World) -> None:
    """A pod that has ended goes at once when it is deleted."""
    async with world.agent():
        ended, _ = await world.finish(shell("p-0-0", "true"))
        await world.delete(ended)
        await world.gone(ended)


async def test_deletion_while_starting(world: World) -> None:
    """A pod that is deleted while it starts goes too."""
    async with world.agent():
        for number in range(5):
            seen = await world.create(pod(f"p{number}-0-0", "sleep", "infinity"))
            await world.delete(seen)
            await world.gone(seen)
