"""A bad day for an API server: a proxy before a real one that breaks promises by rule.

It speaks plain HTTP and adds the administrator's token, so that a kubeconfig with its address is enough. It knows
requests, not only bytes: a rule names methods and paths, and what befalls a share of them. Rules are changed while it
runs. Whether a request is hit depends on the seed, its method and path, and how often that was asked before: the same
requests have the same fate, in whatever order they come.
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
_PASSED_ON = ("Content-Type", "Accept")
_LONGEST_LINE = 1 << 22
_WORDS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


@dataclass(frozen=True)
class Respond:
    """The request does nothing, and gets this answer."""

    status: int
    retry_after: int | None = None


@dataclass(frozen=True)
class DropResponse:
    """The server does it; instead of the answer comes a reset."""


@dataclass(frozen=True)
class Delay:
    """The answer is late by up to so many seconds."""

    seconds: float


@dataclass(frozen=True)
class BreakWatch:
    """A watch breaks off after so many lines."""

    lines: int = 0


@dataclass(frozen=True)
class ExpireWatch:
    """A watch says after so many lines that it has fallen behind."""

    lines: int = 0


Fault = Respond | DropResponse | Delay | BreakWatch | ExpireWatch


@dataclass(frozen=True)
class Rule:
    """What happens to a share of requests. `Cut` and `Gone` are for watches, the others for all else."""

    deed: Fault
    share: float = 1.0
    methods: Sequence[str] = ("GET", *WRITES)
    path: str = ""  # found anywhere in it, as a regular expression

    def fits(self, method: str, path: str, watch: bool) -> bool:
        if isinstance(self.deed, BreakWatch | ExpireWatch) != watch or method not in self.methods:
            return False
        return re.search(self.path, path) is not None


class FaultProxy:
    """The proxy. It lives in its loop; what it is to do may be said from any thread."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self._server = URL(cluster.server)
        self._trust = ssl.create_default_context(cafile=str(cluster.pki / "ca.crt"))
        self._trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._seed = seed
        self._asked: Counter[tuple[str, str]] = Counter()
        self._open: dict[asyncio.Task[None] | None, web.Request] = {}
        self._strike: tuple[int, Callable[[], None], str] | None = None
        self._session: aiohttp.ClientSession | None = None
        self.rules: Sequence[Rule] = ()  # the first that hits counts; replace it as a whole
        self.down = False  # every request is answered by a reset
        self.dealt: Counter[str] = Counter()  # what befell requests, by the name of the deed
        self.writes: list[str] = []  # that were passed on since `strike_at`, other than renewals of leases
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        application = web.Application(client_max_size=1 << 24)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._trust, keepalive_timeout=30)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=_LONGEST_LINE) as self._session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            try:
                yield
            finally:
                tasks = [task for task in self._open if task is not None]
                self.cut()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await runner.cleanup()

    def kubeconfig(self, folder: Path) -> Path:
        """A file that leads here."""
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

    # --- what a test does to it

    def cut(self) -> None:
        """Resets everything that is open. In its loop."""
        for request in list(self._open.values()):
            _reset(request)

    def strike_at(self, write: int, strike: Callable[[], None], path: str = "") -> None:
        """When so many writes (to paths like this) were done, and before another one is: `strike`, and no such write
        passes until `calm`."""
        self.writes = []
        self._strike = (write, strike, path)

    def calm(self) -> None:
        """No rule any longer, and no strike."""
        self.rules, self._strike, self.down = (), None, False

    # --- inside

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self._open[asyncio.current_task()] = request
        try:
            return await self._serve(request)
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            return _reset(request)  # the server is gone, or the client
        finally:
            del self._open[asyncio.current_task()]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") in ("true", "1")
        deed = self._deed(request.method, request.path, watch)
        if deed is not None:
            self.dealt[f"Answer {deed.status}" if isinstance(deed, Respond) else type(deed).__name__] += 1
        data = await request.read()
        if self.down:
            return _reset(request)
        if isinstance(deed, Respond):
            headers = {} if deed.retry_after is None else {"Retry-After": str(deed.retry_after)}
            return web.json_response(_status(deed.status), status=deed.status, headers=headers)
        if watch:
            return await self._stream(request, deed)
        if request.method in WRITES and not LEASES.search(request.path):
            return await self._write(request, data, deed)
        return await self._pass(request, data, deed)

    def _deed(self, method: str, path: str, watch: bool) -> Fault | None:
        self._asked[method, path] += 1
        chance = random.Random(f"{self._seed} {method} {path} {self._asked[method, path]}")
        hits = (rule.deed for rule in self.rules if rule.fits(method, path, watch) and chance.random() < rule.share)
        return next(hits, None)

    async def _write(self, request: web.Request, data: bytes, deed: Fault | None) -> web.StreamResponse:
        if self._strike is None or not re.search(self._strike[2], request.path):
            return await self._pass(request, data, deed)
        last, strike, _ = self._strike
        if len(self.writes) >= last:
            return _reset(request)
        self.writes.append(f"{request.method} {request.path}")
        number = len(self.writes)
        answer = await self._pass(request, data, deed)
        if number == last:
            strike()
            return _reset(request)
        return answer

    async def _pass(self, request: web.Request, data: bytes, deed: Fault | None) -> web.StreamResponse:
        async with self._ask(request, data) as answer:
            payload = await answer.read()
        if isinstance(deed, Delay):
            await asyncio.sleep(random.Random(f"{self._seed} {request.path} {len(payload)}").uniform(0, deed.seconds))
        if isinstance(deed, DropResponse):
            return _reset(request)
        kept = {name: answer.headers[name] for name in ("Content-Type", "Retry-After") if name in answer.headers}
        return web.Response(status=answer.status, body=payload, headers=kept)

    async def _stream(self, request: web.Request, deed: Fault | None) -> web.StreamResponse:
        """Line by line."""
        left = deed.lines if isinstance(deed, BreakWatch | ExpireWatch) else -1
        async with self._ask(request, b"") as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            while left != 0 and (line := await answer.content.readline()):
                await response.write(line)
                left -= 1
        if isinstance(deed, BreakWatch) and left == 0:
            return _reset(request)
        if isinstance(deed, ExpireWatch) and left == 0:
            await response.write(json.dumps({"type": "ERROR", "object": _status(410)}).encode() + b"\n")
        await response.write_eof()
        return response

    @asynccontextmanager
    async def _ask(self, request: web.Request, data: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        address = self._server.join(request.rel_url)
        silent = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method,
            address,
            data=data or None,
            headers={**headers, "Authorization": f"Bearer {TOKEN}"},
            timeout=silent,
            allow_redirects=False,
        ) as answer:
            yield answer


def _reset(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)  # nobody is there to read it


def _status(code: int) -> dict[str, object]:
    word = _WORDS[code]
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": word, "message": word}
