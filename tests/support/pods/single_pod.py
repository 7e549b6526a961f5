"""One pod, started by a runtime alone: without a store, and with any injection."""

from __future__ import annotations

import asyncio
import uuid

from aliquot.backends.local.runtime import Launch, PodAssignment, Started, Volume
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.gpu.injection import Injection
from support.pods.agent_harness import NODE, AgentHarness
from support.stores.running import running

# A pod without a PID namespace is known by this uid alone. Tests that run side by side must not share it: the cleanup
# of one test would kill the processes of the other.
UID = str(uuid.uuid4())


async def pod_output(harness: AgentHarness, script: str, injection: Injection, volumes: tuple[Volume, ...] = ()) -> str:
    """The output of a pod with this injection."""
    assignment = PodAssignment(UID, "runai-team-a", "p-0-0", NODE)
    runtime = ProcessRuntime(harness.data, isolated=harness.isolated)
    pod_ended = asyncio.Event()
    runtime.on_end = lambda uid, ended: pod_ended.set()
    async with running(runtime.run()):
        result = await runtime.start(Launch(assignment, 0, ("sh", "-c", script), injection=injection, volumes=volumes))
        if isinstance(result, Started):  # otherwise it has ended already
            async with asyncio.timeout(60):
                await pod_ended.wait()
    return (harness.data / "pods" / assignment.uid / "log").read_text()
