"""Puts the agent of this machine together: real or simulated GPUs, the image catalogue, the runtime, the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from aliquot import native
from aliquot.api import Pod, Project
from aliquot.backends.backend import Backend
from aliquot.backends.local.devices.context_memory import ContextSizes, measure
from aliquot.backends.local.devices.gpu_driver import GpuDriver
from aliquot.backends.local.devices.node_devices import Devices
from aliquot.backends.local.devices.nvml import open_driver
from aliquot.backends.local.devices.real import RealDevices, host_name
from aliquot.backends.local.devices.share_dirs import open_share_dirs
from aliquot.backends.local.devices.simulated import SimulatedDevices
from aliquot.backends.local.gpu_settings import GpuSettings
from aliquot.backends.local.image_catalogue import Catalogue
from aliquot.backends.local.memory_enforcer import MemoryEnforcer
from aliquot.backends.local.pod_events import PodEventRecorder
from aliquot.backends.local.runner import Agent
from aliquot.backends.local.runtime import PodAssignment
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.backends.local.simulated_clusters import Preset, load
from aliquot.errors import Exists, NotFound, PlatformError
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store

log = structlog.get_logger()
DEMO = "demo"
_STOP_SECONDS = 60.0  # longer than the default grace period of pods


@dataclass(frozen=True, slots=True)
class LocalAgent:
    agent: Agent
    runtime: ProcessRuntime
    store: Store
    devices: Devices
    memory_enforcer: MemoryEnforcer | None = None

    async def stop_jobs(self, timeout: float = _STOP_SECONDS) -> None:
        """Delete every pod with its grace period, and wait until all have stopped. The next start queues them again."""
        nodes = {facts.name for facts in self.devices.nodes()}
        running = [pod for pod in (await self.store.list(Pod)).items if pod.spec.node_name in nodes]
        for pod in running:
            if pod.status.phase not in ("Succeeded", "Failed") and pod.metadata.deleted is None:
                with suppress(NotFound):
                    await self.store.delete(pod)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while await self._any_stopping(nodes):  # noqa: ASYNC110  # the store has no event for a condition
                    await asyncio.sleep(0.05)
        if isinstance(self.devices, RealDevices):
            self.devices.share_dirs.remove_if_unused()

    async def _any_stopping(self, nodes: set[str]) -> bool:
        pods = (await self.store.list(Pod)).items
        return any(pod.metadata.deleted is not None and pod.spec.node_name in nodes for pod in pods)

    def backend(self) -> Backend:
        enforcer = () if self.memory_enforcer is None else (self.memory_enforcer.run(),)
        return Backend(
            streams=self.runtime,
            facts={"isolation": self.runtime.isolation},
            background=(self.agent.run(), self.runtime.run(), *enforcer),
            stop_jobs=self.stop_jobs,
        )


async def local_agent(
    store: Store,
    informers: Informers,
    data: Path,
    simulate: str | None,
    host_paths: Sequence[str] = (),
    settings: GpuSettings = GpuSettings(),  # noqa: B008  # frozen
) -> LocalAgent:
    """The agent of this machine. Without a GPU, or when `simulate` names a preset or file, its nodes are simulated."""
    driver = open_driver() if simulate is None else None
    runtime = ProcessRuntime(data, host_paths=host_paths, cgroup_limiter=driver)
    devices: Devices
    if driver is not None:
        devices = await _real_devices(data, driver, runtime, settings)
    else:
        devices = await _simulated_devices(store, simulate or DEMO, settings)
    images = Catalogue(data / "images.yaml")
    agent = Agent(store, devices, runtime, images, pods=informers.of(Pod))
    enforcer = _memory_enforcer(store, devices, runtime, agent, settings) if isinstance(devices, RealDevices) else None
    return LocalAgent(agent, runtime, store, devices, enforcer)


async def _real_devices(data: Path, driver: GpuDriver, runtime: ProcessRuntime, settings: GpuSettings) -> RealDevices:
    """This machine's GPUs; the size of a CUDA context is measured before the first pod gets a fraction."""
    contexts = ContextSizes(data / "gpu-contexts.json")
    await asyncio.to_thread(contexts.measure_missing, driver, measure)
    devices = RealDevices(
        host_name(),
        driver,
        open_share_dirs(data),
        contexts,
        native.library(),
        settings=settings,
        cgroups=runtime.cgroup_version,
    )
    log.info("GPUs are shared", backend=devices.choice.enforcement.value, reason=devices.choice.reason)
    return devices


async def _simulated_devices(store: Store, preset_name: str, settings: GpuSettings) -> SimulatedDevices:
    preset = load(preset_name)
    await _create_projects(store, preset)
    nodes = ", ".join(facts.name for facts in preset.nodes) or "none"
    log.info("GPUs are simulated", preset=preset_name, nodes=nodes)
    if settings.reserve_mib:
        log.warning("GPUs are simulated: --gpu-reserve-mib has no effect")
    return SimulatedDevices(preset.nodes, settings)


def _memory_enforcer(
    store: Store, devices: RealDevices, runtime: ProcessRuntime, agent: Agent, settings: GpuSettings
) -> MemoryEnforcer:
    async def evict(assignment: PodAssignment) -> None:
        with suppress(PlatformError):
            pod = await store.get(Pod, assignment.name, assignment.namespace)
            if pod.metadata.uid == assignment.uid:
                await store.delete(pod)

    return MemoryEnforcer(
        devices, runtime, agent.assignments, PodEventRecorder(store).record, evict, policy=settings.overrun
    )


async def _create_projects(store: Store, preset: Preset) -> None:
    """Create the preset's projects at the first start only: a project that was deleted later stays deleted."""
    if (await store.list(Project)).items:
        return
    for project in preset.projects:
        with suppress(Exists):
            await store.create(project)
