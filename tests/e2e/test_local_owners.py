"""Whose a process is: found by the kernel's own facts, also when a pod tries to hide it."""

from __future__ import annotations

import os
from pathlib import Path

from aliquot.api import Pod
from aliquot.backends.local.runtimes import syscalls
from aliquot.streams import TerminalSize
from support.pods.world import World, needs_root, shell
from support.stores.running import until


def sleepers(number: int) -> list[int]:
    """Processes of this machine that sleep for so long; the number tells tests apart."""

    def sleeps(pid: int) -> bool:
        program, *words = syscalls.command_line(pid).split(b"\0")
        return os.path.basename(program) == b"sleep" and words == [str(number).encode(), b""]

    return [pid for pid in syscalls.pids() if sleeps(pid)]


async def asleep(number: int, count: int = 1) -> list[int]:
    async def there() -> bool:
        return len(sleepers(number)) == count

    await until(there)
    return sleepers(number)


async def started(world: World, wanted: Pod) -> str:
    return (await world.run(wanted)).metadata.uid


async def phase(world: World, name: str) -> str:
    return (await world.store.get(Pod, name, "runai-team-a")).status.phase


def number_of(tmp_path: Path) -> int:
    """A sleep that no other test has."""
    return 100_000 + abs(hash(str(tmp_path))) % 800_000


async def test_every_process_of_a_pod_is_its_own(world: World, tmp_path: Path) -> None:
    """Its command, a child of it and one that was left to itself belong to the pod; those of others do not."""
    number = number_of(tmp_path)
    async with world.agent() as runtime:
        script = f"sleep {number} & setsid sh -c 'sleep {number} &'; sleep {number}"
        uid = await started(world, shell("p-0-0", script))
        other = await started(world, shell("q-0-0", f"sleep {number + 1}"))
        mine, theirs = await asleep(number, 3), await asleep(number + 1)

        found = runtime.owners([*mine, *theirs, os.getpid(), 1, 1 << 22])

    assert found == dict.fromkeys(mine, uid) | dict.fromkeys(theirs, other)


@needs_root
async def test_namespaces_and_marks_hide_nothing(island: World, tmp_path: Path) -> None:
    """A process in namespaces of its own, with a neighbour's mark in its environment, is still its pod's."""
    number = number_of(tmp_path)
    async with island.agent() as runtime:
        other = await started(island, shell("q-0-0", "exec sleep 1000"))
        script = f"exec env -i ALIQUOT_POD={other} unshare -Urpf sleep {number}"
        uid = await started(island, shell("p-0-0", script))
        (pid,) = await asleep(number)

        assert runtime.owners([pid]) == {pid: uid}


async def test_a_command_in_a_pod_is_the_pods(world: World, tmp_path: Path) -> None:
    """What `runai exec` runs belongs to the pod."""
    number = number_of(tmp_path)
    async with world.agent() as runtime:
        made = await world.run(shell("p-0-0", "exec sleep 1000"))
        session = await runtime.exec(made, ["sleep", str(number)], tty=False, size=TerminalSize(24, 80))
        (pid,) = await asleep(number)

        assert runtime.owners([pid]) == {pid: made.metadata.uid}
        os.kill(pid, 9)
        await session.wait()
        await session.close()


async def test_one_process_is_ended_and_the_pod_goes_on(world: World, tmp_path: Path) -> None:
    """F12: only the process that was named dies; a process of another pod is not touched by this pod's name."""
    number = number_of(tmp_path)
    async with world.agent() as runtime:
        uid = await started(world, shell("p-0-0", f"sleep {number}; exec sleep {number + 1}"))
        (pid,) = await asleep(number)

        assert not runtime.kill_process("somebody-else", pid)
        assert runtime.kill_process(uid, pid)

        await asleep(number + 1)
        assert await phase(world, "p-0-0") == "Running"
