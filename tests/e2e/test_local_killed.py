"""kill -9 of the platform at any moment: every pod runs once, and is recovered."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

from aliquot.backends.local.runtimes import syscalls
from support.pods.agent_harness import AgentHarness
from support.waiting import eventually

TESTS = Path(__file__).resolve().parent.parent
KILLS = 40 if os.environ.get("ALIQUOT_SOAK") else 6


class Platform:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout

    @classmethod
    async def start(cls, harness: AgentHarness) -> Platform:
        mode = "root" if harness.isolated else "user"
        path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "support.pods.killable_platform", str(harness.data), mode,
            env={**os.environ, "PYTHONPATH": path}, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        platform = cls(process)
        assert await platform.answer() == {"ready": True}
        return platform

    async def answer(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            return dict(json.loads(await self._stdout.readline()))

    def send(self, request: dict[str, Any]) -> None:
        self._stdin.write(json.dumps(request).encode() + b"\n")

    async def kill(self) -> list[str]:
        """The names of what it had acknowledged and nobody had read yet."""
        self._process.kill()
        rest = (await self._stdout.read()).decode()
        await self._process.wait()
        return [json.loads(line)["created"] for line in rest.splitlines()]


async def test_killed_at_any_moment(harness: AgentHarness) -> None:
    """Pods that were acknowledged run exactly once, however often the platform is killed."""
    chance = random.Random(4)
    acknowledged: list[str] = []
    for kill in range(KILLS):
        platform = await Platform.start(harness)
        for number in range(3):
            platform.send({"create": f"p{kill}-{number}-0-0"})
        await asyncio.sleep(chance.uniform(0.0, 0.3))  # the moment of the kill
        acknowledged += await platform.kill()
    platform = await Platform.start(harness)
    # One for sure: on a busy machine each kill may come before the first pod.
    platform.send({"create": "last-0-0"})
    acknowledged.append((await platform.answer())["created"])
    seen: dict[str, Any] = {}

    async def all_run() -> bool:
        platform.send({"list": True})
        seen.clear()
        seen.update(await platform.answer())
        return set(seen.values()) == {"Running"}

    try:
        await eventually(all_run)
    except TimeoutError:
        raise AssertionError(f"not all run: {seen}") from None
    platform.send({"list": True})
    uids = list(await platform.answer())
    for uid in uids:
        await eventually(partial(_begun, uid))  # Running is reported before the first line is written
        assert sorted(_programs(uid)) == ["sh", "sleep"]  # its supervisor and its command
    for uid in uids:
        assert (harness.data / "pods" / uid / "log").read_text() == "started\n"  # once
    assert len(uids) >= len(acknowledged)
    await platform.kill()
    print(f"kills {KILLS}, pods {len(uids)}, acknowledged {len(acknowledged)}")


async def _begun(uid: str) -> bool:
    """The shell has printed its line and become the command."""
    return "sleep" in _programs(uid)


def _programs(uid: str) -> list[str]:
    return [_program(pid) for pid in syscalls.pids_with_variable(f"ALIQUOT_POD={uid}".encode())]


def _program(pid: int) -> str:
    return Path(os.readlink(f"/proc/{pid}/exe")).name.replace("dash", "sh").replace("bash", "sh")
