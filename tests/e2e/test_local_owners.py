"""Which pod a process belongs to: found by facts of the kernel, also when a pod tries to hide it."""

from __future__ import annotations

import os
from pathlib import Path

from aliquot.api import Pod
from aliquot.backends.local.runtimes import syscalls
from aliquot.streams import TerminalSize
from support.pods.agent_harness import AgentHarness, needs_root, shell
from support.waiting import eventually


def sleepers(number: int) -> list[int]:
    """Processes of this machine that sleep for this long; each test uses another number."""

    def sleeps(pid: int) -> bool:
        program, *words = syscalls.command_line(pid).split(b"\0")
        return os.path.basename(program) == b"sleep" and words == [str(number).encode(), b""]

    return [pid for pid in syscalls.pids() if sleeps(pid)]


async def asleep(number: int, count: int = 1) -> list[int]:
    async def there() -> bool:
        return len(sleepers(number)) == count

    await eventually(there)
    return sleepers(number)


async def started(harness: AgentHarness, wanted: Pod) -> str:
    return (await harness.run(wanted)).metadata.uid


async def phase(harness: AgentHarness, name: str) -> str:
    return (await harness.store.get(Pod, name, "runai-team-a")).status.phase


def number_of(tmp_path: Path) -> int:
    """A sleep that no other test has."""
    return 100_000 + abs(hash(str(tmp_path))) % 800_000


async def test_every_process_of_a_pod_is_found(harness: AgentHarness, tmp_path: Path) -> None:
    """The command, its child and an orphan belong to the pod; processes of other pods do not."""
    number = number_of(tmp_path)
    async with harness.agent() as runtime:
        script = f"sleep {number} & setsid sh -c 'sleep {number} &'; sleep {number}"
        uid = await started(harness, shell("p-0-0", script))
        other = await started(harness, shell("q-0-0", f"sleep {number + 1}"))
        own, theirs = await asleep(number, 3), await asleep(number + 1)

        owners = runtime.owners([*own, *theirs, os.getpid(), 1, 1 << 22])

    assert owners == dict.fromkeys(own, uid) | dict.fromkeys(theirs, other)


@needs_root
async def test_namespaces_and_variables_hide_nothing(isolated_harness: AgentHarness, tmp_path: Path) -> None:
    """A process in namespaces of its own, with another pod's variable in its environment, still belongs to its pod."""
    number = number_of(tmp_path)
    async with isolated_harness.agent() as runtime:
        other = await started(isolated_harness, shell("q-0-0", "exec sleep 1000"))
        script = f"exec env -i ALIQUOT_POD={other} unshare -Urpf sleep {number}"
        uid = await started(isolated_harness, shell("p-0-0", script))
        (pid,) = await asleep(number)

        assert runtime.owners([pid]) == {pid: uid}


async def test_exec_belongs_to_the_pod(harness: AgentHarness, tmp_path: Path) -> None:
    """A process that `runai exec` starts belongs to the pod."""
    number = number_of(tmp_path)
    async with harness.agent() as runtime:
        made = await harness.run(shell("p-0-0", "exec sleep 1000"))
        session = await runtime.exec(made, ["sleep", str(number)], tty=False, size=TerminalSize(24, 80))
        (pid,) = await asleep(number)

        assert runtime.owners([pid]) == {pid: made.metadata.uid}
        os.kill(pid, 9)
        await session.wait()
        await session.close()


async def test_one_process_is_killed_and_the_pod_goes_on(harness: AgentHarness, tmp_path: Path) -> None:
    """F12: only the given process is killed; a process of another pod is not killed under this pod's uid."""
    number = number_of(tmp_path)
    async with harness.agent() as runtime:
        uid = await started(harness, shell("p-0-0", f"sleep {number}; exec sleep {number + 1}"))
        (pid,) = await asleep(number)

        assert not runtime.kill_process("somebody-else", pid)
        assert runtime.kill_process(uid, pid)

        await asleep(number + 1)
        assert await phase(harness, "p-0-0") == "Running"
