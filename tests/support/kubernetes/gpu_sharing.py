"""What shares GPUs on a cluster, running as long as a test wants it: webhook, hands and the loop that lets GPUs go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from aliquot import labels
from aliquot.api import KINDS, DeviceShare, Json, Namespace, Node, Pod
from aliquot.backends.kubernetes.binder import KubernetesBinder
from aliquot.backends.kubernetes.reservations.gc import ReservationCollector, prepare
from aliquot.backends.kubernetes.reservations.pod import reservation_name
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.backends.kubernetes.unstructured_kinds import CONFIG_MAP, MUTATING_WEBHOOK
from aliquot.backends.kubernetes.webhook import CONFIGURATION_NAME, Webhook, WebhookAddress
from aliquot.errors import Exists, NotFound, Unavailable
from aliquot.store.driver import AnyKind, Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http import kubeconfig
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.kubernetes.cluster import Cluster
from support.kubernetes.kinds import POD
from support.stores.running import running

NODE = KINDS.of(Node)
QUICK = GpuSharingSettings(image="busybox", idle_seconds=0.05, hold_seconds=60.0)


@dataclass
class SharingHarness:
    driver: KubernetesDriver
    informers: Informers
    settings: GpuSharingSettings
    binder: KubernetesBinder
    collector: ReservationCollector

    @property
    def store(self) -> Store:
        return Store(self.driver)

    async def node(self, name: str, *, gpus: int = 2, memory: int = 32510, simulated: bool = True) -> str:
        """A node with GPUs and no kubelet."""
        marks = {labels.GPU_MEMORY: str(memory)} if memory else {}
        marks |= {labels.SIMULATED: "true"} if simulated else {}
        room = {"cpu": "8", "memory": "32Gi", "pods": "110", labels.GPU_RESOURCE: str(gpus)}
        await self.driver.create(NODE, Document({"metadata": {"name": name, "labels": marks}}))
        await self.driver.patch(NODE, name, "", {"status": {"capacity": room, "allocatable": room}}, status=True)
        await self.heard(lambda: (known := self.informers.of(Node).get(name)) and known.status.capacity)
        return name

    async def pod(self, namespace: str, name: str, **marks: str) -> Pod:
        """One that waits for our scheduler, with these annotations."""
        await self.driver.create(POD, document(namespace, name, **marks))
        return await self.store.get(Pod, name, namespace)

    async def reservation(self, node: str, index: int = 0) -> Pod:
        """The pod that holds a GPU, as soon as it is there."""
        place = (reservation_name(node, index), labels.RESERVATION_NAMESPACE)
        await self.heard(lambda: self.informers.of(Pod).get(*place))
        return await self.store.get(Pod, *place)

    async def runs(self, pod: Pod, phase: str = "Running", **more: str) -> None:
        """What a kubelet would say."""
        status = {"status": {"phase": phase, **more}}
        await self.driver.patch(POD, pod.metadata.name, pod.metadata.namespace, status, status=True)

    async def gone(self, pod: Pod) -> None:
        """What a kubelet does at last."""
        with suppress(NotFound):
            await self.driver.delete(POD, pod.metadata.name, pod.metadata.namespace, grace_seconds=0)

    async def bound(self, pod: Pod, node: str, *shares: DeviceShare) -> Pod:
        """Bound with a part of GPUs whose reservations run as soon as they are made."""
        binding = asyncio.create_task(self.binder.bind(pod, node, shares))
        for share in shares:
            held = await self.reservation(node, share.index)
            if held.status.phase != "Running":
                await self.runs(held)
        await binding
        return await self.store.get(Pod, pod.metadata.name, pod.metadata.namespace)

    async def config(self, pod: Pod) -> dict[str, Any]:
        name = pod.metadata.annotations[labels.GPU_CONFIG]
        return (await self.driver.get(CONFIG_MAP, name, pod.metadata.namespace)).data

    async def is_gone(self, pod: Pod) -> bool:
        try:
            found = await self.store.get(Pod, pod.metadata.name, pod.metadata.namespace)
        except NotFound:
            return True
        return found.metadata.uid != pod.metadata.uid or found.metadata.deleted is not None

    async def heard(self, happened: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not happened():  # noqa: ASYNC110  # informers ring no bell for a condition
                await asyncio.sleep(0.01)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Longer than elsewhere: an API server and its controllers share the machine."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  # the cluster rings no bell for a condition
            await asyncio.sleep(0.02)


def document(namespace: str, name: str, **marks: str) -> Document:
    return Document(
        {
            "metadata": {"name": name, "namespace": namespace, "annotations": marks, "labels": {"app": name}},
            "spec": {
                "schedulerName": "aliquot",
                "containers": [{"name": "main", "image": "busybox", "command": ["sleep", "3600"]}],
            },
        }
    )


def half(index: int = 0, milli: int = 500, memory_mib: int = 0) -> DeviceShare:
    return DeviceShare(index=index, milli=milli, memory_mib=memory_mib)


class Crashed(Exception):
    """The process ended here."""


class CrashingDriver(KubernetesDriver):
    """Ends after so many writes: the last of them was done, and its writer does not hear of it."""

    left = 1 << 30

    def _wrote(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise Crashed

    async def create(self, kind: AnyKind, document: Document) -> Document:
        made = await super().create(kind, document)
        self._wrote()
        return made

    async def patch(
        self, kind: AnyKind, name: str, namespace: str, patch: Json, *, version: str = "", status: bool = False
    ) -> Document:
        changed = await super().patch(kind, name, namespace, patch, version=version, status=status)
        if not status:  # what a kubelet writes is not ours
            self._wrote()
        return changed

    async def bind(
        self, name: str, namespace: str, node: str, annotations: Json, *, uid: str = "", version: str = ""
    ) -> None:
        await super().bind(name, namespace, node, annotations, uid=uid, version=version)
        self._wrote()


@asynccontextmanager
async def sharing(
    cluster: Cluster,
    settings: GpuSharingSettings = QUICK,
    body_type: type[KubernetesDriver] = KubernetesDriver,
    **changed: Any,
) -> AsyncIterator[SharingHarness]:
    """Without a webhook."""
    async with body_type(kubeconfig.load([cluster.kubeconfig])) as driver:
        settings = replace(settings, **changed)
        with suppress(Exists):
            await driver.create(KINDS.of(Namespace), Document({"metadata": {"name": labels.SYSTEM_NAMESPACE}}))
        await prepare(driver)
        informers = Informers(driver)
        binder = KubernetesBinder(driver, informers, settings)
        informers.of(Namespace)
        collector = ReservationCollector(driver, informers, binder.reservations, settings)
        work = [*(one.run() for one in informers), *binder.background_tasks(), collector.controller.run()]
        async with running(*work):
            await informers.wait()
            world = SharingHarness(driver, informers, settings, binder, collector)
            await _without_webhook(world)
            yield world


async def _without_webhook(world: SharingHarness) -> None:
    """That of a server which another test has started on this cluster is not there any more."""
    try:
        await world.driver.get(MUTATING_WEBHOOK, CONFIGURATION_NAME)
    except NotFound:
        return
    await forget_webhook(world)


@asynccontextmanager
async def webhook(world: SharingHarness, host: str = "127.0.0.1") -> AsyncIterator[Webhook]:
    """Known to the API server until the end of the block, and then forgotten: other tests make pods as well."""
    with socket.create_server((host, 0)) as listener:
        address = WebhookAddress(f"https://{host}:{listener.getsockname()[1]}")
        hook = Webhook(world.driver, world.informers, address, listener, world.settings)
        async with running(hook.run()):
            async with asyncio.timeout(60):
                await hook.ready.wait()
            try:
                await _called(world)
                yield hook
            finally:
                await forget_webhook(world)


async def forget_webhook(world: SharingHarness) -> None:
    with suppress(NotFound):
        await world.driver.delete(MUTATING_WEBHOOK, CONFIGURATION_NAME)
    await _called(world, False)


async def _called(world: SharingHarness, wanted: bool = True) -> None:
    """The API server learns of webhooks, and that there is none, by a watch of its own, a moment later."""
    async with asyncio.timeout(60):
        while await _is_called(world) is not wanted:  # noqa: ASYNC110  # it rings no bell
            await asyncio.sleep(0.05)


async def _is_called(world: SharingHarness) -> bool | None:
    """None: that cannot be said now."""
    try:
        made = await world.driver.create(POD, document("default", "asked", **{"gpu-fraction": "0.5"}))
    except Exists:
        made = None
    except Unavailable:
        return None
    await world.driver.delete(POD, "asked", "default", grace_seconds=0)
    return None if made is None else labels.GPU_CONFIG in made.metadata["annotations"]
