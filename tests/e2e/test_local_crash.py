"""The platform goes and comes; pods do not notice."""

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
from support.pods.world import World, pod, shell
from support.stores.running import until


async def test_running_pods_are_found_again(world: World) -> None:
    """A pod that runs when the platform ends is the same process for the next one."""
    async with world.agent():
        seen = await world.run(shell("p-0-0", "echo $PPID start; sleep infinity"))
        await world.printed(seen, "start")
    before = (world.data / "pods" / seen.metadata.uid / "state.json").read_text()
    async with world.agent():
        other = await world.run(pod("q-0-0", "sleep", "infinity"))
        assert (await world.see(seen)).status.phase == "Running"
        assert (world.data / "pods" / seen.metadata.uid / "state.json").read_text() == before
        assert (await world.log(seen)).count("start") == 1
        await world.delete(seen)
        await world.gone(seen)
    assert other.status.phase == "Running"


async def test_end_while_the_platform_is_away(world: World) -> None:
    """The exit status and the log of a pod that ended while nobody looked are known afterwards."""
    async with world.agent():
        seen = await world.run(shell("p-0-0", "while [ ! -e go ]; do sleep 0.02; done; echo last words; exit 7"))
    folder = world.data / "pods" / seen.metadata.uid
    (folder / "work" / "go").touch()
    state = json.loads((folder / "state.json").read_text())
    await until(lambda: _over(state["pid"]))
    async with world.agent():
        ended = await world.phase(seen, "Failed", "Succeeded")
        assert await world.log(ended) == "last words\n"
    assert ended.status.container_statuses[0].state.terminated.exit_code == 7


async def _over(pid: int) -> bool:
    return not syscalls.start_time(pid)


async def test_supervisor_killed(world: World) -> None:
    """A pod whose supervisor was killed from outside has failed, and nothing of it is left."""
    async with world.agent():
        seen = await world.run(pod("p-0-0", "sleep", "1000"))
        state = json.loads((world.data / "pods" / seen.metadata.uid / "state.json").read_text())
        import os

        os.kill(state["pid"], signal.SIGKILL)
        ended = await world.phase(seen, "Failed", "Succeeded")
        assert not syscalls.pids_with_variable(f"ALIQUOT_POD={seen.metadata.uid}".encode())
    assert ended.status.container_statuses[0].state.terminated.exit_code == 137


async def test_deleted_while_the_platform_was_away(world: World) -> None:
    """A pod that was deleted by force while nobody looked is ended at the next start."""
    async with world.agent():
        seen = await world.run(pod("p-0-0", "sleep", "infinity"))
    await world.delete(seen, grace=0)
    async with world.agent():
        await world.gone(seen)
    assert not syscalls.pids_with_variable(f"ALIQUOT_POD={seen.metadata.uid}".encode())


async def test_what_runs_keeps_its_devices(world: World) -> None:
    """After a restart a running pod keeps what it holds, although another was placed there meanwhile."""
    from aliquot.api import DeviceShare

    share = [DeviceShare(index=0, milli=1000)]
    async with world.agent():
        old = await world.run(pod("z-0-0", "sleep", "infinity", shares=share))
    new = await world.create(pod("a-0-0", "true", shares=share))
    async with world.agent():
        refused = await world.phase(new, "Failed", "Succeeded")
        assert (await world.see(old)).status.phase == "Running"
    assert refused.status.reason == "UnexpectedAdmissionError"


async def test_killed_launchers_never_start_twice(world: World) -> None:
    """However often a platform is cut off while it starts a pod, the pod runs once."""
    script = "echo started; sleep infinity"
    seen = await world.create(shell("p-0-0", script))
    for pause in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15):
        async with world.agent():
            await asyncio.sleep(pause)  # not to wait for anything: to be cut off at another moment
    async with world.agent():
        await world.phase(seen, "Running")
        assert await world.printed(seen, "started") == "started\n"


async def test_no_gap_in_the_log(world: World) -> None:
    """A job that prints while platforms come and go has every line in its log, once and in order."""
    count = 20_000
    seen = await world.create(pod("p-0-0", sys.executable, "-c", f"for i in range({count}): print(i, flush=True)"))
    for _ in range(5):
        async with world.agent():
            await asyncio.sleep(0.05)  # as above
    async with world.agent():
        ended = await world.phase(seen, "Succeeded", "Failed")
        log = await world.log(ended)
    assert log == "".join(f"{i}\n" for i in range(count))


async def test_cut_off_between_two_starts(world: World) -> None:
    """A platform that ends at the moment a pod is due to be started again ends without a complaint."""
    world.backoff = Backoff(first=0.3, longest=0.3)
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with world.agent():
        seen = await world.create(shell("p-0-0", "exit 1", policy="Always"))

        async def waits() -> bool:
            statuses = (await world.see(seen)).status.container_statuses
            return (
                bool(statuses) and statuses[0].state.waiting is not None and statuses[0].last_state != ContainerState()
            )

        await until(waits)
        # Nobody gets a turn until the timer is due: then both the end and the timer come at once.
        time.sleep(0.4)  # noqa: ASYNC251
    gc.collect()  # work that was begun and dropped complains when it is collected
    assert complaints == []
