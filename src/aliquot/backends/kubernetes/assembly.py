"""A cluster as what runs the pods: its kubelets, reached through its API server. Everything of this package, put
together."""

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

_PORT = 9443  # in the cluster, behind the service
_READY_SECONDS = 10.0  # that a start waits for the webhook
log = structlog.get_logger()


async def kubernetes_backend(
    driver: StoreDriver, informers: Informers, parts: Collection[str], settings: ClusterSettings
) -> Backend:
    """What this process needs of it: the webhook with the server, the loops with the loops."""
    assert isinstance(driver, KubernetesDriver)
    if "loops" in parts:
        await _prepare(driver, settings)
    # Where nothing runs, no pod waits for an answer; and nobody would be there to answer when we have gone.
    answers = "server" in parts and "projects" not in parts
    webhook = _webhook(driver, informers, settings) if answers else None
    around = KubernetesSchedulingContext(driver, informers)
    hands = KubernetesBinder(driver, informers, settings.sharing)
    always: list[Coroutine[Any, Any, None]] = [] if webhook is None else [webhook.run()]
    if "scheduler" in parts:
        always += [*around.runs(), *hands.runs()]
    return Backend(
        binder=_VolumeBindingBinder(hands, around),
        streams=KubernetesStreams(driver),
        scheduling_context=around,
        kubeconfigs=Kubeconfigs(driver, address=settings.api_address),
        background=tuple(always),
        ready=partial(_until_ready, webhook),
        controllers=tuple(_loops(driver, informers, hands, settings)) if "loops" in parts else (),
    )


async def _prepare(driver: KubernetesDriver, settings: ClusterSettings) -> None:
    """What must be there before the first pod is."""
    await install_priority_classes(driver)
    await install(driver, definitions())
    await protected_fields.install(driver)
    await gc.prepare(driver)
    if settings.node_files:
        await driver.apply(DAEMON_SET, daemon_set(settings.sharing))


def _loops(
    driver: KubernetesDriver, informers: Informers, hands: KubernetesBinder, settings: ClusterSettings
) -> list[Run]:
    store, admission = Store(driver), WorkloadAdmission(driver, informers)
    runai = [RunaiWorkloadController(store, kind, admission, informers.of(Workload)) for kind in RUNAI_KINDS]
    return [
        RbacController(driver, informers).run,
        gc.ReservationCollector(driver, informers, hands.reserver, settings.sharing).controller.run,
        LostNodeController(store, informers, settings.node_loss).controller.run,
        SchedulerNameController(store, informers).controller.run,
        ServiceAndClaimController(store, informers).controller.run,
        *(one.controller.run for one in runai),
        *(one.objects.run for one in runai),
    ]


def _webhook(driver: KubernetesDriver, informers: Informers, settings: ClusterSettings) -> Webhook | None:
    """None where the API server could not reach it."""
    outside = settings.kubeconfig is not None
    url = settings.webhook_url
    if outside and not url and not _is_loopback(urlsplit(driver.endpoint.url).hostname or ""):
        log.warning("no webhook: parts of GPUs are refused until --webhook-url says where the API server reaches us")
        return None
    host = "127.0.0.1" if outside and not url else "0.0.0.0"  # noqa: S104  # the API server is elsewhere
    port = settings.webhook_port or urlsplit(url).port or (0 if outside else _PORT)
    listener = _listening(host, port)
    if outside and not url:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    return Webhook(driver, informers, WebhookAddress(url), listener, settings.sharing)


async def _until_ready(webhook: Webhook | None) -> None:
    """A pod that comes before the webhook is known has no fence."""
    if webhook is None:
        return
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await webhook.ready.wait()
    except TimeoutError:
        log.warning("the webhook is not set up yet; pods with parts of GPUs wait for it")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listening(host: str, port: int) -> socket.socket:
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
    """Hands that see to a pod's volumes before they bind it."""

    def __init__(self, hands: KubernetesBinder, around: KubernetesSchedulingContext) -> None:
        self._hands, self._around = hands, around

    async def abandon_unfinished(self) -> None:
        await self._hands.abandon_unfinished()

    async def bind(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        await self._around.settle(pod, node)
        await self._hands.bind(pod, node, shares)

    async def eviction_blocker(self, pod: Pod) -> str:
        return await self._hands.eviction_blocker(pod)

    async def evict(self, pod: Pod, grace_seconds: int | None) -> None:
        await self._hands.evict(pod, grace_seconds)
