"""A log belongs to one pod, through all its restarts, and to no other pod of the same name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aliquot.backends.local.image_catalogue import Catalogue
from aliquot.backends.local.runner import Agent
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.backends.local.state_machine import Backoff
from aliquot.streams import LogOptions
from support.pods.agent_harness import DEVICES, AgentHarness, shell
from support.seeds.platform import PREFIX, Platform
from support.stores.running import running
from support.waiting import eventually

# Says which run it is; the third stays.
THREE_RUNS = "echo x >> runs; n=$(wc -l < runs); echo run $n; [ $n -ge 3 ] && exec sleep 1000; exit 1"
SECONDS = 60


async def gather(pieces: AsyncIterator[bytes], last: bytes) -> bytes:
    """The output up to a text."""
    seen = b""
    async with asyncio.timeout(SECONDS):
        async for piece in pieces:
            seen += piece
            if last in seen:
                break
    return seen


async def rest(pieces: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(SECONDS):
        return b"".join([piece async for piece in pieces])


async def test_following_goes_on_with_the_next_attempt(harness: AgentHarness) -> None:
    """A follower of an interactive pod reads each attempt completely, once and in order, until the pod is gone."""
    async with harness.agent() as runtime:
        seen = await harness.run(shell("p-0-0", "echo 0; " + THREE_RUNS, policy="Always"))
        pieces = runtime.logs(seen, LogOptions(follow=True))
        shown = await gather(pieces, b"run 3\n")
        assert b"0\nrun 1\n0\nrun 2\n0\nrun 3\n".endswith(shown)
        await harness.delete(seen, grace=0)
        assert await rest(pieces) == b""


async def test_following_between_two_attempts(harness: AgentHarness) -> None:
    """A follower that begins between two attempts reads the last one, and then the next one."""
    harness.backoff = Backoff(first=1.0, longest=1.0)
    async with harness.agent() as runtime:
        seen = await harness.create(shell("p-0-0", THREE_RUNS, policy="Always"))

        async def waits() -> bool:
            statuses = (await harness.see(seen)).status.container_statuses
            return bool(statuses) and statuses[0].state.waiting is not None and statuses[0].restart_count == 1

        await eventually(waits)
        pieces = runtime.logs(seen, LogOptions(follow=True))
        assert await gather(pieces, b"run 3\n") == b"run 2\nrun 3\n"
        await pieces.aclose()  # type: ignore[attr-defined]


async def test_following_ends_with_the_pod(harness: AgentHarness) -> None:
    """A pod that restarts only after failures is followed until it succeeds."""
    script = "echo x >> runs; n=$(wc -l < runs); echo run $n; [ $n -ge 3 ]"
    async with harness.agent() as runtime:
        seen = await harness.run(shell("p-0-0", script, policy="OnFailure"))
        shown = await rest(runtime.logs(seen, LogOptions(follow=True)))
        assert b"run 1\nrun 2\nrun 3\n".endswith(shown)
        assert shown.endswith(b"run 3\n")


async def test_following_waits_for_an_agent(harness: AgentHarness) -> None:
    """A log that is requested before a new platform has recovered its pods does not end."""
    async with harness.agent():
        seen = await harness.run(shell("p-0-0", "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"))
        await harness.printed(seen, "one")
    runtime = ProcessRuntime(harness.data, isolated=harness.isolated)
    pieces = runtime.logs(seen, LogOptions(follow=True))
    assert await gather(pieces, b"one\n") == b"one\n"
    (harness.data / "pods" / seen.metadata.uid / "work" / "go").touch()
    assert await gather(pieces, b"two\n") == b"two\n"
    last = asyncio.ensure_future(rest(pieces))
    async with running(runtime.run(), Agent(harness.store, DEVICES, runtime, Catalogue()).run()):
        assert await last == b""


async def test_logs_of_attempts_are_separate(harness: AgentHarness) -> None:
    """The log is that of the last attempt, `previous` that of the one before, also when that ended within a line."""
    script = "[ -e ran ] && { echo b; exec sleep 1000; }; touch ran; printf a; exit 1"
    async with harness.agent():
        seen = await harness.run(shell("p-0-0", script, policy="Always"))
        await harness.printed(seen, "b")
        assert await harness.log(seen) == "b\n"
        assert await harness.log(seen, tail_lines=5) == "b\n"
        assert await harness.log(seen, previous=True) == "a"


def test_same_name_another_pod(platform: Platform) -> None:
    """After delete and submit under one name, logs are the new job's, also while the old one still stops."""
    assert platform.sh("runai project set team-a").status == 0
    stubborn = "trap 'echo old stops' TERM; echo old; while :; do sleep 0.05; done"
    platform.submit("x", "team-a", f'-i ubuntu --command -- bash -c "{stubborn}"')
    old = platform.get(f"{PREFIX}/namespaces/runai-team-a/pods/x-0-0")["metadata"]["uid"]
    assert platform.sh("runai delete x").status == 0
    platform.wait_until_gone("x", "team-a")
    done = platform.sh("runai submit x -i ubuntu --command -- sh -c 'echo new' && runai logs -f x")
    assert (done.status, done.out.splitlines()[-1]) == (0, "new")
    assert "old" not in done.out
    new = platform.get(f"{PREFIX}/namespaces/runai-team-a/pods/x-0-0")["metadata"]["uid"]
    assert old != new
    path = f"{PREFIX}/namespaces/runai-team-a/pods/x-0-0/log"
    assert platform.get(f"{path}?uid={old}") is None
