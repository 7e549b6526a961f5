"""Asked by the API server before it takes a pod: gives those that want a part of a GPU their fence, or says what is
wrong with their request; and hands pods of enforced namespaces to our scheduler (enforcement.py).

The API server itself picks the pods, by annotations (`matchConditions`) and by a label of the namespace. While nobody
answers it takes none of those (`failurePolicy: Fail`), and their controllers try again; all others never wait for us.

    with_fence       (pod, namespace, settings) -> the pod as it must be
    answer           a review in, a review out
    configuration    what the API server is told
    Webhook          serves it over TLS, with a certificate that all replicas share
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aliquot import labels
from aliquot.api import Json, Namespace, encode
from aliquot.backends.kubernetes import certificates
from aliquot.backends.kubernetes.fraction_request import (
    FRACTION_ANNOTATIONS,
    MEMORY_ANNOTATIONS,
    asks_for_fraction,
    parse_fraction_request,
)
from aliquot.backends.kubernetes.gpu_injection import NAME_PREFIX, config_map_name, inject, is_config_map_name
from aliquot.backends.kubernetes.scheduler_name import scheduler_name_patch
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.backends.kubernetes.unstructured_kinds import MUTATING_WEBHOOK
from aliquot.errors import Invalid, PlatformError
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.informer import Informer, Informers

CONFIGURATION_NAME = "aliquot"  # of the configuration
_TIMEOUT_SECONDS = 5  # of the API server's patience; an answer takes milliseconds
_RENEW_SECONDS = 3600.0
_RETRY_SECONDS = 5.0
_MOST_BYTES = 8 << 20  # of a review: two copies of the largest object there can be, with room
log = structlog.get_logger()
T = TypeVar("T")
Decide = Callable[[Json, str], list[Json]]  # (pod, namespace) -> JSON patch


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    """Where the API server finds us: a URL from outside the cluster, or a service of it."""

    # Such as https://10.0.0.7:9443; empty: the service.
    url: str = ""
    service: str = "aliquot-webhook"
    namespace: str = labels.SYSTEM_NAMESPACE
    port: int = 443

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if self.url and (parts.scheme != "https" or not parts.hostname or parts.query or parts.path not in ("", "/")):
            raise Invalid(f"the webhook's address must look like https://host:port, not {self.url!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """What its certificate must be good for."""
        if self.url:
            return (urlsplit(self.url).hostname or "",)
        return (f"{self.service}.{self.namespace}.svc", f"{self.service}.{self.namespace}.svc.cluster.local")

    def client(self, path: str, bundle: bytes) -> Json:
        trust = {"caBundle": base64.b64encode(bundle).decode()}
        if self.url:
            return {"url": self.url.rstrip("/") + path, **trust}
        place = {"name": self.service, "namespace": self.namespace, "path": path, "port": self.port}
        return {"service": place, **trust}


# ---------------------------------------------------------------- decisions


def inject_gpu(pod: Json, namespace: str, settings: GpuSharingSettings) -> Json:
    """The pod as it must be; `Invalid` with every fault of its request. Asked again it says the same."""
    metadata = pod.get("metadata") or {}
    marks = metadata.get("annotations") or {}
    if not asks_for_fraction(marks):
        return pod
    part = parse_fraction_request(pod)
    name, kept = str(metadata.get("name") or ""), str(marks.get(labels.GPU_CONFIG) or "")
    # A pod without a name yet gets a name nobody has; it keeps it when we are asked again.
    config = (
        config_map_name(namespace, name)
        if name
        else kept
        if is_config_map_name(kept)
        else NAME_PREFIX + secrets.token_hex(8)
    )
    marked = {**pod, "metadata": {**metadata, "annotations": {**marks, labels.GPU_CONFIG: config}}}
    return inject(marked, part, config, settings)


def json_patch(before: Json, after: Json) -> list[Json]:
    """What leads from one pod to the other, by parts of the spec and annotations as a whole."""
    steps: list[Json] = []
    marks = (after.get("metadata") or {}).get("annotations")
    if marks != (before.get("metadata") or {}).get("annotations"):
        steps.append({"op": "add", "path": "/metadata/annotations", "value": marks})
    for key, value in after["spec"].items():
        if before["spec"].get(key) != value:
            steps.append({"op": "add", "path": f"/spec/{key}", "value": value})
    return steps


def review_response(review: Json, decide: Decide) -> Json:
    """`decide` says what is to be changed about the pod, given the name of its namespace."""
    request = review["request"]
    response: Json = {"uid": request["uid"], "allowed": True}
    try:
        steps = decide(request["object"], str(request.get("namespace") or ""))
        if steps:
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(steps).encode()).decode()}
    except Invalid as exc:
        status = {"code": exc.status, "reason": exc.reason, "message": str(exc)}
        response = {"uid": request["uid"], "allowed": False, "status": status}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


def configuration(address: WebhookAddress, bundle: bytes) -> Json:
    """What the API server asks us about. Enforcing comes first: what it changes decides about the rest."""
    names = ", ".join(f"'{name}'" for name in labels.SCHEDULER_NAMES)
    marks = ", ".join(f"'{key}'" for key in (*FRACTION_ANNOTATIONS, *MEMORY_ANNOTATIONS))
    marked = f"has(object.metadata.annotations) && [{marks}].exists(key, key in object.metadata.annotations)"
    ours = {"name": "ours-to-place", "expression": f"object.spec.schedulerName in [{names}]"}
    return {
        "metadata": {"name": CONFIGURATION_NAME, "labels": {"app.kubernetes.io/managed-by": "aliquot"}},
        "webhooks": [
            {
                **_hook("scheduler.aliquot.dev", address.client("/scheduler", bundle)),
                "namespaceSelector": {"matchLabels": {labels.SCHEDULER_ENFORCED: "true"}},
            },
            {
                **_hook("gpu.aliquot.dev", address.client("/pods", bundle)),
                "matchConditions": [ours, {"name": "part-of-a-gpu", "expression": marked}],
            },
        ],
    }


def _hook(name: str, client: Json) -> Json:
    return {
        "name": name,
        "clientConfig": client,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": _TIMEOUT_SECONDS,
    }


# ---------------------------------------------------------------- serving


def application(namespaces: Informer[Namespace], settings: GpuSharingSettings) -> Starlette:
    def fence(pod: Json, namespace: str) -> list[Json]:
        return json_patch(pod, inject_gpu(pod, namespace, settings))

    def enforce(pod: Json, namespace: str) -> list[Json]:
        found = namespaces.get(namespace)
        return scheduler_name_patch(pod, encode(found)) if found is not None else []

    return Starlette(routes=[_route("/pods", fence), _route("/scheduler", enforce)])


def _route(path: str, decide: Decide) -> Route:
    async def review(request: Request) -> Response:
        raw = await request.body()
        try:
            if len(raw) > _MOST_BYTES:
                raise ValueError
            said = review_response(json.loads(raw), decide)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return JSONResponse({"error": "this is not a review of a pod"}, status_code=400)
        return JSONResponse(said)

    return Route(path, review, methods=["POST"])


class Webhook:
    def __init__(
        self,
        driver: KubernetesDriver,
        informers: Informers,
        address: WebhookAddress,
        listener: socket.socket,
        settings: GpuSharingSettings,
    ) -> None:
        """`listener` is bound; where the API server reaches it is said by `address`."""
        self._driver = driver
        self._namespaces = informers.of(Namespace)
        self._address = address
        self._listener = listener
        self._settings = settings
        self.ready = asyncio.Event()  # the API server knows of us, and we answer

    async def run(self) -> None:
        """Until cancelled. The API server is told of us once we answer, and never the other way round."""
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trust.minimum_version = ssl.TLSVersion.TLSv1_2
        server = _Server(
            uvicorn.Config(
                application(self._namespaces, self._settings),
                log_config=None,
                access_log=False,
                lifespan="off",
                ssl_context_factory=lambda *_: trust,
                timeout_graceful_shutdown=_TIMEOUT_SECONDS,
            )
        )
        current = await self._renew(trust)
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110  # uvicorn has no event for it
                await asyncio.sleep(0.01)
            while not serving.done():
                await self._tell(current)
                await asyncio.wait([serving], timeout=_RENEW_SECONDS)
                current = await self._renew(trust)
        finally:
            server.should_exit = True
            await serving

    async def _renew(self, trust: ssl.SSLContext) -> certificates.Certificates:
        found = await self._patiently(lambda: certificates.ensure(self._driver, self._address.names))
        found.load_into(trust)
        return found

    async def _tell(self, current: certificates.Certificates) -> None:
        wanted = configuration(self._address, current.bundle)
        await self._patiently(lambda: self._driver.apply(MUTATING_WEBHOOK, wanted))
        if not self.ready.is_set():
            log.info("webhook serves", url=self._address.url or self._address.names[0])
            self.ready.set()

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except PlatformError as exc:
                log.warning("webhook not set up", error=str(exc))
            await asyncio.sleep(_RETRY_SECONDS)


class _Server(uvicorn.Server):
    """Without signal handling of its own: the process has one owner of signals."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # a method there, too
        return nullcontext()
