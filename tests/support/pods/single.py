"""One pod, started by a runtime alone: without a store, and with whatever injection a test wants."""

from __future__ import annotations

import asyncio
import uuid

from aliquot.backends.local.runtime import Launch, PodAssignment, Started, Volume
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.gpu.injection import Injection
from support.pods.world import NODE, World
from support.stores.running import running

# A pod without a PID namespace is known by this uid alone. Tests that run side by side must not share it: the cleanup
# of one test would kill the processes of the other.
UID = str(uuid.uuid4())


async def said(world: World, script: str, injection: Injection, volumes: tuple[Volume, ...] = ()) -> str:
    """What a pod with this injection prints."""
    assignment = PodAssignment(UID, "runai-team-a", "p-0-0", NODE)
    runtime = ProcessRuntime(world.data, isolated=world.isolated)
    over = asyncio.Event()
    runtime.on_end = lambda uid, ended: over.set()
    async with running(runtime.run()):
        found = await runtime.start(Launch(assignment, 0, ("sh", "-c", script), injection=injection, volumes=volumes))
        if isinstance(found, Started):  # else it has ended before anybody could watch
            async with asyncio.timeout(60):
                await over.wait()
    return (world.data / "pods" / assignment.uid / "log").read_text()
