"""A small cluster in a store, with the control loops on it as long as a test wants them.

The node is played: what is bound runs, what is deleted goes; a `Kubelet` that holds lets nobody go. Everything else is
the real thing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from aliquot import labels
from aliquot.api import Compute, Device, Metadata, Namespace, Pod, Project, Quota, Workload, shares_of
from aliquot.api.pod import PodStatus
from aliquot.api.project import ProjectSpec
from aliquot.api.workload import WorkloadSpec
from aliquot.backends.local.devices.node_devices import NodeFacts, node_object
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.controllers.workloads import WorkloadReconciler
from aliquot.errors import NotFound
from aliquot.podspec.builder import build_pod
from aliquot.scheduler.last_decision import LastDecision
from aliquot.scheduler.loop import Scheduler
from aliquot.store.driver import AnyKind, Document, StoreDriver
from aliquot.store.informer import Informers, Key
from aliquot.store.typed_store import Store
from support.stores.namespace import POD, StoreNamespace
from support.stores.running import running, until

V100 = 32510


class Kubelet:
    """Stands for the agents of all nodes."""

    def __init__(self, store: Store, informers: Informers) -> None:
        self._store = store
        self._going: set[Key] = set()
        self.holds = False
        self.controller = Controller("kubelet", self._once)
        self.controller.watch(informers.of(Pod))

    def release(self) -> None:
        """Let go who is on the way, and all others from now on."""
        self.holds = False
        for key in self._going:
            self.controller.enqueue(key)

    async def _once(self, key: Key) -> None:
        try:
            pod = await self._store.get(Pod, key[1], key[0])
        except NotFound:
            return
        if pod.metadata.deleted is not None:
            self._going.add(key)
            if not self.holds:
                await self._store.delete(pod, grace_seconds=0)
        elif pod.spec.node_name and pod.status.phase != "Running":
            started = replace(pod, status=PodStatus(phase="Running", start_time=time.time()))
            await self._store.update_status(started, seen=pod)


class World:
    def __init__(self, place: StoreNamespace) -> None:
        self.store = Store(place.driver)
        self.kubelet: Kubelet | None = None
        self.last = LastDecision()

    # --- what there is

    async def node(self, name: str, gpus: int) -> None:
        devices = tuple(Device(index=index, memory_mib=V100) for index in range(gpus))
        facts = NodeFacts(name=name, devices=devices, cpu=64000, memory=64 << 30)
        await self.store.create(node_object(facts, now=0.0))

    async def project(self, name: str, quota: int, **spec: Any) -> None:
        await self.store.create(Namespace(metadata=Metadata(name=f"runai-{name}", labels={labels.PROJECT: name})))
        made = ProjectSpec(quota=Quota(gpu=quota * 1000), **spec)
        await self.store.create(Project(metadata=Metadata(name=name), spec=made))

    async def submit(self, name: str, gpu: int = 1000, project: str = "a", *, pod: bool = False, **spec: Any) -> None:
        """A workload; with its pod where no loop makes it."""
        wanted = WorkloadSpec(image="python", compute=Compute(gpu=gpu), **spec)
        made = await self.store.create(
            Workload(metadata=Metadata(name=name, namespace=f"runai-{project}"), spec=wanted)
        )
        if pod:
            await self.store.create(build_pod(made, project))

    # --- what runs

    @asynccontextmanager
    async def scheduling(self, driver: StoreDriver | None = None) -> AsyncIterator[None]:
        """The scheduler alone, on the same store or on a way to it that may break."""
        store = self.store if driver is None else Store(driver)
        informers = Informers(self.store.driver)
        scheduler = Scheduler(store, informers)
        async with running(*(informer.run() for informer in informers), scheduler.run()):
            yield

    @asynccontextmanager
    async def living(self, driver: StoreDriver | None = None, *, holds: bool = False) -> AsyncIterator[None]:
        """Scheduler, workloads and nodes."""
        informers = Informers(self.store.driver)
        self.kubelet = Kubelet(self.store, informers)
        self.kubelet.holds = holds
        scheduler = Scheduler(self.store if driver is None else Store(driver), informers, last=self.last)
        of = informers.of
        workloads = WorkloadReconciler(self.store, of(Workload), of(Pod), of(Namespace))
        loops = (scheduler.run(), workloads.controller.run(), self.kubelet.controller.run())
        async with running(*(informer.run() for informer in informers), *loops):
            yield

    # --- what is so

    async def pod(self, name: str, project: str = "a") -> Pod | None:
        try:
            return await self.store.get(Pod, f"{name}-0-0", f"runai-{project}")
        except NotFound:
            return None

    async def workload(self, name: str, project: str = "a") -> Workload:
        return await self.store.get(Workload, name, f"runai-{project}")

    async def node_of(self, name: str, project: str = "a") -> str:
        pod = await self.pod(name, project)
        return pod.spec.node_name if pod is not None and pod.metadata.deleted is None else ""

    async def bound(self, *names: str, project: str = "a") -> None:
        """Until all of them have a node."""

        async def all_bound() -> bool:
            return all([await self.node_of(name, project) for name in names])

        await until(all_bound)

    async def runs(self, *names: str, project: str = "a") -> None:
        async def all_run() -> bool:
            return all([(await self.workload(name, project)).status.phase == "Running" for name in names])

        await until(all_run)

    async def waits(self, name: str, project: str = "a", code: str = "") -> None:
        """Until it has no place and has been told why."""

        async def told() -> bool:
            codes = [one.code for one in (await self.workload(name, project)).status.refusals]
            return bool(codes) and (not code or code in codes) and not await self.node_of(name, project)

        await until(told)

    async def going(self, name: str, project: str = "a") -> None:
        """Until its end was asked for."""

        async def asked() -> bool:
            pod = await self.pod(name, project)
            return pod is not None and pod.metadata.deleted is not None

        await until(asked)

    async def running(self) -> set[str]:
        """Names of the workloads whose pods hold a place."""
        pods = (await self.store.list(Pod)).items
        return {pod.metadata.labels[labels.WORKLOAD] for pod in pods if pod.spec.node_name}

    async def devices(self, name: str, project: str = "a") -> tuple[str, list[int]]:
        pod = await self.pod(name, project)
        assert pod is not None
        return pod.spec.node_name, [share.index for share in shares_of(pod)]

    async def gone(self, name: str, project: str = "a") -> None:
        """Its process ends and its pod with it, at once."""
        await self.store.driver.delete(POD, f"{name}-0-0", f"runai-{project}", grace_seconds=0)


class Mortal:
    """A way to the store on which somebody dies: after so many writes no call returns any more."""

    def __init__(self, driver: StoreDriver, writes: int) -> None:
        self._driver, self._left = driver, writes
        self.dead = asyncio.Event()
        self.written: list[tuple[str, str, str]] = []  # what was done to which object

    async def died(self) -> None:
        async with asyncio.timeout(30):
            await self.dead.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def patch(self, kind: AnyKind, name: str, *rest: Any, **options: Any) -> Document:
        await self._count("patch", kind, name)
        return await self._driver.patch(kind, name, *rest, **options)

    async def delete(self, kind: AnyKind, name: str, *rest: Any, **options: Any) -> bool:
        await self._count("delete", kind, name)
        return await self._driver.delete(kind, name, *rest, **options)

    async def _count(self, what: str, kind: AnyKind, name: str) -> None:
        if self._left == 0:
            self.dead.set()
            await asyncio.Event().wait()
        self._left -= 1
        self.written.append((what, kind.name, name))
