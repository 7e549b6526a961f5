"""A store behind a Kubernetes-style HTTP API: the Kubernetes API itself, or another Aliquot server.

When the server ends a watch, as it does every few minutes, the watch continues from the last version. When the
connection breaks, the watch raises `Unavailable`, and the caller resumes from the last version. http/transport.py has
the retry rules.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Self
from urllib.parse import quote

from aliquot.api import Json
from aliquot.errors import Expired, Fault, Invalid, NotFound, Unavailable
from aliquot.labels import API_VERSION
from aliquot.store import object_rules
from aliquot.store.driver import AnyKind, Change, Document, Listing
from aliquot.store.http.errors import error_from, one_line
from aliquot.store.http.transport import MERGE_PATCH, RANDOM, Endpoint, Query, Timeouts, Transport, parsed

PAGE = 500  # objects per page of a list, as kubectl requests
WATCH_SECONDS = (300, 600)  # a random duration, so that watchers do not reconnect at the same time
SHORT_STREAM_SECONDS = 1.0  # a shorter stream is followed by a pause

_SET_BY_STORE = frozenset(
    ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
     "managedFields", "selfLink")
)  # fmt: skip


def own_prefix(kind: AnyKind) -> str:
    """The path of our own server, which serves all kinds in one group."""
    return f"/apis/{API_VERSION}"


class RestDriver:
    """Reads and writes over HTTP. Must be used and closed on one event loop."""

    # On the server.
    collects_orphans = True

    def __init__(
        self,
        endpoint: Endpoint,
        prefix: Callable[[AnyKind], str] = own_prefix,
        *,
        timeouts: Timeouts | None = None,
        page: int = PAGE,
    ) -> None:
        self._transport = Transport(endpoint, timeouts or Timeouts())
        self._prefix = prefix
        self._page = page

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.url})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def check(self) -> None:
        """Raises `Unavailable` when the server is not ready. One attempt."""
        await self._transport.probe("/readyz")

    async def close(self) -> None:
        await self._transport.close()

    # --- reading

    async def get(self, kind: AnyKind, name: str, namespace: str = "") -> Document:
        return _document(await self._transport.read(self._object_path(kind, name, namespace)))

    async def list(self, kind: AnyKind, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Listing:
        path, query = self._list_path(kind, namespace), _selectors(labels, fields)
        try:
            return await self._pages(kind, path, {**query, "limit": str(self._page)})
        except Expired:
            # The snapshot expired between two pages. A list without pages cannot expire.
            return await self._pages(kind, path, query)

    async def _pages(self, kind: AnyKind, path: str, query: Query) -> Listing:
        items: builtins.list[Document] = []
        # Kubernetes leaves apiVersion and kind out of list items.
        envelope = {"apiVersion": kind.api_version, "kind": kind.name}
        while True:
            page = await self._transport.read(path, query)
            items.extend(_document({**envelope, **item}) for item in page.get("items") or ())
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return Listing(items, str(metadata.get("resourceVersion") or ""))
            query = {**query, "continue": metadata["continue"]}

    async def count(self, kind: AnyKind) -> int:
        page = await self._transport.read(self._list_path(kind, None), {"limit": "1"})
        return len(page.get("items") or ()) + int((page.get("metadata") or {}).get("remainingItemCount") or 0)

    # --- writing

    async def create(self, kind: AnyKind, document: Document) -> Document:
        metadata = {key: value for key, value in _metadata(document).items() if key not in _SET_BY_STORE}
        object_rules.check_name_and_namespace(kind, metadata)
        path = self._list_path(kind, str(metadata.get("namespace") or ""))
        return _document(await self._transport.write("POST", path, _envelope(kind, document, metadata)))

    async def update(self, kind: AnyKind, document: Document) -> Document:
        return await self._replace(kind, document)

    async def update_status(self, kind: AnyKind, document: Document) -> Document:
        _check_has_status(kind)
        return await self._replace(kind, document, "/status")

    async def _replace(self, kind: AnyKind, document: Document, part: str = "") -> Document:
        metadata = _metadata(document)
        if not metadata.get("resourceVersion"):
            # Some kinds of Kubernetes accept an update without it, and overwrite the object.
            fault = Fault("metadata.resourceVersion", "is required")
            raise Invalid.because(kind.singular, [fault], hint="read the object, change it, write it back")
        path = self._object_path(kind, str(metadata.get("name") or ""), str(metadata.get("namespace") or ""))
        return _document(await self._transport.write("PUT", path + part, _envelope(kind, document, metadata)))

    async def patch(
        self, kind: AnyKind, name: str, namespace: str, patch: Json, *, version: str = "", status: bool = False
    ) -> Document:
        path = self._object_path(kind, name, namespace)
        if status:
            _check_has_status(kind)
            path += "/status"
        if version:
            patch = {**patch, "metadata": {**(patch.get("metadata") or {}), "resourceVersion": version}}
        return _document(await self._transport.write("PATCH", path, patch, MERGE_PATCH))

    async def delete(
        self,
        kind: AnyKind,
        name: str,
        namespace: str = "",
        *,
        version: str = "",
        uid: str = "",
        grace_seconds: int | None = None,
    ) -> bool:
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        conditions = {key: value for key, value in (("uid", uid), ("resourceVersion", version)) if value}
        if conditions:
            options["preconditions"] = conditions
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        answer = await self._transport.write("DELETE", self._object_path(kind, name, namespace), options)
        return self._is_gone(kind, answer)

    def _is_gone(self, kind: AnyKind, answer: Json) -> bool:
        """Whether a delete took effect: the answer is a `Status`, or an object without finalizers and grace period."""
        if answer.get("kind") == "Status":
            return True
        if kind.name == "Namespace" and (answer.get("spec") or {}).get("finalizers"):
            return False  # its contents are deleted first
        metadata = answer.get("metadata") or {}
        return not metadata.get("finalizers") and not metadata.get("deletionGracePeriodSeconds")

    # --- watching

    def watch(
        self, kind: AnyKind, namespace: str | None = None, *, version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Change]:
        query = {**_selectors(labels, fields), "watch": "true", "allowWatchBookmarks": "true"}
        return self._follow(self._list_path(kind, namespace), query, version)

    async def _follow(self, path: str, query: Query, version: str) -> AsyncGenerator[Change, None]:
        while True:
            start = time.monotonic()
            seconds = str(RANDOM.randint(*WATCH_SECONDS))
            watch_query = {**query, "resourceVersion": version, "timeoutSeconds": seconds}
            async with aclosing(self._transport.lines(path, watch_query)) as lines:
                async for line in lines:
                    change = _change(line)
                    version = change.version
                    yield change
            if time.monotonic() - start < SHORT_STREAM_SECONDS:
                await asyncio.sleep(RANDOM.uniform(0, SHORT_STREAM_SECONDS))

    # --- paths

    def _list_path(self, kind: AnyKind, namespace: str | None) -> str:
        if not kind.namespaced or namespace is None:
            return f"{self._prefix(kind)}/{kind.plural}"
        if not _is_segment(namespace):
            raise Invalid.because(kind.singular, [Fault("metadata.namespace", "is required")])
        return f"{self._prefix(kind)}/namespaces/{quote(namespace, safe='')}/{kind.plural}"

    def _object_path(self, kind: AnyKind, name: str, namespace: str) -> str:
        # No object has a name that would change the path.
        if not _is_segment(name) or (kind.namespaced and not _is_segment(namespace)):
            raise NotFound(f"{kind.singular} {name!r} not found")
        return f"{self._list_path(kind, namespace)}/{quote(name, safe='')}"


def _document(data: Json) -> Document:
    metadata = data.get("metadata")
    if not isinstance(metadata, dict) or "resourceVersion" not in metadata:
        raise Unavailable("the server's answer is not an object of a store; is this the address of an API server?")
    # Bookkeeping of server-side apply: as large as the object itself, and not used here.
    metadata.pop("managedFields", None)
    return Document(data)


def _change(line: bytes) -> Change:
    event = parsed(line)
    content: Any = event.get("object") or {}
    match event.get("type"):
        case "ADDED" | "MODIFIED" | "DELETED" as change_type:
            document = _document(content)
            return Change(change_type, document.version, document)
        case "BOOKMARK":
            return Change("BOOKMARK", _document(content).version)
        case "ERROR":
            raise error_from(int(content.get("code") or 500), content)
        case other:
            raise Unavailable(f"the watch sent an event of unknown type {one_line(other)!r}")


def _envelope(kind: AnyKind, document: Document, metadata: Json) -> Json:
    return {**document.data, "apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}


def _metadata(document: Document) -> Json:
    metadata = document.data.get("metadata")
    if not isinstance(metadata, dict):
        raise Invalid.because("object", [Fault("metadata", "is required")])
    return metadata


def _check_has_status(kind: AnyKind) -> None:
    if not kind.has_status:
        raise Invalid(f"{kind.plural} have no status")


def _selectors(labels: str, fields: str) -> dict[str, str]:
    return {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}


def _is_segment(name: str) -> bool:
    return bool(name) and name not in (".", "..") and "/" not in name
