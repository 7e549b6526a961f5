"""The admission webhook: the API server calls it before it admits a pod.

It injects what enforces a GPU fraction into pods that ask for one, or refuses them with what is wrong. In namespaces
with an enforced scheduler name it sets the name of this scheduler (scheduler_name.py).

The API server itself selects the pods, by annotations (`matchConditions`) and by a label of the namespace. While the
webhook is down it refuses those pods (`failurePolicy: Fail`), and their controllers retry. It admits all other pods
without calling the webhook.

    inject_gpu        (pod, namespace, settings) -> the pod with its GPU injection
    review_response   an AdmissionReview in, an AdmissionReview out
    configuration     the MutatingWebhookConfiguration
    Webhook           serves it over TLS, with a certificate that all replicas share
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

CONFIGURATION_NAME = "aliquot"
_TIMEOUT_SECONDS = 5  # until the API server gives up; a response takes milliseconds
_RENEW_SECONDS = 3600.0
_RETRY_SECONDS = 5.0
_MAX_REVIEW_BYTES = 8 << 20  # two copies of the largest possible object, and some more
log = structlog.get_logger()
T = TypeVar("T")
Decide = Callable[[Json, str], list[Json]]  # (pod, namespace) -> JSON patch


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    """Where the API server reaches the webhook: at a URL, or through a Service of the cluster."""

    # Such as https://10.0.0.7:9443; empty: the Service.
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
        """The names that its certificate must cover."""
        if self.url:
            return (urlsplit(self.url).hostname or "",)
        return (f"{self.service}.{self.namespace}.svc", f"{self.service}.{self.namespace}.svc.cluster.local")

    def client_config(self, path: str, bundle: bytes) -> Json:
        trust = {"caBundle": base64.b64encode(bundle).decode()}
        if self.url:
            return {"url": self.url.rstrip("/") + path, **trust}
        service = {"name": self.service, "namespace": self.namespace, "path": path, "port": self.port}
        return {"service": service, **trust}


# ---------------------------------------------------------------- decisions


def inject_gpu(pod: Json, namespace: str, settings: GpuSharingSettings) -> Json:
    """The pod with its GPU injection; idempotent. `Invalid` with every fault of its request."""
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if not asks_for_fraction(annotations):
        return pod
    request = parse_fraction_request(pod)
    annotated = {**annotations, labels.GPU_CONFIG: _config_map(metadata, namespace)}
    pod = {**pod, "metadata": {**metadata, "annotations": annotated}}
    return inject(pod, request, annotated[labels.GPU_CONFIG], settings)


def _config_map(metadata: Json, namespace: str) -> str:
    """The name of the pod's ConfigMap. A pod without a name yet gets a random one, and keeps it when reinvoked."""
    if name := str(metadata.get("name") or ""):
        return config_map_name(namespace, name)
    current = str((metadata.get("annotations") or {}).get(labels.GPU_CONFIG) or "")
    return current if is_config_map_name(current) else NAME_PREFIX + secrets.token_hex(8)


def json_patch(before: Json, after: Json) -> list[Json]:
    """The JSON patch from one pod to the other; it replaces all annotations and whole fields of the spec."""
    operations: list[Json] = []
    annotations = (after.get("metadata") or {}).get("annotations")
    if annotations != (before.get("metadata") or {}).get("annotations"):
        operations.append({"op": "add", "path": "/metadata/annotations", "value": annotations})
    for key, value in after["spec"].items():
        if before["spec"].get(key) != value:
            operations.append({"op": "add", "path": f"/spec/{key}", "value": value})
    return operations


def review_response(review: Json, decide: Decide) -> Json:
    """`decide` returns the patch for the pod, given the name of its namespace."""
    request = review["request"]
    response: Json = {"uid": request["uid"], "allowed": True}
    try:
        patch = decide(request["object"], str(request.get("namespace") or ""))
        if patch:
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    except Invalid as exc:
        status = {"code": exc.status, "reason": exc.reason, "message": str(exc)}
        response = {"uid": request["uid"], "allowed": False, "status": status}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


def configuration(address: WebhookAddress, bundle: bytes) -> Json:
    """The MutatingWebhookConfiguration.

    The scheduler name comes first, because the condition of the second webhook depends on it.
    """
    names = ", ".join(f"'{name}'" for name in labels.SCHEDULER_NAMES)
    keys = ", ".join(f"'{key}'" for key in (*FRACTION_ANNOTATIONS, *MEMORY_ANNOTATIONS))
    asks_for_fraction = f"has(object.metadata.annotations) && [{keys}].exists(key, key in object.metadata.annotations)"
    our_scheduler = {"name": "ours-to-place", "expression": f"object.spec.schedulerName in [{names}]"}
    return {
        "metadata": {"name": CONFIGURATION_NAME, "labels": {"app.kubernetes.io/managed-by": "aliquot"}},
        "webhooks": [
            {
                **_hook("scheduler.aliquot.dev", address.client_config("/scheduler", bundle)),
                "namespaceSelector": {"matchLabels": {labels.SCHEDULER_ENFORCED: "true"}},
            },
            {
                **_hook("gpu.aliquot.dev", address.client_config("/pods", bundle)),
                "matchConditions": [our_scheduler, {"name": "part-of-a-gpu", "expression": asks_for_fraction}],
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
    def gpu_patch(pod: Json, namespace: str) -> list[Json]:
        return json_patch(pod, inject_gpu(pod, namespace, settings))

    def scheduler_patch(pod: Json, name: str) -> list[Json]:
        namespace = namespaces.get(name)
        return scheduler_name_patch(pod, encode(namespace)) if namespace is not None else []

    return Starlette(routes=[_route("/pods", gpu_patch), _route("/scheduler", scheduler_patch)])


def _route(path: str, decide: Decide) -> Route:
    async def review(request: Request) -> Response:
        raw = await request.body()
        try:
            if len(raw) > _MAX_REVIEW_BYTES:
                raise ValueError
            response = review_response(json.loads(raw), decide)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return JSONResponse({"error": "not an AdmissionReview of a pod"}, status_code=400)
        return JSONResponse(response)

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
        """`listener` is a bound socket; `address` is where the API server reaches it."""
        self._driver = driver
        self._namespaces = informers.of(Namespace)
        self._address = address
        self._listener = listener
        self._settings = settings
        self.ready = asyncio.Event()  # the webhook serves, and the API server knows it

    async def run(self) -> None:
        """Runs until cancelled. The webhook serves before it is registered with the API server, never after."""
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
        certificate = await self._renew(trust)
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110  # uvicorn has no event for it
                await asyncio.sleep(0.01)
            while not serving.done():
                await self._register(certificate)
                await asyncio.wait([serving], timeout=_RENEW_SECONDS)
                certificate = await self._renew(trust)
        finally:
            server.should_exit = True
            await serving

    async def _renew(self, trust: ssl.SSLContext) -> certificates.Certificates:
        certificate = await self._retry(lambda: certificates.ensure(self._driver, self._address.names))
        certificate.load_into(trust)
        return certificate

    async def _register(self, certificate: certificates.Certificates) -> None:
        wanted = configuration(self._address, certificate.bundle)
        await self._retry(lambda: self._driver.apply(MUTATING_WEBHOOK, wanted))
        if not self.ready.is_set():
            log.info("webhook serving", url=self._address.url or self._address.names[0])
            self.ready.set()

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except PlatformError as exc:
                log.warning("webhook not set up", error=str(exc))
            await asyncio.sleep(_RETRY_SECONDS)


class _Server(uvicorn.Server):
    """Leaves signals alone: `serve` handles them for the whole process."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # also a method in uvicorn
        return nullcontext()
