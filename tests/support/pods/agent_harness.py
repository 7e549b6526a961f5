"""An agent that runs real processes over a store in memory, and pods for it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aliquot import labels
from aliquot.api import Container, Device, DeviceShare, Metadata, Namespace, Owner, Pod, Workload, shares_text
from aliquot.api.pod import EnvVar, PodSpec, Resources, VolumeMount
from aliquot.backends.local.devices.node_devices import NodeFacts
from aliquot.backends.local.devices.simulated import SimulatedDevices
from aliquot.backends.local.image_catalogue import Catalogue
from aliquot.backends.local.runner import Agent
from aliquot.backends.local.runtimes.process import LogLimits, ProcessRuntime
from aliquot.backends.local.state_machine import Backoff
from aliquot.errors import Exists, NotFound
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.typed_store import Store
from aliquot.streams import LogOptions
from support.stores.running import running
from support.waiting import eventually

NODE = "node-1"
DEVICES = SimulatedDevices(
    [
        NodeFacts(
            name=name,
            devices=tuple(Device(index=i, uuid=f"GPU-{name}-{i}", memory_mib=32510) for i in range(2)),
            cpu=8000,
            memory=1 << 34,
            simulated=True,
        )
        for name in (NODE, "node-2")
    ]
)

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and not os.environ.get("CI"), reason="needs root: only root can isolate pods"
)


def command_pod(
    name: str,
    *argv: str,
    namespace: str = "runai-team-a",
    policy: str = "Never",
    grace: int = 30,
    shares: Sequence[DeviceShare] = (),
    env: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    volumes: Sequence[dict[str, object]] = (),
    mounts: dict[str, str] | None = None,
    image: str = "ubuntu",
    node: str = NODE,
    workload: Workload | None = None,
) -> Pod:
    """A pod that runs a command."""
    container = Container(
        name="main",
        image=image,
        command=tuple(argv),
        env=tuple(EnvVar(name=key, value=value) for key, value in (env or {}).items()),
        resources=Resources(limits=limits or {}),
        volume_mounts=tuple(VolumeMount(name=key, mount_path=path) for key, path in (mounts or {}).items()),
    )
    spec = PodSpec(
        containers=(container,),
        node_name=node,
        restart_policy=policy,
        termination_grace_period_seconds=grace,
        volumes=tuple(volumes),
    )
    annotations = {labels.DEVICES: shares_text(shares)} if shares else {}
    owners = () if workload is None else (owned_by(workload),)
    metadata = Metadata(name=name, namespace=namespace, annotations=annotations, owners=owners)
    return Pod(metadata=metadata, spec=spec)


def owned_by(workload: Workload) -> Owner:
    meta = workload.metadata
    return Owner(api_version=labels.API_VERSION, kind="Workload", name=meta.name, uid=meta.uid, controller=True)


def shell(name: str, script: str, **more: object) -> Pod:
    return command_pod(name, "sh", "-c", script, **more)  # type: ignore[arg-type]


@dataclass
class AgentHarness:
    data: Path
    isolated: bool
    store: Store = field(default_factory=lambda: Store(MemoryDriver()))
    log_limits: LogLimits = field(default_factory=LogLimits)
    host_paths: tuple[str, ...] = ()
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.05, longest=0.2))
    runtime: ProcessRuntime = field(init=False)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[ProcessRuntime]:
        """A running agent. Leaving the context cancels everything, as a kill does; pods run on."""
        self.runtime = ProcessRuntime(
            self.data, isolated=self.isolated, log_limits=self.log_limits, host_paths=self.host_paths
        )
        agent = Agent(self.store, DEVICES, self.runtime, Catalogue(), backoff=self.backoff)
        async with running(self.runtime.run(), agent.run()):
            yield self.runtime

    async def clean(self) -> None:
        """End the pods that a test has left running."""
        runtime = ProcessRuntime(self.data, isolated=self.isolated)
        for recovered in runtime.recover_pods():
            await runtime.remove(recovered.assignment.uid)

    async def see(self, pod: Pod) -> Pod:
        return await self.store.get(Pod, pod.metadata.name, pod.metadata.namespace)

    async def create(self, pod: Pod) -> Pod:
        with suppress(Exists):
            await self.store.create(Namespace(metadata=Metadata(name=pod.metadata.namespace)))
        return await self.store.create(pod)

    async def workload(self, name: str, namespace: str = "runai-team-a") -> Workload:
        with suppress(Exists):
            await self.store.create(Namespace(metadata=Metadata(name=namespace)))
        return await self.store.create(Workload(metadata=Metadata(name=name, namespace=namespace)))

    def checkpoints(self, workload: Workload) -> Path:
        return self.data / "checkpoints" / workload.metadata.namespace / workload.metadata.uid

    async def phase(self, pod: Pod, *phases: str) -> Pod:
        async def reached() -> bool:
            return (await self.see(pod)).status.phase in phases

        await eventually(reached)
        return await self.see(pod)

    async def run(self, pod: Pod) -> Pod:
        """Create a pod and wait until it runs."""
        return await self.phase(await self.create(pod), "Running", "Succeeded", "Failed")

    async def finish(self, pod: Pod) -> tuple[Pod, str]:
        """Create a pod, wait until it has ended, and read its log."""
        ended = await self.phase(await self.create(pod), "Succeeded", "Failed")
        return ended, await self.log(ended)

    async def log(self, pod: Pod, **options: object) -> str:
        chunks = [chunk async for chunk in self.runtime.logs(pod, LogOptions(**options))]  # type: ignore[arg-type]
        return b"".join(chunks).decode()

    async def printed(self, pod: Pod, text: str) -> str:
        """Wait until the log contains a text."""

        async def there() -> bool:
            return text in await self.log(pod)

        await eventually(there)
        return await self.log(pod)

    async def delete(self, pod: Pod, grace: int | None = None) -> None:
        await self.store.delete(await self.see(pod), grace_seconds=grace)

    async def gone(self, pod: Pod) -> None:
        async def away() -> bool:
            try:
                await self.see(pod)
            except NotFound:
                return not (self.data / "pods" / pod.metadata.uid).exists()
            return False

        await eventually(away)


def code(pod: Pod) -> int | None:
    ended = pod.status.container_statuses[0].state.terminated
    return ended.exit_code if ended else None
