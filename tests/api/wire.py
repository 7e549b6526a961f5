"""The API as bytes on a wire: what any client in any language would see of a server."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

T = TypeVar("T")
Json = dict[str, Any]

PREFIX = "/apis/aliquot.dev/v1"
MERGE_PATCH = "application/merge-patch+json"
SECONDS = 60.0  # for anything to happen on a busy machine; normally it takes milliseconds
IDLE_SECONDS = 1.0  # the server hangs up on a connection that is not used for a few seconds
_numbers = itertools.count()


def until(look: Callable[[], T | None], what: str = "it to happen") -> T:
    """What `look` returns once it is something: for what a loop of the server does in its own time."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    raw: bytes

    @property
    def json(self) -> Json:
        found = json.loads(self.raw)
        assert isinstance(found, dict)
        return found

    @property
    def message(self) -> str:
        return str(self.json["message"])

    @property
    def version(self) -> str:
        return str(self.json["metadata"]["resourceVersion"])

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.json["items"]]

    @property
    def faults(self) -> dict[str, str]:
        """Path -> what is wrong there."""
        return {cause["field"]: cause["message"] for cause in self.json["details"].get("causes", ())}

    def ok(self, status: int = 200) -> Json:
        assert self.status == status, self.raw
        return self.json

    def refused(self, status: int, reason: str = "") -> Answer:
        """A `Status` as every client of this shape expects it, with one line of text."""
        assert self.status == status, self.raw
        said = self.json
        assert (said["kind"], said["status"], said["code"]) == ("Status", "Failure", status)
        assert said["apiVersion"] == "v1"
        assert said["message"].strip()
        assert "\n" not in said["message"]
        if reason:
            assert said["reason"] == reason
        return self


class Stream:
    """An open watch."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status

    def line(self) -> bytes:
        """The next line as it came; empty when the stream has ended."""
        return self._response.readline()

    def next(self) -> Json:
        """The next event that is no bookmark."""
        while True:
            line = self.line()
            assert line, "the stream ended"
            event: Json = json.loads(line)
            if event["type"] != "BOOKMARK":
                return event

    def names(self, count: int) -> list[tuple[str, str]]:
        """(type, name) of the next events."""
        events = [self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


class Api:
    """One client of one server, with one token."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.token = token
        self._host = str(urlsplit(url).netloc)
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0
        self._others: list[Api] = []

    def bearing(self, token: str | None) -> Api:
        """The same server with another token; closed together with this one."""
        self._others.append(Api(self.url, token))
        return self._others[-1]

    def close(self) -> None:
        for other in self._others:
            other.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connect(self) -> http.client.HTTPConnection:
        """A connection of its own."""
        return http.client.HTTPConnection(self._host, timeout=SECONDS)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request. `path` without a leading slash is one of objects; `raw` goes out as it is."""
        content = json.dumps(body).encode() if body is not None and raw is None else raw
        sent = {**self.headers, **({"Content-Type": "application/json"} if content is not None else {})}
        if method == "PATCH":
            sent["Content-Type"] = MERGE_PATCH
        if self._connection is None or time.monotonic() - self._used > IDLE_SECONDS:
            if self._connection is not None:
                self._connection.close()
            self._connection = self.connect()
        self._used = time.monotonic()
        try:
            self._connection.request(method, address(path), content, {**sent, **(headers or {})})
            response = self._connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        except BaseException:
            self.close()
            raise

    def get(self, path: str, **query: str) -> Answer:
        return self.ask("GET", path + (f"?{urlencode(query)}" if query else ""))

    def post(self, path: str, body: Any) -> Answer:
        return self.ask("POST", path, body)

    def put(self, path: str, body: Any) -> Answer:
        return self.ask("PUT", path, body)

    def patch(self, path: str, body: Any) -> Answer:
        return self.ask("PATCH", path, body)

    def delete(self, path: str, body: Any = None, **query: str) -> Answer:
        return self.ask("DELETE", path + (f"?{urlencode(query)}" if query else ""), body)

    def upgrade(self, path: str, **query: str) -> Answer:
        """Ask for a websocket. Whoever gets one is told so, and leaves at once."""
        wish = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
        }
        connection = self.connect()
        try:
            connection.request("GET", f"{address(path)}?{urlencode(query)}", headers={**self.headers, **wish})
            response = connection.getresponse()
            return Answer(response.status, response.headers, b"" if response.status == 101 else response.read())
        finally:
            connection.close()

    @contextmanager
    def watch(self, path: str, version: str | None = None, **query: str) -> Iterator[Stream]:
        """A stream from a version on; from now on unless given."""
        version = self.get(path).version if version is None else version
        asked = urlencode({"watch": "true", "resourceVersion": version, **query})
        connection = self.connect()
        try:
            connection.request("GET", f"{address(path)}?{asked}", headers=self.headers)
            yield Stream(connection.getresponse())
        finally:
            connection.close()


def address(path: str) -> str:
    return path if path.startswith("/") else f"{PREFIX}/{path}"


def unique(word: str = "x") -> str:
    """A name that no other test uses."""
    return f"{word}-{os.getpid()}-{next(_numbers)}"


def named(name: str, spec: Json | None = None, **metadata: Any) -> Json:
    """An object as people write it: `apiVersion` and `kind` may be left out, the address says them."""
    return {"metadata": {"name": name, **metadata}, **({"spec": spec} if spec is not None else {})}
