"""The application: routes, and what every request passes on its way (errors in our form, metrics, the log)."""

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
    """Everything a running server has: its store, its access tables, its figures, and the wish to stop."""

    def __init__(
        self,
        driver: StoreDriver,
        *,
        informers: Informers | None = None,
        flavour: str = "embedded",
        streams: Streams | None = None,
        facts: Json | None = None,
        last: LastDecision | None = None,
        kubeconfigs: KubeconfigIssuer | None = None,
    ) -> None:
        self.driver = driver
        self.flavour = flavour
        self.streams = streams
        self.facts = facts or {}  # what `aliquot status` shows beside the objects
        self.last = last  # of the scheduler in this process, where there is one
        self.kubeconfigs = kubeconfigs  # where there is a Kubernetes to give access to
        self.informers = informers or Informers(driver)
        self.access = AccessControl(driver, self.informers)
        self.hooks = Hooks(driver, self.informers)
        self.metrics = Metrics()
        self.stopping = asyncio.Event()

    @property
    def ready(self) -> bool:
        return not self.stopping.is_set() and self.informers.synced


def application(service: ServerContext) -> ASGIApp:
    """The ASGI application. The caller runs `service.informers`."""
    routes: list[BaseRoute] = [
        *_probes(service),
        Route("/openapi.json", _openapi),
        Route(f"{PREFIX}/whoami", _Whoami(service), methods=["GET"]),
        *StreamRoutes(Store(service.driver), service.access, service.streams, service.stopping).routes(),
        *Explanations(Store(service.driver), service.access, service.last).routes(),
        *KubeconfigRoutes(service.access, service.kubeconfigs).routes(),
        *ObjectRoutes(service.driver, service.access, service.hooks, service.stopping).routes(),
    ]
    return _wrapped(service, routes)


def probe_application(service: ServerContext) -> ASGIApp:
    """Only what tells whether the process is well: for one that decides and answers nobody."""
    return _wrapped(service, _probes(service))


def _probes(service: ServerContext) -> list[BaseRoute]:
    return [
        Route("/healthz", _healthz),
        Route("/livez", _healthz),
        Route("/readyz", _Readiness(service), methods=["GET"]),
        Route("/metrics", _Figures(service), methods=["GET"]),
    ]


def _wrapped(service: ServerContext, routes: list[BaseRoute]) -> ASGIApp:
    handlers = {HTTPException: _http_error, PlatformError: _refusal, Exception: _failure}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return _Envelope(app, service.metrics)


class _Envelope:
    """Around every request: errors become answers, answers are counted."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, code = time.monotonic(), 0

        async def count(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        watching = b"watch=true" in scope["query_string"] or b"watch=1" in scope["query_string"]
        self._metrics.add_watchers(int(watching))
        try:
            await self._app(scope, receive, count)
        except ResponseAborted as exc:
            log.warning("answer broken off", path=scope["path"], error=str(exc))
        except Exception:  # the outermost loop: the answer was sent by _failure, the reason is for us
            log.exception("request failed", method=scope["method"], path=scope["path"])
        finally:
            self._metrics.add_watchers(-int(watching))
            verb = "WATCH" if watching else scope["method"]
            self._metrics.observe_request(verb, _resource(scope), code, time.monotonic() - began)


def _resource(scope: Scope) -> str:
    """A label with few values: the kind, or the page."""
    path = scope["path"]
    parts = path.removeprefix(f"{PREFIX}/").split("/")
    plural = parts[2] if len(parts) > 2 and parts[0] == "namespaces" else parts[0]
    return plural if plural in _plurals() else "other"


@cache
def _plurals() -> frozenset[str]:
    return frozenset(kind.plural for kind in KINDS)


async def _refusal(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, PlatformError)
    return error_response(exc)


async def _failure(request: Request, exc: Exception) -> Response:
    """A fault of ours: the client learns that, and nothing of our insides."""
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
    response.headers.update(exc.headers or {})  # which methods there are instead
    return response


async def _healthz(request: Request) -> Response:
    return PlainTextResponse("ok")


async def _openapi(request: Request) -> Response:
    return json_response(_openapi_bytes())


@cache
def _openapi_bytes() -> bytes:
    from aliquot.server import openapi  # reads every type's source; most servers are never asked

    return json.dumps(openapi.document()).encode()


class _Readiness:
    def __init__(self, service: ServerContext) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not self._service.ready:
                raise Unavailable("starting or stopping")
            await self._service.driver.check()
            response: Response = PlainTextResponse("ok")
        except PlatformError as exc:
            response = PlainTextResponse(f"not ready: {exc.message}", 503)
        await response(scope, receive, send)


class _Figures:
    """Metrics need a token like everything that tells of the inside."""

    def __init__(self, service: ServerContext) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, request = self._service, Request(scope)
        await service.access.authenticate(request.headers.get("authorization"))
        counts = {kind.name: await service.driver.count(kind) for kind in KINDS}
        response = Response(service.metrics.text(counts), media_type="text/plain; version=0.0.4")
        await response(scope, receive, send)


class _Whoami:
    def __init__(self, service: ServerContext) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = await self._service.access.authenticate(Request(scope).headers.get("authorization"))
        roles = [
            {"role": role.role, "scope": role.scope, **({"name": role.name} if role.name else {})}
            for role in caller.roles
        ]
        answer = {
            "subject": caller.subject,
            "user": caller.subject,
            "roles": roles,
            "server": {"version": __version__, "flavour": self._service.flavour, **self._service.facts},
        }
        await json_response(answer)(scope, receive, send)
