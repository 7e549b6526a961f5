"""Assembles the Kubernetes backend from the other modules of this package."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection, Coroutine, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import structlog

from aliquot.admission.workload_admission import WorkloadAdmission
from aliquot.api import DeviceShare, Pod, Workload
from aliquot.backends.backend import Backend, Run
from aliquot.backends.kubernetes import protected_fields
from aliquot.backends.kubernetes.binder import KubernetesBinder
from aliquot.backends.kubernetes.kubeconfigs import Kubeconfigs
from aliquot.backends.kubernetes.lost_nodes import LostNodeController
from aliquot.backends.kubernetes.node_files import daemon_set
from aliquot.backends.kubernetes.priority_classes import install_priority_classes
from aliquot.backends.kubernetes.rbac import RbacController
from aliquot.backends.kubernetes.reservations import gc
from aliquot.backends.kubernetes.scheduler_name import SchedulerNameController
from aliquot.backends.kubernetes.scheduling_context import KubernetesSchedulingContext
from aliquot.backends.kubernetes.services_and_claims import ServiceAndClaimController
from aliquot.backends.kubernetes.settings import ClusterSettings
from aliquot.backends.kubernetes.streams import KubernetesStreams
from aliquot.backends.kubernetes.unstructured_kinds import DAEMON_SET
from aliquot.backends.kubernetes.v2alpha1.controller import RunaiWorkloadController
from aliquot.backends.kubernetes.v2alpha1.definitions import RUNAI_KINDS, definitions
from aliquot.backends.kubernetes.webhook import Webhook, WebhookAddress
from aliquot.errors import Invalid
from aliquot.store.driver import StoreDriver
from aliquot.store.drivers.kubernetes import KubernetesDriver, install
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store

_WEBHOOK_PORT = 9443  # inside the cluster, behind the service
_READY_SECONDS = 10.0  # how long a start waits for the webhook
log = structlog.get_logger()


async def kubernetes_backend(
    driver: StoreDriver, informers: Informers, parts: Collection[str], settings: ClusterSettings
) -> Backend:
    """The backend for a process with these `parts`: the server runs the webhook, the loops run the controllers."""
    assert isinstance(driver, KubernetesDriver)
    if "loops" in parts:
        await _prepare(driver, settings)
    # A process that only manages projects runs no pods: its webhook would block pods once the process has stopped.
    serves_webhook = "server" in parts and "projects" not in parts
    webhook = _webhook(driver, informers, settings) if serves_webhook else None
    context = KubernetesSchedulingContext(driver, informers)
    binder = KubernetesBinder(driver, informers, settings.sharing)
    background: list[Coroutine[Any, Any, None]] = [] if webhook is None else [webhook.run()]
    if "scheduler" in parts:
        background += [*context.background_tasks(), *binder.background_tasks()]
    return Backend(
        binder=_VolumeBindingBinder(binder, context),
        streams=KubernetesStreams(driver),
        scheduling_context=context,
        kubeconfigs=Kubeconfigs(driver, address=settings.api_address),
        background=tuple(background),
        ready=partial(_until_ready, webhook),
        controllers=tuple(_controllers(driver, informers, binder, settings)) if "loops" in parts else (),
    )


async def _prepare(driver: KubernetesDriver, settings: ClusterSettings) -> None:
    """Installs what must exist before the first pod does."""
    await install_priority_classes(driver)
    await install(driver, definitions())
    await protected_fields.install(driver)
    await gc.prepare(driver)
    if settings.node_files:
        await driver.apply(DAEMON_SET, daemon_set(settings.sharing))


def _controllers(
    driver: KubernetesDriver, informers: Informers, binder: KubernetesBinder, settings: ClusterSettings
) -> list[Run]:
    store, admission = Store(driver), WorkloadAdmission(driver, informers)
    runai = [RunaiWorkloadController(store, kind, admission, informers.of(Workload)) for kind in RUNAI_KINDS]
    return [
        RbacController(driver, informers).run,
        gc.ReservationCollector(driver, informers, binder.reservations, settings.sharing).controller.run,
        LostNodeController(store, informers, settings.node_loss).controller.run,
        SchedulerNameController(store, informers).controller.run,
        ServiceAndClaimController(store, informers).controller.run,
        *(controller.controller.run for controller in runai),
        *(controller.objects.run for controller in runai),
    ]


def _webhook(driver: KubernetesDriver, informers: Informers, settings: ClusterSettings) -> Webhook | None:
    """None if the API server could not reach it."""
    outside = settings.kubeconfig is not None
    url = settings.webhook_url
    if outside and not url and not _is_loopback(urlsplit(driver.endpoint.url).hostname or ""):
        log.warning("no webhook, so pods with GPU fractions are refused: set --webhook-url for the API server")
        return None
    host = "127.0.0.1" if outside and not url else "0.0.0.0"  # noqa: S104  # the API server runs on another host
    port = settings.webhook_port or urlsplit(url).port or (0 if outside else _WEBHOOK_PORT)
    listener = _listen(host, port)
    if outside and not url:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    return Webhook(driver, informers, WebhookAddress(url), listener, settings.sharing)


async def _until_ready(webhook: Webhook | None) -> None:
    """Waits for the webhook: a pod created before the API server knows it gets no GPU injection."""
    if webhook is None:
        return
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await webhook.ready.wait()
    except TimeoutError:
        log.warning("the webhook is not ready yet; pods with GPU fractions wait for it")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise Invalid(
            f"--webhook-port: cannot listen on {host}:{port}: {(exc.strerror or str(exc)).lower()}",
            hint="choose another --webhook-port",
        ) from exc
    return listener


class _VolumeBindingBinder:
    """Binds a pod's volume claims before the pod itself."""

    def __init__(self, binder: KubernetesBinder, context: KubernetesSchedulingContext) -> None:
        self._binder, self._context = binder, context

    async def abandon_unfinished(self) -> None:
        await self._binder.abandon_unfinished()

    async def bind(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        await self._context.bind_claims(pod, node)
        await self._binder.bind(pod, node, shares)

    async def eviction_blocker(self, pod: Pod) -> str:
        return await self._binder.eviction_blocker(pod)

    async def evict(self, pod: Pod, grace_seconds: int | None) -> None:
        await self._binder.evict(pod, grace_seconds)
