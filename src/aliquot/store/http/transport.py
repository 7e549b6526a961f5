"""Requests to a Kubernetes-style HTTP API: tokens, timeouts and retries.

client.py makes the requests and translates the HTTP library's exceptions; errors.py translates error answers. So every
error raised here is a platform error.

Two retry rules:

    reads    retried on every `Unavailable`, with exponential backoff and full jitter, until the deadline
    writes   retried only when the server certainly did not act: nothing was sent, or the server rejected the request
             unread (`sent` is False). Otherwise the caller gets the error, because only the caller can find out
             whether the write took effect
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from aliquot.api import Json
from aliquot.errors import Invalid, TooLarge, Unauthenticated, Unavailable
from aliquot.store import lease_fence
from aliquot.store.driver import MAX_DOCUMENT
from aliquot.store.http.client import HttpClient, Response, Socket, Timeout, Translated
from aliquot.store.http.errors import Busy, error_of, one_line

Answer = TypeVar("Answer")
Query = Mapping[str, str]

CONNECTIONS = 64  # concurrent requests; streams are not counted, because they would starve the requests
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between attempts: the upper bounds of the random pause
# Kubernetes sends a bookmark every minute. After two and a half missing ones the server counts as gone.
SILENCE_SECONDS = 150.0
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

RANDOM = random.SystemRandom()


async def no_token() -> str:
    """For servers that authenticate the caller otherwise, such as by a client certificate."""
    return ""


def keep_token(token: str) -> None:
    """For tokens that cannot be renewed."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a server, the certificates we trust there, and our credentials."""

    url: str
    # Called before every request, so that it can renew the token. An empty token is not sent.
    token: Callable[[], Awaitable[str]] = field(default=no_token, repr=False)
    # Called with a token that the server refused, so that the next one is new.
    refused: Callable[[str], None] = field(default=keep_token, repr=False)
    trust: ssl.SSLContext | None = field(default=None, repr=False)
    # The name in the server's certificate, if it differs from the address.
    server_name: str = ""
    proxy: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    # The PEM certificates behind `trust`, for kubeconfigs that we issue. Empty: the certificates of the system.
    authority: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise Invalid("the server's address must look like https://host:port")
        if parts.username is not None:
            raise Invalid("the server's address must not hold a user name or password")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds."""

    # No attempt starts later than this after the first one; a running attempt may take longer.
    deadline: float = 10.0
    # For one answer, or for the first bytes of a stream.
    answer: float = 30.0
    # Between two chunks of a stream.
    silence: float = SILENCE_SECONDS
    # An unused connection is closed after this. Must be shorter than the server's own limit, so that no write goes to
    # a connection that the server is closing.
    idle: float = 4.0


class Transport:
    """One server, used from one event loop. Knows paths and JSON, but no kinds."""

    def __init__(self, endpoint: Endpoint, timeouts: Timeouts) -> None:
        self.url = endpoint.url.rstrip("/")
        self._endpoint = endpoint
        self._timeouts = timeouts
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._http: HttpClient | None = None
        self._closed = False

    async def read(self, path: str, query: Query | None = None) -> Json:
        return parsed(await self._with_retries(lambda: self._once("GET", path, query), reads=True))

    async def write(self, method: str, path: str, data: Json, content_type: str = JSON, *, retry: bool = True) -> Json:
        """`retry` False: one attempt only, for requests to which "not now" is an answer."""
        try:
            raw = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as exc:
            raise Invalid(f"this cannot be encoded as JSON: {one_line(exc)}") from exc
        if len(raw) > MAX_DOCUMENT:
            raise TooLarge(f"the object has {len(raw)} bytes; at most {MAX_DOCUMENT} fit")
        if not retry:
            return parsed(await self._once(method, path, None, raw, content_type))
        return parsed(await self._with_retries(lambda: self._once(method, path, None, raw, content_type), reads=False))

    async def probe(self, path: str) -> None:
        """One attempt to read; the answer need not be JSON."""
        await self._once("GET", path)

    async def lines(self, path: str, query: Query) -> AsyncGenerator[bytes, None]:
        """The lines of a stream until the server ends it, in any length and split into chunks anywhere.

        Silence ends the stream too: the caller's next request shows whether the server is alive.
        """
        timeout = Timeout(between_chunks=self._timeouts.silence)
        stream = await self._with_retries(lambda: self._open(path, query, timeout), reads=True)
        pieces: list[bytes] = []
        try:
            while chunk := await stream.chunk():
                *whole, rest = chunk.split(b"\n")
                for line in whole:
                    yield b"".join((*pieces, line))
                    pieces.clear()
                if rest:
                    pieces.append(rest)
        finally:
            stream.abort()

    async def stream(self, path: str, query: Query) -> Response:
        """An answer that is read as it arrives and may be silent for days. One attempt: only the reader can resume."""
        return await self._open(path, query, Timeout())

    async def socket(self, path: str, query: Sequence[tuple[str, str]], protocol: str) -> Socket:
        """A websocket with this subprotocol, or the error that the server answers with. One attempt."""
        token = await self._token()
        try:
            return await self._connect(path, query, protocol, token)
        except Unauthenticated:
            self._endpoint.refused(token)
            fresh = await self._token()
            if fresh == token:
                raise
            return await self._connect(path, query, protocol, fresh)

    async def close(self) -> None:
        self._closed = True
        if self._http is not None:
            await self._http.close()
            await asyncio.sleep(0)  # lets the event loop release aborted connections

    async def _with_retries(self, attempt: Callable[[], Awaitable[Answer]], *, reads: bool) -> Answer:
        """The result of the attempt, retried by the two rules above."""
        until = time.monotonic() + self._timeouts.deadline
        longest = FIRST_PAUSE
        while True:
            try:
                return await attempt()
            except Unavailable as exc:
                pause = max(RANDOM.uniform(0, longest), exc.pause if isinstance(exc, Busy) else 0.0)
                if not exc.retry or (exc.sent and not reads) or time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause)
            longest = min(longest * 2, LONGEST_PAUSE)

    async def _once(
        self, method: str, path: str, query: Query | None = None, raw: bytes | None = None, content_type: str = JSON
    ) -> bytes:
        """One attempt: the payload of a successful answer."""
        async with self._slots, Translated(self.url):
            if raw is not None:
                lease_fence.check()  # after the wait for a slot, which may be long
            timeout = Timeout(total=self._timeouts.answer)
            return await _success(await self._send(method, path, query, raw, content_type, timeout))

    async def _open(self, path: str, query: Query, timeout: Timeout) -> Response:
        async with Translated(self.url), asyncio.timeout(self._timeouts.answer):
            response = await self._send("GET", path, query, None, JSON, timeout)
            if response.status != 200:
                await _success(response)
                raise Unavailable(f"{self.url} answered {response.status} instead of a stream")
            return response

    async def _connect(self, path: str, query: Sequence[tuple[str, str]], protocol: str, token: str) -> Socket:
        async with Translated(self.url), asyncio.timeout(self._timeouts.answer):
            socket = await self._client().websocket(path, query, protocol, _bearer(token))
        if socket.protocol != protocol:
            await socket.close()
            raise Unavailable(f"{self.url} does not speak {protocol}")
        return socket

    async def _send(
        self, method: str, path: str, query: Query | None, raw: bytes | None, content_type: str, timeout: Timeout
    ) -> Response:
        """The answer, whatever its status. A refused token is renewed once: the server has not acted yet."""
        token = await self._token()
        response = await self._request(method, path, query, raw, content_type, timeout, token)
        if response.status == 401:
            self._endpoint.refused(token)
            fresh = await self._token()
            if fresh != token:
                response.discard()
                return await self._request(method, path, query, raw, content_type, timeout, fresh)
        return response

    async def _request(
        self,
        method: str,
        path: str,
        query: Query | None,
        raw: bytes | None,
        content_type: str,
        timeout: Timeout,
        token: str,
    ) -> Response:
        headers = {"Content-Type": content_type} if raw is not None else {}
        return await self._client().request(
            method, path, query=query, payload=raw, headers=headers | _bearer(token), timeout=timeout
        )

    async def _token(self) -> str:
        token = await self._endpoint.token()
        if not token.isascii() or not token.isprintable() or " " in token:
            raise Unauthenticated("the token contains characters that a token cannot have")
        return token

    def _client(self) -> HttpClient:
        if self._closed:
            raise Unavailable(f"the connection to {self.url} is closed")
        if self._http is None:
            self._http = HttpClient(
                self.url,
                _check,
                trust=self._endpoint.trust,
                server_name=self._endpoint.server_name,
                proxy=self._endpoint.proxy,
                headers=self._endpoint.headers,
                idle_seconds=self._timeouts.idle,
            )
        return self._http


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


async def _check(response: Response) -> None:
    """Raises the error of an answer that is not a success."""
    if response.status >= 300:
        await _success(response)


async def _success(response: Response) -> bytes:
    """The payload of a successful answer; raises the error that any other answer carries."""
    payload = await response.read()
    if response.status >= 300:
        raise error_of(response.status, payload, retry_after=response.header("Retry-After"))
    return payload


def parsed(payload: bytes) -> Json:
    """The JSON object in an answer."""
    try:
        data: Any = json.loads(payload)
    except (ValueError, RecursionError) as exc:
        raise Unavailable("the server's answer is not JSON; is this the address of an API server?") from exc
    if not isinstance(data, dict):
        raise Unavailable("the server's answer is not an object; is this the address of an API server?")
    return data
