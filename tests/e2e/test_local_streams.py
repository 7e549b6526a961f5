"""Exec, terminals and logs of local pods."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator

import pytest

from aliquot.backends.local.runtimes.exec_process import ExecProcess
from aliquot.backends.local.runtimes.process import LogLimits
from aliquot.errors import Conflict
from aliquot.streams import LogOptions, TerminalSize
from support.pods.agent_harness import AgentHarness, command_pod, shell
from support.waiting import eventually

SIZE = TerminalSize(rows=30, columns=100)


async def expect(output: AsyncIterator[tuple[int, bytes]], text: bytes) -> bytes:
    """Read until a text was printed."""
    seen = b""
    async with asyncio.timeout(20):
        async for _, data in output:
            seen += data
            if text in seen:
                return seen
    raise AssertionError(f"{text!r} not in {seen!r}")


async def all_of(session: ExecProcess) -> tuple[bytes, bytes]:
    pieces = [piece async for piece in session.output()]
    return tuple(b"".join(data for stream, data in pieces if stream == number) for number in (1, 2))  # type: ignore[return-value]


async def test_output_and_status(harness: AgentHarness) -> None:
    """A command's output, errors and exit status come back separately."""
    async with harness.agent() as runtime:
        seen = await harness.run(command_pod("p-0-0", "sleep", "infinity"))
        session = await runtime.exec(seen, ["sh", "-c", "echo out; echo err >&2; exit 4"], tty=False, size=SIZE)
        assert await all_of(session) == (b"out\n", b"err\n")
        assert await session.wait() == 4
        await session.close()


async def test_input(harness: AgentHarness) -> None:
    """Input reaches the command, and closing it ends the command's input."""
    async with harness.agent() as runtime:
        seen = await harness.run(command_pod("p-0-0", "sleep", "infinity"))
        session = await runtime.exec(seen, ["wc", "-c"], tty=False, size=SIZE)
        writing = asyncio.create_task(session.write(b"x" * 1_000_000))
        await writing
        await session.close_input()
        assert (await all_of(session))[0].strip() == b"1000000"
        await session.close()


async def test_a_command_that_does_not_exist(harness: AgentHarness) -> None:
    """A command that does not exist is refused at once."""
    async with harness.agent() as runtime:
        seen = await harness.run(command_pod("p-0-0", "sleep", "infinity"))
        with pytest.raises(Conflict, match="command not found: nope"):
            await runtime.exec(seen, ["nope"], tty=False, size=SIZE)


async def test_exec_in_a_finished_pod(harness: AgentHarness) -> None:
    """Exec in a pod that has ended is refused with the reason."""
    async with harness.agent() as runtime:
        ended, _ = await harness.finish(shell("p-0-0", "true"))
        with pytest.raises(Conflict, match="does not run: it has ended"):
            await runtime.exec(ended, ["bash"], tty=True, size=SIZE)


async def test_shell_prompt(harness: AgentHarness) -> None:
    """An interactive shell shows the pod's name and folder, and behaves as on any terminal."""
    async with harness.agent() as runtime:
        seen = await harness.run(command_pod("frac03-3-0-0", "sleep", "infinity"))
        session = await runtime.exec(seen, ["bash"], tty=True, size=SIZE)
        output = session.output()
        await expect(output, b"@frac03-3-0-0:/workload")
        await session.write(b"stty size; tty\n")
        assert b"/dev/pts/" in await expect(output, b"/dev/pts/")
        await session.write(b"exit 5\n")
        async for _ in output:
            pass
        assert await session.wait() == 5
        await session.close()


async def test_terminal_size(harness: AgentHarness) -> None:
    """A terminal has the size it was opened with, and is told of a new one."""
    async with harness.agent() as runtime:
        seen = await harness.run(command_pod("p-0-0", "sleep", "infinity"))
        script = "trap 'stty size; exit 0' WINCH; stty size; while :; do sleep 0.02; done"
        session = await runtime.exec(seen, ["bash", "-c", script], tty=True, size=SIZE)
        output = session.output()
        await expect(output, b"30 100")
        await session.resize(TerminalSize(rows=50, columns=132))
        await expect(output, b"50 132")
        await session.close()


async def test_interrupt(harness: AgentHarness) -> None:
    """Ctrl-C on a terminal interrupts the command."""
    async with harness.agent() as runtime:
        seen = await harness.run(command_pod("p-0-0", "sleep", "infinity"))
        session = await runtime.exec(seen, ["sh", "-c", "echo up; exec sleep 1000"], tty=True, size=SIZE)
        output = session.output()
        await expect(output, b"up")
        await session.write(b"\x03")
        async for _ in output:
            pass
        assert await session.wait() == 130
        await session.close()


async def test_hang_up(harness: AgentHarness) -> None:
    """When the reader disconnects, the command loses its terminal and ends."""
    async with harness.agent() as runtime:
        seen = await harness.run(command_pod("p-0-0", "sleep", "infinity"))
        session = await runtime.exec(seen, ["sh", "-c", "echo up; exec sleep 1000"], tty=True, size=SIZE)
        await expect(session.output(), b"up")
        await session.close()
        async with asyncio.timeout(20):
            assert await session.wait() == 129


async def test_never_started(harness: AgentHarness) -> None:
    """The log of a pod that never ran is refused with the reason."""
    async with harness.agent():
        ended = await harness.phase(await harness.create(command_pod("p-0-0", image="acme/x")), "Failed")
        with pytest.raises(Conflict, match="not in the catalogue"):
            await harness.log(ended)


async def test_tail(harness: AgentHarness) -> None:
    """A log can be limited to its last lines."""
    async with harness.agent():
        ended, _ = await harness.finish(shell("p-0-0", "seq 30000"))
        assert await harness.log(ended, tail_lines=3) == "29998\n29999\n30000\n"
        assert await harness.log(ended, tail_lines=0) == ""
        assert (await harness.log(ended, tail_lines=99999)).count("\n") == 30000
        assert await harness.log(ended, limit_bytes=4) == "1\n2\n"


async def test_follow_to_the_end(harness: AgentHarness) -> None:
    """A follower reads each line as it is printed, and ends with the pod."""
    async with harness.agent() as runtime:
        seen = await harness.run(shell("p-0-0", "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"))
        pieces = runtime.logs(seen, LogOptions(follow=True))
        assert await anext(pieces) == b"one\n"
        (harness.data / "pods" / seen.metadata.uid / "work" / "go").touch()
        assert b"".join([piece async for piece in pieces]) == b"two\n"


async def test_times(harness: AgentHarness) -> None:
    """Lines have times, and lines before a given time can be left out."""
    async with harness.agent():
        seen = await harness.run(
            shell("p-0-0", "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; sleep 1000")
        )
        await harness.printed(seen, "one")
        timestamps = harness.data / "pods" / seen.metadata.uid / "log.marks"

        async def marked() -> bool:
            return timestamps.exists() and time.time() > timestamps.stat().st_mtime + 0.05

        await eventually(marked)
        moment = time.time()
        (harness.data / "pods" / seen.metadata.uid / "work" / "go").touch()
        await harness.printed(seen, "two")
        assert await harness.log(seen, since=moment) == "two\n"
        lines = (await harness.log(seen, timestamps=True)).splitlines()
    assert [line.split()[1] for line in lines] == ["one", "two"]
    assert lines[0].split()[0] < lines[1].split()[0]


async def test_a_flood_does_not_fill_the_disk(harness: AgentHarness) -> None:
    """A job that prints without end has a bounded log: the newest output, in whole lines."""
    harness.log_limits = LogLimits(chunk=1 << 20, chunks=2)
    count = 1_200_000 if os.environ.get("ALIQUOT_SOAK") else 400_000
    script = f"for i in range({count}): print(f'{{i:0100}}')"
    async with harness.agent():
        ended, log = await harness.finish(command_pod("p-0-0", sys.executable, "-c", script))
        path = harness.data / "pods" / ended.metadata.uid / "log"
        assert path.stat().st_size == count * 101
        assert path.stat().st_blocks * 512 < 3 << 20
    lines = log.splitlines()
    assert [int(line) for line in lines] == list(range(count - len(lines), count))
    assert 1 << 20 <= len(log) <= 2 << 20
