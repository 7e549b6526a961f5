"""A small cluster in a store, with the controllers that a test wants to run on it.

Only the kubelets are played; the scheduler and the controllers are the real ones.
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
from support.stores.running import running
from support.waiting import eventually

V100 = 32510  # MiB


class Kubelet:
    """Plays the kubelets of all nodes: bound pods run, deleted pods go. With `hold_deleted` deleted pods stay."""

    def __init__(self, store: Store, informers: Informers) -> None:
        self._store = store
        self._deleted: set[Key] = set()
        self.hold_deleted = False
        self.controller = Controller("kubelet", self._reconcile)
        self.controller.watch(informers.of(Pod))

    def release(self) -> None:
        """Lets the held pods go, and every pod that is deleted from now on."""
        self.hold_deleted = False
        for key in self._deleted:
            self.controller.enqueue(key)

    async def _reconcile(self, key: Key) -> None:
        try:
            pod = await self._store.get(Pod, key[1], key[0])
        except NotFound:
            return
        if pod.metadata.deleted is not None:
            self._deleted.add(key)
            if not self.hold_deleted:
                await self._store.delete(pod, grace_seconds=0)
        elif pod.spec.node_name and pod.status.phase != "Running":
            started = replace(pod, status=PodStatus(phase="Running", start_time=time.time()))
            await self._store.update_status(started, seen=pod)


class World:
    def __init__(self, namespace: StoreNamespace) -> None:
        self.store = Store(namespace.driver)
        self.kubelet: Kubelet | None = None
        self.last = LastDecision()

    # --- objects

    async def node(self, name: str, gpus: int) -> None:
        devices = tuple(Device(index=index, memory_mib=V100) for index in range(gpus))
        facts = NodeFacts(name=name, devices=devices, cpu=64000, memory=64 << 30)
        await self.store.create(node_object(facts, now=0.0))

    async def project(self, name: str, quota: int, **spec: Any) -> None:
        await self.store.create(Namespace(metadata=Metadata(name=f"runai-{name}", labels={labels.PROJECT: name})))
        project_spec = ProjectSpec(quota=Quota(gpu=quota * 1000), **spec)
        await self.store.create(Project(metadata=Metadata(name=name), spec=project_spec))

    async def submit(self, name: str, gpu: int = 1000, project: str = "a", *, pod: bool = False, **spec: Any) -> None:
        """Creates a workload; with `pod` also its pod, where no controller creates it."""
        workload_spec = WorkloadSpec(image="python", compute=Compute(gpu=gpu), **spec)
        workload = await self.store.create(
            Workload(metadata=Metadata(name=name, namespace=f"runai-{project}"), spec=workload_spec)
        )
        if pod:
            await self.store.create(build_pod(workload, project))

    async def delete_pod(self, name: str, project: str = "a") -> None:
        """The process ends and its pod goes at once."""
        await self.store.driver.delete(POD, f"{name}-0-0", f"runai-{project}", grace_seconds=0)

    # --- controllers

    @asynccontextmanager
    async def scheduler(self, driver: StoreDriver | None = None) -> AsyncIterator[None]:
        """Runs the scheduler alone, which writes through `driver` if given."""
        store = self.store if driver is None else Store(driver)
        informers = Informers(self.store.driver)
        scheduler = Scheduler(store, informers)
        async with running(*(informer.run() for informer in informers), scheduler.run()):
            yield

    @asynccontextmanager
    async def platform(self, driver: StoreDriver | None = None, *, hold_deleted: bool = False) -> AsyncIterator[None]:
        """Runs the scheduler, the workload controller and the kubelets."""
        informers = Informers(self.store.driver)
        self.kubelet = Kubelet(self.store, informers)
        self.kubelet.hold_deleted = hold_deleted
        scheduler = Scheduler(self.store if driver is None else Store(driver), informers, last=self.last)
        of = informers.of
        workloads = WorkloadReconciler(self.store, of(Workload), of(Pod), of(Namespace))
        loops = (scheduler.run(), workloads.controller.run(), self.kubelet.controller.run())
        async with running(*(informer.run() for informer in informers), *loops):
            yield

    # --- state

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

    async def devices(self, name: str, project: str = "a") -> tuple[str, list[int]]:
        pod = await self.pod(name, project)
        assert pod is not None
        return pod.spec.node_name, [share.index for share in shares_of(pod)]

    async def bound_workloads(self) -> set[str]:
        """Names of the workloads whose pods have a node."""
        pods = (await self.store.list(Pod)).items
        return {pod.metadata.labels[labels.WORKLOAD] for pod in pods if pod.spec.node_name}

    # --- waiting for a state

    async def until_bound(self, *names: str, project: str = "a") -> None:
        async def all_bound() -> bool:
            return all([await self.node_of(name, project) for name in names])

        await eventually(all_bound)

    async def until_running(self, *names: str, project: str = "a") -> None:
        async def all_running() -> bool:
            return all([(await self.workload(name, project)).status.phase == "Running" for name in names])

        await eventually(all_running)

    async def until_refused(self, name: str, project: str = "a", code: str = "") -> None:
        """Until it has no node and its status shows why."""

        async def refused() -> bool:
            codes = [refusal.code for refusal in (await self.workload(name, project)).status.refusals]
            return bool(codes) and (not code or code in codes) and not await self.node_of(name, project)

        await eventually(refused)

    async def until_stopping(self, name: str, project: str = "a") -> None:
        """Until its pod was asked to stop."""

        async def stopping() -> bool:
            pod = await self.pod(name, project)
            return pod is not None and pod.metadata.deleted is not None

        await eventually(stopping)


class CrashingDriver:
    """A store driver for a process that crashes: after so many writes no call returns any more."""

    def __init__(self, driver: StoreDriver, writes: int) -> None:
        self._driver, self._left = driver, writes
        self._crashed = asyncio.Event()
        self.written: list[tuple[str, str, str]] = []  # verb, kind and name of each write

    async def until_crashed(self) -> None:
        async with asyncio.timeout(30):
            await self._crashed.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def patch(self, kind: AnyKind, name: str, *rest: Any, **options: Any) -> Document:
        await self._count("patch", kind, name)
        return await self._driver.patch(kind, name, *rest, **options)

    async def delete(self, kind: AnyKind, name: str, *rest: Any, **options: Any) -> bool:
        await self._count("delete", kind, name)
        return await self._driver.delete(kind, name, *rest, **options)

    async def _count(self, verb: str, kind: AnyKind, name: str) -> None:
        if self._left == 0:
            self._crashed.set()
            await asyncio.Event().wait()
        self._left -= 1
        self.written.append((verb, kind.name, name))
