"""A minimal HTTP client, independent of our own: what any client in any language sees of a server."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

T = TypeVar("T")
Json = dict[str, Any]

PREFIX = "/apis/aliquot.dev/v1"
MERGE_PATCH = "application/merge-patch+json"
SECONDS = 60.0  # timeout on a busy machine; normally everything takes milliseconds
IDLE_SECONDS = 1.0  # the server closes a connection that is idle for a few seconds
_numbers = itertools.count()


@dataclass(frozen=True)
class Response:
    status: int
    headers: http.client.HTTPMessage
    raw: bytes

    @property
    def json(self) -> Json:
        parsed = json.loads(self.raw)
        assert isinstance(parsed, dict)
        return parsed

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
        """Path -> message of each fault."""
        return {cause["field"]: cause["message"] for cause in self.json["details"].get("causes", ())}

    def ok(self, status: int = 200) -> Json:
        assert self.status == status, self.raw
        return self.json

    def refused(self, status: int, reason: str = "") -> Response:
        """Asserts a `Status` object with the given code and a message of one line."""
        assert self.status == status, self.raw
        error = self.json
        assert (error["kind"], error["status"], error["code"]) == ("Status", "Failure", status)
        assert error["apiVersion"] == "v1"
        assert error["message"].strip()
        assert "\n" not in error["message"]
        if reason:
            assert error["reason"] == reason
        return self


class Stream:
    """An open watch."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status

    def line(self) -> bytes:
        """The next line as it was sent; empty at the end of the stream."""
        return self._response.readline()

    def next(self) -> Json:
        """The next event that is not a bookmark."""
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
    """A client of one server with one token."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.token = token
        self._host = str(urlsplit(url).netloc)
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0
        self._others: list[Api] = []

    def with_token(self, token: str | None) -> Api:
        """A client of the same server with another token; closed together with this one."""
        self._others.append(Api(self.url, token))
        return self._others[-1]

    def close(self) -> None:
        for other in self._others:
            other.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection(self._host, timeout=SECONDS)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Response:
        """Sends a request. `path` without a leading slash is relative to the API; `raw` is sent as it is."""
        content = json.dumps(body).encode() if body is not None and raw is None else raw
        request_headers = {**self.headers, **({"Content-Type": "application/json"} if content is not None else {})}
        if method == "PATCH":
            request_headers["Content-Type"] = MERGE_PATCH
        if self._connection is None or time.monotonic() - self._used > IDLE_SECONDS:
            if self._connection is not None:
                self._connection.close()
            self._connection = self.connect()
        self._used = time.monotonic()
        try:
            self._connection.request(method, address(path), content, {**request_headers, **(headers or {})})
            response = self._connection.getresponse()
            return Response(response.status, response.headers, response.read())
        except BaseException:
            self.close()
            raise

    def get(self, path: str, **query: str) -> Response:
        return self.request("GET", path + (f"?{urlencode(query)}" if query else ""))

    def post(self, path: str, body: Any) -> Response:
        return self.request("POST", path, body)

    def put(self, path: str, body: Any) -> Response:
        return self.request("PUT", path, body)

    def patch(self, path: str, body: Any) -> Response:
        return self.request("PATCH", path, body)

    def delete(self, path: str, body: Any = None, **query: str) -> Response:
        return self.request("DELETE", path + (f"?{urlencode(query)}" if query else ""), body)

    def upgrade(self, path: str, **query: str) -> Response:
        """Requests a websocket. An accepted one (status 101) is closed at once."""
        headers = {
            **self.headers,
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
        }
        connection = self.connect()
        try:
            connection.request("GET", f"{address(path)}?{urlencode(query)}", headers=headers)
            response = connection.getresponse()
            return Response(response.status, response.headers, b"" if response.status == 101 else response.read())
        finally:
            connection.close()

    @contextmanager
    def watch(self, path: str, version: str | None = None, **query: str) -> Iterator[Stream]:
        """A watch from a version; from the present one unless given."""
        version = self.get(path).version if version is None else version
        parameters = urlencode({"watch": "true", "resourceVersion": version, **query})
        connection = self.connect()
        try:
            connection.request("GET", f"{address(path)}?{parameters}", headers=self.headers)
            yield Stream(connection.getresponse())
        finally:
            connection.close()


def address(path: str) -> str:
    return path if path.startswith("/") else f"{PREFIX}/{path}"


def unique(word: str = "x") -> str:
    """A name that no other test uses."""
    return f"{word}-{os.getpid()}-{next(_numbers)}"


def named(name: str, spec: Json | None = None, **metadata: Any) -> Json:
    """An object as users write it. `apiVersion` and `kind` may be left out, because the path has them."""
    return {"metadata": {"name": name, **metadata}, **({"spec": spec} if spec is not None else {})}
