"""Requests to an HTTP API in the shape of Kubernetes': connections, tokens, timeouts, and what is tried again.

Only this module and connections.py know the HTTP library. What it raises is translated there, answers that are no
success in answers.py, so every error that leaves here is one of ours.

Two rules say what is tried again:

    reads    on every `Unavailable`, with growing, fully random pauses, until the deadline
    writes   only when the server surely did not act: nothing was sent, or it was turned away unread (`sent` is False);
             all else is for the caller, who alone can see whether the write happened
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

import aiohttp

from aliquot.api import Json
from aliquot.errors import Invalid, TooLarge, Unauthenticated, Unavailable
from aliquot.store import lease_fence
from aliquot.store.driver import MAX_DOCUMENT
from aliquot.store.http.connections import Connector, Socket, Stream, Translated, cut
from aliquot.store.http.errors import Busy, error_of, one_line

Answer = TypeVar("Answer")
Query = Mapping[str, str]

CONNECTIONS = 64  # requests at a time; streams are not counted, or they would starve the rest
CONNECT_SECONDS = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between tries: the upper ends of the random range
# Kubernetes sends a bookmark every minute. Two and a half of them missing: nobody is there any more.
SILENCE_SECONDS = 150.0
HEARTBEAT_SECONDS = 30.0  # a websocket whose other end is silently gone is noticed after this long
LARGEST_MESSAGE = 16 << 20  # of a websocket, in bytes; what terminals and ports send comes in far smaller ones
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

RANDOM = random.SystemRandom()


async def no_token() -> str:
    """For servers that know the caller by other means, such as a client certificate."""
    return ""


def forget_nothing(token: str) -> None:
    """For tokens that cannot be renewed."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server is, whom we trust there, and who we are."""

    url: str
    # Asked before every request, so that it may renew the token; an empty one is not sent.
    token: Callable[[], Awaitable[str]] = field(default=no_token, repr=False)
    # Told of a token that the server refused, so that the next one is fresh.
    refused: Callable[[str], None] = field(default=forget_nothing, repr=False)
    trust: ssl.SSLContext | None = field(default=None, repr=False)
    # The name in the server's certificate where it is not the one in the address.
    server_name: str = ""
    proxy: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    # The certificates that `trust` was made from, as PEM, to tell others whom to trust; empty: those of the system.
    authority: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise Invalid("the server's address must look like https://host:port")
        if parts.username is not None:
            raise Invalid("the server's address must not hold a user name or password")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds."""

    # Until a failed attempt is the last one; an attempt that is under way may take longer.
    deadline: float = 10.0
    # For one answer, or for a stream's first sign of life.
    answer: float = 30.0
    # Between two lines of a stream.
    silence: float = SILENCE_SECONDS
    # That an unused connection is kept. Shorter than the server keeps it, or a write could meet one that is closing.
    idle: float = 4.0


class Transport:
    """One server, seen from one event loop. Knows paths and JSON, but no kinds."""

    def __init__(self, endpoint: Endpoint, patience: Patience) -> None:
        self.url = endpoint.url.rstrip("/")
        self._endpoint = endpoint
        self._patience = patience
        self._timeout = aiohttp.ClientTimeout(total=patience.answer, sock_connect=CONNECT_SECONDS)
        self._quiet = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=patience.silence)
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def read(self, path: str, query: Query | None = None) -> Json:
        return parsed(await self._patiently(lambda: self._once("GET", path, query), reads=True))

    async def write(self, method: str, path: str, data: Json, form: str = JSON, *, patient: bool = True) -> Json:
        """`patient` False: tried once, for requests whose "not now" is an answer."""
        try:
            raw = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as exc:
            raise Invalid(f"this cannot be written as JSON: {one_line(exc)}") from exc
        if len(raw) > MAX_DOCUMENT:
            raise TooLarge(f"the object has {len(raw)} bytes; at most {MAX_DOCUMENT} fit")
        if not patient:
            return parsed(await self._once(method, path, None, raw, form))
        return parsed(await self._patiently(lambda: self._once(method, path, None, raw, form), reads=False))

    async def probe(self, path: str) -> None:
        """One attempt to read, whatever the answer's form."""
        await self._once("GET", path)

    async def lines(self, path: str, query: Query) -> AsyncGenerator[bytes, None]:
        """The lines of a stream until the server ends it. They may have any length and come in any pieces.

        Silence ends the stream too: whether the server lives shows at once when the caller asks again.
        """
        stream = await self._patiently(lambda: self._open(path, query, self._quiet), reads=True)
        pieces: list[bytes] = []
        try:
            while chunk := await self._chunk(stream):
                *whole, rest = chunk.split(b"\n")
                for line in whole:
                    yield b"".join((*pieces, line))
                    pieces.clear()
                if rest:
                    pieces.append(rest)
        finally:
            cut(stream)

    async def stream(self, path: str, query: Query) -> Stream:
        """An answer that is read as it comes, and may be silent for days. Tried once: its reader knows its place."""
        silent = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        return Stream(await self._open(path, query, silent), self.url)

    async def socket(self, path: str, query: Sequence[tuple[str, str]], protocol: str) -> Socket:
        """A websocket that speaks a protocol; the error that the server tells of otherwise. Tried once."""
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
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # what was cut is let go in the loop's next round

    # --- one attempt

    async def _patiently(self, attempt: Callable[[], Awaitable[Answer]], *, reads: bool) -> Answer:
        """The attempt's result, tried again by the two rules above."""
        until = time.monotonic() + self._patience.deadline
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
        self, method: str, path: str, query: Query | None = None, raw: bytes | None = None, form: str = JSON
    ) -> bytes:
        """The payload of one answer that was a success."""
        async with self._room, Translated(self.url):
            if raw is not None:
                lease_fence.check()  # after the wait for room, which may be long
            return await _success(await self._send(method, path, query, raw, form, self._timeout))

    async def _open(self, path: str, query: Query, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        async with Translated(self.url), asyncio.timeout(self._patience.answer):
            answer = await self._send("GET", path, query, None, JSON, timeout)
            if answer.status != 200:
                await _success(answer)
                raise Unavailable(f"{self.url} answered {answer.status} instead of a stream")
            return answer

    async def _connect(self, path: str, query: Sequence[tuple[str, str]], protocol: str, token: str) -> Socket:
        async with Translated(self.url), asyncio.timeout(self._patience.answer):
            opened = await self._client().ws_connect(
                self.url + path,
                params=list(query),
                protocols=(protocol,),
                headers=_bearer(token),
                heartbeat=HEARTBEAT_SECONDS,
                max_msg_size=LARGEST_MESSAGE,
                server_hostname=self._endpoint.server_name or None,
            )
        if opened.protocol != protocol:
            await opened.close()
            raise Unavailable(f"{self.url} does not speak {protocol}")
        return Socket(opened, self.url)

    async def _chunk(self, stream: aiohttp.ClientResponse) -> bytes:
        """What came next; empty at the end."""
        async with Translated(self.url):
            try:
                return await stream.content.readany()
            except aiohttp.SocketTimeoutError:
                return b""

    async def _send(
        self, method: str, path: str, query: Query | None, raw: bytes | None, form: str, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """One answer, whatever it says. A token that is refused is renewed once: the request did nothing yet."""
        token = await self._token()
        answer = await self._request(method, path, query, raw, form, timeout, token)
        if answer.status == 401:
            self._endpoint.refused(token)
            fresh = await self._token()
            if fresh != token:
                answer.close()
                return await self._request(method, path, query, raw, form, timeout, fresh)
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        query: Query | None,
        raw: bytes | None,
        form: str,
        timeout: aiohttp.ClientTimeout,
        token: str,
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": form} if raw is not None else {}
        return await self._client().request(
            method,
            self.url + path,
            params=query,
            data=raw,
            headers=headers | _bearer(token),
            timeout=timeout,
            allow_redirects=False,  # an API server sends none; a login page in between does
            raise_for_status=False,
            server_hostname=self._endpoint.server_name or None,
        )

    async def _token(self) -> str:
        token = await self._endpoint.token()
        if not token.isascii() or not token.isprintable() or " " in token:
            raise Unauthenticated("the token holds characters that no token has")
        return token

    def _client(self) -> aiohttp.ClientSession:
        if self._closed:
            raise Unavailable(f"the connection to {self.url} is closed")
        if self._session is None:
            trust = True if self._endpoint.trust is None else self._endpoint.trust
            self._session = aiohttp.ClientSession(
                connector=Connector(limit=0, ssl=trust, keepalive_timeout=self._patience.idle),
                headers=self._endpoint.headers,
                proxy=self._endpoint.proxy or None,
                cookie_jar=aiohttp.DummyCookieJar(),
                raise_for_status=_check,  # for websockets; all else looks itself
            )
            # The library repeats PUT and DELETE by itself when a connection closes under them: a write that was done
            # would then look like a conflict. Nothing public turns that off.
            self._session._retry_connection = False
        return self._session


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


async def _check(answer: aiohttp.ClientResponse) -> None:
    """Raise what the server says: a websocket that is refused would keep its words to itself."""
    if answer.status >= 300:
        await _success(answer)


async def _success(answer: aiohttp.ClientResponse) -> bytes:
    """The payload; the error that the answer tells of otherwise."""
    async with answer:
        payload = await answer.read()
    if answer.status >= 300:
        raise error_of(answer.status, payload, retry_after=answer.headers.get("Retry-After", ""))
    return payload


def parsed(payload: bytes) -> Json:
    """The JSON object that a server sent."""
    try:
        data: Any = json.loads(payload)
    except (ValueError, RecursionError) as exc:
        raise Unavailable("the server's answer is not JSON; is this the address of an API server?") from exc
    if not isinstance(data, dict):
        raise Unavailable("the server's answer is not an object; is this the address of an API server?")
    return data
