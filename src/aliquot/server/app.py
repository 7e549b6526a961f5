"""The ASGI application: routes, error responses, request metrics and probes."""

from __future__ import annotations

import asyncio
import json
import time
from functools import cache

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aliquot import __version__
from aliquot.admission.hooks import Hooks
from aliquot.api import KINDS, Json
from aliquot.auth.kubeconfigs import KubeconfigIssuer
from aliquot.errors import NotFound, PlatformError, Unavailable
from aliquot.scheduler.last_decision import LastDecision
from aliquot.server.access_control import AccessControl
from aliquot.server.explain import Explanations
from aliquot.server.http_json import error_response, json_response
from aliquot.server.kubeconfig_routes import KubeconfigRoutes
from aliquot.server.object_routes import PREFIX, ObjectRoutes
from aliquot.server.stream_routes import ResponseAborted, StreamRoutes
from aliquot.store.driver import StoreDriver
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from aliquot.streams import Streams
from aliquot.telemetry.metrics import Metrics

log = structlog.get_logger()


class ServerContext:
    """What the routes of one server share: the store, access control, admission hooks, metrics and the stop event."""

    def __init__(
        self,
        driver: StoreDriver,
        *,
        informers: Informers | None = None,
        flavour: str = "embedded",
        streams: Streams | None = None,
        facts: Json | None = None,
        last_decision: LastDecision | None = None,
        kubeconfigs: KubeconfigIssuer | None = None,
    ) -> None:
        self.driver = driver
        self.flavour = flavour
        self.streams = streams
        self.facts = facts or {}  # what `aliquot status` shows besides the objects
        self.last_decision = last_decision  # None if no scheduler runs in this process
        self.kubeconfigs = kubeconfigs  # None without Kubernetes
        self.informers = informers or Informers(driver)
        self.access = AccessControl(driver, self.informers)
        self.hooks = Hooks(driver, self.informers)
        self.metrics = Metrics()
        self.stopping = asyncio.Event()

    @property
    def ready(self) -> bool:
        return not self.stopping.is_set() and self.informers.synced


def application(context: ServerContext) -> ASGIApp:
    """The ASGI application. The caller runs `context.informers`."""
    routes: list[BaseRoute] = [
        *_probes(context),
        Route("/openapi.json", _openapi),
        Route(f"{PREFIX}/whoami", _Whoami(context), methods=["GET"]),
        *StreamRoutes(Store(context.driver), context.access, context.streams, context.stopping).routes(),
        *Explanations(Store(context.driver), context.access, context.last_decision).routes(),
        *KubeconfigRoutes(context.access, context.kubeconfigs).routes(),
        *ObjectRoutes(context.driver, context.access, context.hooks, context.stopping).routes(),
    ]
    return _build(context, routes)


def probe_application(context: ServerContext) -> ASGIApp:
    """Only probes and metrics, for a process that serves no API."""
    return _build(context, _probes(context))


def _probes(context: ServerContext) -> list[BaseRoute]:
    return [
        Route("/healthz", _healthz),
        Route("/livez", _healthz),
        Route("/readyz", _Readiness(context), methods=["GET"]),
        Route("/metrics", _MetricsEndpoint(context), methods=["GET"]),
    ]


def _build(context: ServerContext, routes: list[BaseRoute]) -> ASGIApp:
    handlers = {HTTPException: _http_error, PlatformError: _platform_error, Exception: _internal_error}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return _RequestMiddleware(app, context.metrics)


class _RequestMiddleware:
    """Counts requests, and logs those that fail."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, code = time.monotonic(), 0

        async def send_and_note_status(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        watching = b"watch=true" in scope["query_string"] or b"watch=1" in scope["query_string"]
        self._metrics.add_watchers(int(watching))
        try:
            await self._app(scope, receive, send_and_note_status)
        except ResponseAborted as exc:
            log.warning("response aborted", path=scope["path"], error=str(exc))
        except Exception:  # the outermost handler: _internal_error has answered, the traceback goes to the log
            log.exception("request failed", method=scope["method"], path=scope["path"])
        finally:
            self._metrics.add_watchers(-int(watching))
            verb = "WATCH" if watching else scope["method"]
            self._metrics.observe_request(verb, _resource(scope), code, time.monotonic() - started)


def _resource(scope: Scope) -> str:
    """The resource label of metrics: the plural of a kind, or `other`, so that it has few values."""
    path = scope["path"]
    parts = path.removeprefix(f"{PREFIX}/").split("/")
    plural = parts[2] if len(parts) > 2 and parts[0] == "namespaces" else parts[0]
    return plural if plural in _plurals() else "other"


@cache
def _plurals() -> frozenset[str]:
    return frozenset(kind.plural for kind in KINDS)


async def _platform_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, PlatformError)
    return error_response(exc)


async def _internal_error(request: Request, exc: Exception) -> Response:
    """A bug of ours. The client does not learn its details."""
    return error_response(PlatformError("the server failed on this request", hint="its log has the details"))


async def _http_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    error = PlatformError(f"{request.method} is not possible on {request.url.path}")
    if exc.status_code == 404:
        error = NotFound(
            f"nothing is served at {request.url.path}", hint=f"objects are under {PREFIX}; see /openapi.json"
        )
    error.status = exc.status_code
    error.reason = {404: "NotFound", 405: "MethodNotAllowed"}.get(exc.status_code, "BadRequest")
    response = error_response(error)
    response.headers.update(exc.headers or {})  # such as Allow, with the methods that exist
    return response


async def _healthz(request: Request) -> Response:
    return PlainTextResponse("ok")


async def _openapi(request: Request) -> Response:
    return json_response(_openapi_bytes())


@cache
def _openapi_bytes() -> bytes:
    from aliquot.server import openapi  # it reads the source of every type, and few clients ask

    return json.dumps(openapi.document()).encode()


class _Readiness:
    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not self._context.ready:
                raise Unavailable("starting or stopping")
            await self._context.driver.check()
            response: Response = PlainTextResponse("ok")
        except PlatformError as exc:
            response = PlainTextResponse(f"not ready: {exc.message}", 503)
        await response(scope, receive, send)


class _MetricsEndpoint:
    """Metrics require a token, because they reveal what the cluster holds."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, request = self._context, Request(scope)
        await context.access.authenticate(request.headers.get("authorization"))
        counts = {kind.name: await context.driver.count(kind) for kind in KINDS}
        response = Response(context.metrics.text(counts), media_type="text/plain; version=0.0.4")
        await response(scope, receive, send)


class _Whoami:
    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = await self._context.access.authenticate(Request(scope).headers.get("authorization"))
        roles = [
            {"role": role.role, "scope": role.scope, **({"name": role.name} if role.name else {})}
            for role in caller.roles
        ]
        answer = {
            "subject": caller.subject,
            "user": caller.subject,
            "roles": roles,
            "server": {"version": __version__, "flavour": self._context.flavour, **self._context.facts},
        }
        await json_response(answer)(scope, receive, send)
