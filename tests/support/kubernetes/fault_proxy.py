"""An HTTP proxy in front of a real API server that injects faults by rule.

It speaks plain HTTP and adds the administrator's token, so that a kubeconfig with its address is enough. A rule names
methods and paths, and the fault that a share of those requests gets. Rules can be replaced while the proxy runs.
Whether a request gets a fault depends on the seed, its method and path, and how often that was requested before: the
same requests get the same faults, in whatever order they come.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

from support.kubernetes.cluster import TOKEN, Cluster

WRITES = ("POST", "PUT", "PATCH", "DELETE")
LEASES = re.compile(r"/leases(/|$)")
_FORWARDED_HEADERS = ("Content-Type", "Accept")
_MAX_LINE = 1 << 22
_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


@dataclass(frozen=True)
class Respond:
    """The request is not forwarded; it gets this response."""

    status: int
    retry_after: int | None = None


@dataclass(frozen=True)
class DropResponse:
    """The request is forwarded; the client gets a reset instead of the response."""


@dataclass(frozen=True)
class Delay:
    """The response is delayed by up to so many seconds."""

    seconds: float


@dataclass(frozen=True)
class BreakWatch:
    """A watch is reset after so many lines."""

    lines: int = 0


@dataclass(frozen=True)
class ExpireWatch:
    """A watch reports after so many lines that its version has expired."""

    lines: int = 0


Fault = Respond | DropResponse | Delay | BreakWatch | ExpireWatch


@dataclass(frozen=True)
class Rule:
    """The fault of a share of requests. `BreakWatch` and `ExpireWatch` apply to watches, the others to all else."""

    fault: Fault
    share: float = 1.0
    methods: Sequence[str] = ("GET", *WRITES)
    path: str = ""  # a regular expression that matches anywhere in the path

    def matches(self, method: str, path: str, watch: bool) -> bool:
        if isinstance(self.fault, BreakWatch | ExpireWatch) != watch or method not in self.methods:
            return False
        return re.search(self.path, path) is not None


class FaultProxy:
    """Runs in one event loop; its rules may be set from any thread."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self._server = URL(cluster.server)
        self._trust = ssl.create_default_context(cafile=str(cluster.pki / "ca.crt"))
        self._trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._seed = seed
        self._requests: Counter[tuple[str, str]] = Counter()
        self._open: dict[asyncio.Task[None] | None, web.Request] = {}  # requests in progress
        self._crash: tuple[int, Callable[[], None], str] | None = None  # see `crash_after`
        self._session: aiohttp.ClientSession | None = None
        self.rules: Sequence[Rule] = ()  # the first that applies counts; replace the whole sequence
        self.down = False  # every request is reset
        self.injected: Counter[str] = Counter()  # faults so far, by name
        self.writes: list[str] = []  # forwarded since `crash_after`, without renewals of leases
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        application = web.Application(client_max_size=1 << 24)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._trust, keepalive_timeout=30)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=_MAX_LINE) as self._session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            try:
                yield
            finally:
                tasks = [task for task in self._open if task is not None]
                self.reset_connections()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await runner.cleanup()

    def kubeconfig(self, folder: Path) -> Path:
        """Writes a kubeconfig with the proxy's address, and returns its path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "admin", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        file = folder / f"faults-{self.port}.kubeconfig"
        file.write_text(json.dumps(config))
        return file

    # --- controls

    def reset_connections(self) -> None:
        """Resets every open request. To be called in its event loop."""
        for request in list(self._open.values()):
            _reset(request)

    def crash_after(self, writes: int, crash: Callable[[], None], path: str = "") -> None:
        """Calls `crash` once so many writes to matching paths were done, and forwards no more of them until `clear`."""
        self.writes = []
        self._crash = (writes, crash, path)

    def clear(self) -> None:
        """Removes all rules and the crash."""
        self.rules, self._crash, self.down = (), None, False

    # --- requests

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self._open[asyncio.current_task()] = request
        try:
            return await self._serve(request)
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            return _reset(request)  # the server or the client is gone
        finally:
            del self._open[asyncio.current_task()]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") in ("true", "1")
        fault = self._fault(request.method, request.path, watch)
        if fault is not None:
            self.injected[f"Respond {fault.status}" if isinstance(fault, Respond) else type(fault).__name__] += 1
        data = await request.read()
        if self.down:
            return _reset(request)
        if isinstance(fault, Respond):
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            return web.json_response(_status(fault.status), status=fault.status, headers=headers)
        if watch:
            return await self._stream(request, fault)
        if request.method in WRITES and not LEASES.search(request.path):
            return await self._write(request, data, fault)
        return await self._forward(request, data, fault)

    def _fault(self, method: str, path: str, watch: bool) -> Fault | None:
        self._requests[method, path] += 1
        chance = random.Random(f"{self._seed} {method} {path} {self._requests[method, path]}")
        faults = (
            rule.fault for rule in self.rules if rule.matches(method, path, watch) and chance.random() < rule.share
        )
        return next(faults, None)

    async def _write(self, request: web.Request, data: bytes, fault: Fault | None) -> web.StreamResponse:
        if self._crash is None or not re.search(self._crash[2], request.path):
            return await self._forward(request, data, fault)
        last, crash, _ = self._crash
        if len(self.writes) >= last:
            return _reset(request)
        self.writes.append(f"{request.method} {request.path}")
        number = len(self.writes)
        response = await self._forward(request, data, fault)
        if number == last:
            crash()
            return _reset(request)
        return response

    async def _forward(self, request: web.Request, data: bytes, fault: Fault | None) -> web.StreamResponse:
        async with self._request(request, data) as upstream:
            payload = await upstream.read()
        if isinstance(fault, Delay):
            await asyncio.sleep(random.Random(f"{self._seed} {request.path} {len(payload)}").uniform(0, fault.seconds))
        if isinstance(fault, DropResponse):
            return _reset(request)
        kept = {name: upstream.headers[name] for name in ("Content-Type", "Retry-After") if name in upstream.headers}
        return web.Response(status=upstream.status, body=payload, headers=kept)

    async def _stream(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        """Forwards a watch line by line."""
        left = fault.lines if isinstance(fault, BreakWatch | ExpireWatch) else -1
        async with self._request(request, b"") as upstream:
            response = web.StreamResponse(status=upstream.status, headers={"Content-Type": upstream.content_type})
            await response.prepare(request)
            while left != 0 and (line := await upstream.content.readline()):
                await response.write(line)
                left -= 1
        if isinstance(fault, BreakWatch) and left == 0:
            return _reset(request)
        if isinstance(fault, ExpireWatch) and left == 0:
            await response.write(json.dumps({"type": "ERROR", "object": _status(410)}).encode() + b"\n")
        await response.write_eof()
        return response

    @asynccontextmanager
    async def _request(self, request: web.Request, data: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        headers = {name: request.headers[name] for name in _FORWARDED_HEADERS if name in request.headers}
        address = self._server.join(request.rel_url)
        unlimited = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method,
            address,
            data=data or None,
            headers={**headers, "Authorization": f"Bearer {TOKEN}"},
            timeout=unlimited,
            allow_redirects=False,
        ) as response:
            yield response


def _reset(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)  # never sent


def _status(code: int) -> dict[str, object]:
    reason = _REASONS[code]
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason,
    }  # fmt: skip
