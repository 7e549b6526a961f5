"""Pods run on while the platform is down, and the next one finds them."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import time

from aliquot.api.pod import ContainerState
from aliquot.backends.local.runtimes import syscalls
from aliquot.backends.local.state_machine import Backoff
from support.pods.agent_harness import AgentHarness, code, command_pod, shell
from support.waiting import eventually


async def test_running_pods_are_recovered(harness: AgentHarness) -> None:
    """A pod that runs when the platform ends is recovered with the same process."""
    async with harness.agent():
        seen = await harness.run(shell("p-0-0", "echo $PPID start; sleep infinity"))
        await harness.printed(seen, "start")
    before = (harness.data / "pods" / seen.metadata.uid / "state.json").read_text()
    async with harness.agent():
        other = await harness.run(command_pod("q-0-0", "sleep", "infinity"))
        assert (await harness.see(seen)).status.phase == "Running"
        assert (harness.data / "pods" / seen.metadata.uid / "state.json").read_text() == before
        assert (await harness.log(seen)).count("start") == 1
        await harness.delete(seen)
        await harness.gone(seen)
    assert other.status.phase == "Running"


async def test_end_while_the_platform_is_down(harness: AgentHarness) -> None:
    """The exit status and the log of a pod that ended while no platform ran are known afterwards."""
    async with harness.agent():
        seen = await harness.run(shell("p-0-0", "while [ ! -e go ]; do sleep 0.02; done; echo last words; exit 7"))
    folder = harness.data / "pods" / seen.metadata.uid
    (folder / "work" / "go").touch()
    state = json.loads((folder / "state.json").read_text())
    await eventually(lambda: _over(state["pid"]))
    async with harness.agent():
        ended = await harness.phase(seen, "Failed", "Succeeded")
        assert await harness.log(ended) == "last words\n"
    assert code(ended) == 7


async def _over(pid: int) -> bool:
    return not syscalls.start_time(pid)


async def test_supervisor_killed(harness: AgentHarness) -> None:
    """A pod whose supervisor was killed from outside has failed, and nothing of it is left."""
    async with harness.agent():
        seen = await harness.run(command_pod("p-0-0", "sleep", "1000"))
        state = json.loads((harness.data / "pods" / seen.metadata.uid / "state.json").read_text())
        import os

        os.kill(state["pid"], signal.SIGKILL)
        ended = await harness.phase(seen, "Failed", "Succeeded")
        assert not syscalls.pids_with_variable(f"ALIQUOT_POD={seen.metadata.uid}".encode())
    assert code(ended) == 137


async def test_deleted_while_the_platform_was_down(harness: AgentHarness) -> None:
    """A pod that was deleted by force while no platform ran is killed at the next start."""
    async with harness.agent():
        seen = await harness.run(command_pod("p-0-0", "sleep", "infinity"))
    await harness.delete(seen, grace=0)
    async with harness.agent():
        await harness.gone(seen)
    assert not syscalls.pids_with_variable(f"ALIQUOT_POD={seen.metadata.uid}".encode())


async def test_running_pods_keep_their_devices(harness: AgentHarness) -> None:
    """After a restart a running pod keeps its devices, although another pod was bound to them meanwhile."""
    from aliquot.api import DeviceShare

    share = [DeviceShare(index=0, milli=1000)]
    async with harness.agent():
        old = await harness.run(command_pod("z-0-0", "sleep", "infinity", shares=share))
    new = await harness.create(command_pod("a-0-0", "true", shares=share))
    async with harness.agent():
        refused = await harness.phase(new, "Failed", "Succeeded")
        assert (await harness.see(old)).status.phase == "Running"
    assert refused.status.reason == "UnexpectedAdmissionError"


async def test_killed_launchers_never_start_twice(harness: AgentHarness) -> None:
    """However often a platform is interrupted while it starts a pod, the pod runs once."""
    script = "echo started; sleep infinity"
    seen = await harness.create(shell("p-0-0", script))
    for pause in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15):
        async with harness.agent():
            await asyncio.sleep(pause)  # not to wait for anything: to be cut off at another moment
    async with harness.agent():
        await harness.phase(seen, "Running")
        assert await harness.printed(seen, "started") == "started\n"


async def test_no_gap_in_the_log(harness: AgentHarness) -> None:
    """A job that prints while platforms come and go has every line in its log, once and in order."""
    count = 20_000
    seen = await harness.create(
        command_pod("p-0-0", sys.executable, "-c", f"for i in range({count}): print(i, flush=True)")
    )
    for _ in range(5):
        async with harness.agent():
            await asyncio.sleep(0.05)  # as above
    async with harness.agent():
        ended = await harness.phase(seen, "Succeeded", "Failed")
        log = await harness.log(ended)
    assert log == "".join(f"{i}\n" for i in range(count))


async def test_interrupted_between_two_attempts(harness: AgentHarness) -> None:
    """A platform that ends at the moment a pod is due to restart ends without an error."""
    harness.backoff = Backoff(first=0.3, longest=0.3)
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with harness.agent():
        seen = await harness.create(shell("p-0-0", "exit 1", policy="Always"))

        async def waits() -> bool:
            statuses = (await harness.see(seen)).status.container_statuses
            return (
                bool(statuses) and statuses[0].state.waiting is not None and statuses[0].last_state != ContainerState()
            )

        await eventually(waits)
        # Nobody gets a turn until the timer is due: then both the end and the timer come at once.
        time.sleep(0.4)  # noqa: ASYNC251
    gc.collect()  # work that was begun and dropped complains when it is collected
    assert complaints == []
