"""Runs GPU sharing on a cluster for as long as a test needs it: webhook, binder and reservation collector.

The harness also plays the kubelet: it creates nodes, and sets the phases of pods.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
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
from support.waiting import eventually

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

    async def create_node(self, name: str, *, gpus: int = 2, memory: int = 32510, simulated: bool = True) -> str:
        """Creates a node with GPUs and without a kubelet; returns its name."""
        node_labels = {labels.GPU_MEMORY: str(memory)} if memory else {}
        node_labels |= {labels.SIMULATED: "true"} if simulated else {}
        capacity = {"cpu": "8", "memory": "32Gi", "pods": "110", labels.GPU_RESOURCE: str(gpus)}
        await self.driver.create(NODE, Document({"metadata": {"name": name, "labels": node_labels}}))
        await self.driver.patch(
            NODE, name, "", {"status": {"capacity": capacity, "allocatable": capacity}}, status=True
        )
        await eventually(lambda: (node := self.informers.of(Node).get(name)) and node.status.capacity)
        return name

    async def create_pod(self, namespace: str, name: str, **annotations: str) -> Pod:
        """Creates a pending pod for our scheduler with these annotations."""
        await self.driver.create(POD, annotated_pod(namespace, name, **annotations))
        return await self.store.get(Pod, name, namespace)

    async def reservation(self, node: str, index: int = 0) -> Pod:
        """The reservation pod of a GPU, as soon as it exists."""
        key = (reservation_name(node, index), labels.RESERVATION_NAMESPACE)
        await eventually(lambda: self.informers.of(Pod).get(*key))
        return await self.store.get(Pod, *key)

    async def set_phase(self, pod: Pod, phase: str = "Running", **fields: str) -> None:
        """Writes the pod's status, as a kubelet would."""
        status = {"status": {"phase": phase, **fields}}
        await self.driver.patch(POD, pod.metadata.name, pod.metadata.namespace, status, status=True)

    async def remove(self, pod: Pod) -> None:
        """Completes a deletion, as a kubelet would."""
        with suppress(NotFound):
            await self.driver.delete(POD, pod.metadata.name, pod.metadata.namespace, grace_seconds=0)

    async def bind(self, pod: Pod, node: str, *shares: DeviceShare) -> Pod:
        """Binds a pod with fractions; the reservation pods run as soon as they are created."""
        binding = asyncio.create_task(self.binder.bind(pod, node, shares))
        for share in shares:
            reservation = await self.reservation(node, share.index)
            if reservation.status.phase != "Running":
                await self.set_phase(reservation)
        await binding
        return await self.store.get(Pod, pod.metadata.name, pod.metadata.namespace)

    async def config_map(self, pod: Pod) -> dict[str, Any]:
        name = pod.metadata.annotations[labels.GPU_CONFIG]
        return (await self.driver.get(CONFIG_MAP, name, pod.metadata.namespace)).data

    async def is_deleted(self, pod: Pod) -> bool:
        try:
            current = await self.store.get(Pod, pod.metadata.name, pod.metadata.namespace)
        except NotFound:
            return True
        return current.metadata.uid != pod.metadata.uid or current.metadata.deleted is not None


def annotated_pod(namespace: str, name: str, **annotations: str) -> Document:
    return Document(
        {
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations, "labels": {"app": name}},
            "spec": {
                "schedulerName": "aliquot",
                "containers": [{"name": "main", "image": "busybox", "command": ["sleep", "3600"]}],
            },
        }
    )


def half(index: int = 0, milli: int = 500, memory_mib: int = 0) -> DeviceShare:
    return DeviceShare(index=index, milli=milli, memory_mib=memory_mib)


class Crashed(Exception):
    """The simulated process crashed here."""


class CrashingDriver(KubernetesDriver):
    """Crashes after so many writes: the last one is done, but the caller gets no response."""

    writes_left = 1 << 30

    def _count_write(self) -> None:
        self.writes_left -= 1
        if self.writes_left <= 0:
            raise Crashed

    async def create(self, kind: AnyKind, document: Document) -> Document:
        created = await super().create(kind, document)
        self._count_write()
        return created

    async def patch(
        self, kind: AnyKind, name: str, namespace: str, patch: Json, *, version: str = "", status: bool = False
    ) -> Document:
        changed = await super().patch(kind, name, namespace, patch, version=version, status=status)
        if not status:  # statuses are the kubelet's
            self._count_write()
        return changed

    async def bind(
        self, name: str, namespace: str, node: str, annotations: Json, *, uid: str = "", version: str = ""
    ) -> None:
        await super().bind(name, namespace, node, annotations, uid=uid, version=version)
        self._count_write()


@asynccontextmanager
async def sharing(
    cluster: Cluster,
    settings: GpuSharingSettings = QUICK,
    driver_type: type[KubernetesDriver] = KubernetesDriver,
    **changes: Any,
) -> AsyncIterator[SharingHarness]:
    """Runs the binder and the collector, without a webhook."""
    async with driver_type(kubeconfig.load([cluster.kubeconfig])) as driver:
        settings = replace(settings, **changes)
        with suppress(Exists):
            await driver.create(KINDS.of(Namespace), Document({"metadata": {"name": labels.SYSTEM_NAMESPACE}}))
        await prepare(driver)
        informers = Informers(driver)
        binder = KubernetesBinder(driver, informers, settings)
        informers.of(Namespace)
        collector = ReservationCollector(driver, informers, binder.reservations, settings)
        work = [*(informer.run() for informer in informers), *binder.background_tasks(), collector.controller.run()]
        async with running(*work):
            await informers.wait()
            harness = SharingHarness(driver, informers, settings, binder, collector)
            await _remove_old_webhook(harness)
            yield harness


async def _remove_old_webhook(harness: SharingHarness) -> None:
    """Removes the webhook of a server that another test started on this cluster."""
    try:
        await harness.driver.get(MUTATING_WEBHOOK, CONFIGURATION_NAME)
    except NotFound:
        return
    await remove_webhook(harness)


@asynccontextmanager
async def webhook(harness: SharingHarness, host: str = "127.0.0.1") -> AsyncIterator[Webhook]:
    """Serves and registers the webhook inside the block; then removes it, because other tests create pods too."""
    with socket.create_server((host, 0)) as listener:
        address = WebhookAddress(f"https://{host}:{listener.getsockname()[1]}")
        hook = Webhook(harness.driver, harness.informers, address, listener, harness.settings)
        async with running(hook.run()):
            async with asyncio.timeout(60):
                await hook.ready.wait()
            try:
                await _wait_until_called(harness)
                yield hook
            finally:
                await remove_webhook(harness)


async def remove_webhook(harness: SharingHarness) -> None:
    with suppress(NotFound):
        await harness.driver.delete(MUTATING_WEBHOOK, CONFIGURATION_NAME)
    await _wait_until_called(harness, False)


async def _wait_until_called(harness: SharingHarness, wanted: bool = True) -> None:
    """The API server watches webhook configurations, so it learns of a change a moment later."""

    async def is_learned() -> bool:
        return await _is_called(harness) is wanted

    await eventually(is_learned, "the API server to learn of the webhook's change")


async def _is_called(harness: SharingHarness) -> bool | None:
    """Whether the API server calls the webhook; None if that is unknown."""
    try:
        probe = await harness.driver.create(POD, annotated_pod("default", "asked", **{"gpu-fraction": "0.5"}))
    except Exists:
        probe = None
    except Unavailable:
        return None
    await harness.driver.delete(POD, "asked", "default", grace_seconds=0)
    return None if probe is None else labels.GPU_CONFIG in probe.metadata["annotations"]
