"""The agent runs real pods: start, end, exit status, status."""

from __future__ import annotations

import asyncio
import sys

import pytest

from aliquot.api import DeviceShare, Node, devices_of
from support.pods.world import NODE, World, code, pod, shell
from support.stores.running import until


async def test_success(world: World) -> None:
    """A command that ends well leaves its pod Succeeded, with what it printed."""
    async with world.agent():
        ended, log = await world.finish(shell("p-0-0", "echo out; echo err >&2"))
    assert (ended.status.phase, code(ended)) == ("Succeeded", 0)
    assert log == "out\nerr\n"


async def test_failure(world: World) -> None:
    """A command's exit status is the pod's."""
    async with world.agent():
        ended, _ = await world.finish(shell("p-0-0", "exit 3"))
    assert (ended.status.phase, code(ended)) == ("Failed", 3)
    assert ended.status.container_statuses[0].state.terminated.reason == "Error"


async def test_killed_command(world: World) -> None:
    """A command that died of a signal says so as a shell does."""
    async with world.agent():
        ended, log = await world.finish(shell("p-0-0", "kill -9 $$"))
    assert code(ended) == 137
    assert log == ""


async def test_running_status(world: World) -> None:
    """A running pod is Ready, has a start time and an address."""
    async with world.agent():
        seen = await world.run(pod("p-0-0", "sleep", "infinity"))
    status = seen.status
    assert status.phase == "Running"
    assert {(c.type, c.status) for c in status.conditions} >= {("Ready", "True"), ("PodScheduled", "True")}
    assert status.container_statuses[0].state.running.started_at
    assert (status.start_time is not None, status.pod_ip, status.host_ip) == (True, "127.0.0.1", "127.0.0.1")


async def test_arguments_are_not_shell(world: World) -> None:
    """Words of a command reach the program as they are, whatever a shell would make of them."""
    words = ["$HOME", "a b", "`id`", "*", "", "'", '"', "; exit 9"]
    async with world.agent():
        _, log = await world.finish(pod("p-0-0", "printf", "[%s]", *words))
    assert log == "".join(f"[{word}]" for word in words)


async def test_builtin_names_are_programs(world: World) -> None:
    """A command with the name of a shell's built-in is the program of that name."""
    async with world.agent():
        ended = await world.phase(await world.create(pod("p-0-0", "exit", "0")), "Failed", "Succeeded")
    assert (ended.status.reason, ended.status.message) == ("ContainerCannotRun", "command not found: exit")


async def test_environment(world: World) -> None:
    """A pod sees its variables, those of its devices, and none of the platform's."""
    async with world.agent():
        wanted = shell("p-0-0", "env", env={"GREETING": "hello"}, shares=[DeviceShare(index=1, milli=500)])
        _, log = await world.finish(wanted)
    lines = log.splitlines()
    assert {"GREETING=hello", "HOSTNAME=p-0-0", "RUNAI_NUM_OF_GPUS=0.5", f"NVIDIA_VISIBLE_DEVICES=GPU-{NODE}-1"} <= {
        *lines
    }
    assert not [line for line in lines if line.startswith("PYTEST")]


async def test_signals_are_not_blocked(world: World) -> None:
    """A job starts with every signal in its default state, so that Python jobs can be interrupted."""
    script = "import signal; print([s.name for s in signal.valid_signals() if signal.getsignal(s) is signal.SIG_IGN])"
    async with world.agent():
        _, log = await world.finish(pod("p-0-0", sys.executable, "-c", script))
    assert log == "['SIGPIPE', 'SIGXFSZ']\n"  # Python's own habit


async def test_standard_streams_can_be_reopened(world: World) -> None:
    """Writing to /dev/stdout and /dev/stderr by name adds to the log."""
    async with world.agent():
        ended, log = await world.finish(shell("p-0-0", "echo one; echo two > /dev/stderr; echo three > /dev/stdout"))
    assert (code(ended), log) == (0, "one\ntwo\nthree\n")


async def test_command_not_found(world: World) -> None:
    """A command that does not exist fails its pod with a shell's words and exit status."""
    async with world.agent():
        ended = await world.phase(await world.create(pod("p-0-0", "no-such-command")), "Failed", "Succeeded")
    assert (ended.status.phase, ended.status.reason) == ("Failed", "ContainerCannotRun")
    assert ended.status.message == "command not found: no-such-command"
    assert code(ended) == 127


async def test_command_not_executable(world: World) -> None:
    """A file that is no program says so."""
    async with world.agent():
        ended = await world.phase(await world.create(pod("p-0-0", "/etc/passwd")), "Failed", "Succeeded")
    assert (ended.status.message, code(ended)) == ("permission denied: /etc/passwd", 126)


async def test_unknown_image(world: World) -> None:
    """An image that nobody described and that needs its own entrypoint fails with what to do."""
    async with world.agent():
        ended = await world.phase(await world.create(pod("p-0-0", image="acme/train")), "Failed", "Succeeded")
    assert ended.status.reason == "ErrImagePull"
    assert "not in the catalogue" in ended.status.message


async def test_nodes_are_registered(world: World) -> None:
    """The agent's nodes are in the store with their devices."""
    async with world.agent():

        async def there() -> bool:
            return len((await world.store.list(Node)).items) == 2

        await until(there)
    node = await world.store.get(Node, NODE)
    assert [device.memory_mib for device in devices_of(node)] == [32510, 32510]


async def test_taken_devices_are_refused(world: World) -> None:
    """A pod whose device is held by another is refused, and told by whom; the other goes on."""
    share = [DeviceShare(index=0, milli=600, memory_mib=19506)]
    async with world.agent():
        first = await world.run(pod("a-0-0", "sleep", "infinity", shares=share))
        second = await world.phase(await world.create(pod("b-0-0", "true", shares=share)), "Failed", "Succeeded")
        assert (await world.see(first)).status.phase == "Running"
    assert (second.status.phase, second.status.reason) == ("Failed", "UnexpectedAdmissionError")
    assert "runai-team-a/a-0-0" in second.status.message


async def test_interactive_pods_start_again(world: World) -> None:
    """An interactive pod that ends is started again in place; its folder stays, and the log before is kept."""
    async with world.agent():
        script = "echo x >> runs; echo run $(wc -l < runs); [ $(wc -l < runs) -ge 3 ] && exec sleep infinity; exit 1"
        seen = await world.run(shell("p-0-0", script, policy="Always"))
        await world.printed(seen, "run 3")

        async def steady() -> bool:
            status = (await world.see(seen)).status.container_statuses[0]
            return status.restart_count == 2 and status.state.running is not None

        await until(steady)
        assert await world.log(seen, previous=True) == "run 2\n"
    assert (await world.see(seen)).status.container_statuses[0].last_state.terminated.exit_code == 1


async def test_waiting_between_starts_is_shown(world: World) -> None:
    """While an interactive pod waits to be started again it says CrashLoopBackOff."""
    async with world.agent():
        seen = await world.create(shell("p-0-0", "exit 5", policy="Always"))

        async def waits() -> bool:
            statuses = (await world.see(seen)).status.container_statuses
            waiting = statuses[0].state.waiting if statuses else None
            return waiting is not None and waiting.reason == "CrashLoopBackOff"

        await until(waits)


@pytest.mark.parametrize("memory", ["64Mi"])
async def test_many_at_once(world: World, memory: str) -> None:
    """Pods that start together all end, each with its own log."""
    async with world.agent():
        wanted = [shell(f"p{i}-0-0", f"echo {i}", limits={"memory": memory}) for i in range(12)]
        ended = await asyncio.gather(*(world.finish(one) for one in wanted))
    assert [log for _, log in ended] == [f"{i}\n" for i in range(12)]
