"""The agent runs real pods: start, end, exit status, status."""

from __future__ import annotations

import asyncio
import sys

import pytest

from aliquot.api import DeviceShare, Node, devices_of
from support.pods.agent_harness import NODE, AgentHarness, code, command_pod, shell
from support.waiting import eventually


async def test_success(harness: AgentHarness) -> None:
    """A command that succeeds leaves its pod Succeeded, with its output in the log."""
    async with harness.agent():
        ended, log = await harness.finish(shell("p-0-0", "echo out; echo err >&2"))
    assert (ended.status.phase, code(ended)) == ("Succeeded", 0)
    assert log == "out\nerr\n"


async def test_failure(harness: AgentHarness) -> None:
    """A command's exit status is the pod's."""
    async with harness.agent():
        ended, _ = await harness.finish(shell("p-0-0", "exit 3"))
    assert (ended.status.phase, code(ended)) == ("Failed", 3)
    terminated = ended.status.container_statuses[0].state.terminated
    assert terminated is not None
    assert terminated.reason == "Error"


async def test_killed_command(harness: AgentHarness) -> None:
    """A command that was killed by a signal has a shell's exit status."""
    async with harness.agent():
        ended, log = await harness.finish(shell("p-0-0", "kill -9 $$"))
    assert code(ended) == 137
    assert log == ""


async def test_running_status(harness: AgentHarness) -> None:
    """A running pod is Ready, has a start time and an address."""
    async with harness.agent():
        seen = await harness.run(command_pod("p-0-0", "sleep", "infinity"))
    status = seen.status
    assert status.phase == "Running"
    assert {(c.type, c.status) for c in status.conditions} >= {("Ready", "True"), ("PodScheduled", "True")}
    running = status.container_statuses[0].state.running
    assert running is not None
    assert running.started_at
    assert (status.start_time is not None, status.pod_ip, status.host_ip) == (True, "127.0.0.1", "127.0.0.1")


async def test_arguments_are_not_shell(harness: AgentHarness) -> None:
    """Arguments reach the program unchanged, whatever a shell would make of them."""
    words = ["$HOME", "a b", "`id`", "*", "", "'", '"', "; exit 9"]
    async with harness.agent():
        _, log = await harness.finish(command_pod("p-0-0", "printf", "[%s]", *words))
    assert log == "".join(f"[{word}]" for word in words)


async def test_builtin_names_are_programs(harness: AgentHarness) -> None:
    """A command with the name of a shell built-in runs the program of that name."""
    async with harness.agent():
        ended = await harness.phase(await harness.create(command_pod("p-0-0", "exit", "0")), "Failed", "Succeeded")
    assert (ended.status.reason, ended.status.message) == ("ContainerCannotRun", "command not found: exit")


async def test_environment(harness: AgentHarness) -> None:
    """A pod sees its variables, those of its devices, and none of the platform's."""
    async with harness.agent():
        wanted = shell("p-0-0", "env", env={"GREETING": "hello"}, shares=[DeviceShare(index=1, milli=500)])
        _, log = await harness.finish(wanted)
    lines = log.splitlines()
    assert {"GREETING=hello", "HOSTNAME=p-0-0", "RUNAI_NUM_OF_GPUS=0.5", f"NVIDIA_VISIBLE_DEVICES=GPU-{NODE}-1"} <= {
        *lines
    }
    assert not [line for line in lines if line.startswith("PYTEST")]


async def test_signals_are_not_blocked(harness: AgentHarness) -> None:
    """A job starts with every signal in its default state, so that Python jobs can be interrupted."""
    script = "import signal; print([s.name for s in signal.valid_signals() if signal.getsignal(s) is signal.SIG_IGN])"
    async with harness.agent():
        _, log = await harness.finish(command_pod("p-0-0", sys.executable, "-c", script))
    assert log == "['SIGPIPE', 'SIGXFSZ']\n"  # Python's own habit


async def test_standard_streams_can_be_reopened(harness: AgentHarness) -> None:
    """Writing to /dev/stdout and /dev/stderr by name adds to the log."""
    async with harness.agent():
        ended, log = await harness.finish(shell("p-0-0", "echo one; echo two > /dev/stderr; echo three > /dev/stdout"))
    assert (code(ended), log) == (0, "one\ntwo\nthree\n")


async def test_command_not_found(harness: AgentHarness) -> None:
    """A command that does not exist fails its pod with a shell's message and exit status."""
    async with harness.agent():
        ended = await harness.phase(
            await harness.create(command_pod("p-0-0", "no-such-command")), "Failed", "Succeeded"
        )
    assert (ended.status.phase, ended.status.reason) == ("Failed", "ContainerCannotRun")
    assert ended.status.message == "command not found: no-such-command"
    assert code(ended) == 127


async def test_command_not_executable(harness: AgentHarness) -> None:
    """A file that is not executable fails its pod with a shell's message."""
    async with harness.agent():
        ended = await harness.phase(await harness.create(command_pod("p-0-0", "/etc/passwd")), "Failed", "Succeeded")
    assert (ended.status.message, code(ended)) == ("permission denied: /etc/passwd", 126)


async def test_unknown_image(harness: AgentHarness) -> None:
    """An image that is not in the catalogue and has no command fails, and the message says what to do."""
    async with harness.agent():
        ended = await harness.phase(
            await harness.create(command_pod("p-0-0", image="acme/train")), "Failed", "Succeeded"
        )
    assert ended.status.reason == "ErrImagePull"
    assert "not in the catalogue" in ended.status.message


async def test_nodes_are_registered(harness: AgentHarness) -> None:
    """The agent's nodes are in the store with their devices."""
    async with harness.agent():

        async def there() -> bool:
            return len((await harness.store.list(Node)).items) == 2

        await eventually(there)
    node = await harness.store.get(Node, NODE)
    assert [device.memory_mib for device in devices_of(node)] == [32510, 32510]


async def test_taken_devices_are_refused(harness: AgentHarness) -> None:
    """A pod whose device another pod holds is refused, with the holder's name; the holder goes on."""
    share = [DeviceShare(index=0, milli=600, memory_mib=19506)]
    async with harness.agent():
        first = await harness.run(command_pod("a-0-0", "sleep", "infinity", shares=share))
        second = await harness.phase(
            await harness.create(command_pod("b-0-0", "true", shares=share)), "Failed", "Succeeded"
        )
        assert (await harness.see(first)).status.phase == "Running"
    assert (second.status.phase, second.status.reason) == ("Failed", "UnexpectedAdmissionError")
    assert "runai-team-a/a-0-0" in second.status.message


async def test_interactive_pods_restart(harness: AgentHarness) -> None:
    """An interactive pod that ends restarts in place; its folder and its previous log are kept."""
    async with harness.agent():
        script = "echo x >> runs; echo run $(wc -l < runs); [ $(wc -l < runs) -ge 3 ] && exec sleep infinity; exit 1"
        seen = await harness.run(shell("p-0-0", script, policy="Always"))
        await harness.printed(seen, "run 3")

        async def steady() -> bool:
            status = (await harness.see(seen)).status.container_statuses[0]
            return status.restart_count == 2 and status.state.running is not None

        await eventually(steady)
        assert await harness.log(seen, previous=True) == "run 2\n"
    terminated = (await harness.see(seen)).status.container_statuses[0].last_state.terminated
    assert terminated is not None
    assert terminated.exit_code == 1


async def test_crash_loop_backoff_is_shown(harness: AgentHarness) -> None:
    """While an interactive pod waits for its restart, its state is CrashLoopBackOff."""
    async with harness.agent():
        seen = await harness.create(shell("p-0-0", "exit 5", policy="Always"))

        async def waits() -> bool:
            statuses = (await harness.see(seen)).status.container_statuses
            waiting = statuses[0].state.waiting if statuses else None
            return waiting is not None and waiting.reason == "CrashLoopBackOff"

        await eventually(waits)


@pytest.mark.parametrize("memory", ["64Mi"])
async def test_many_at_once(harness: AgentHarness, memory: str) -> None:
    """Pods that start together all end, each with its own log."""
    async with harness.agent():
        wanted = [shell(f"p{i}-0-0", f"echo {i}", limits={"memory": memory}) for i in range(12)]
        ended = await asyncio.gather(*(harness.finish(pod) for pod in wanted))
    assert [log for _, log in ended] == [f"{i}\n" for i in range(12)]
