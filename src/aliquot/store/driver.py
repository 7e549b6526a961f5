"""The storage seam: the interface that every store driver implements.

    StoreDriver  memory, SQLite, the Kubernetes API, or another Aliquot server; all give the same guarantees
    Document     one object as stored and sent: Kubernetes-shaped JSON, parsed on first use
    Change       one event of a watch

Guarantees of every driver (tests/store/conformance checks them against all drivers):

 1. `create` assigns uid, version, creation time and generation 1, and ignores what the caller sent for them.
 2. `update` replaces an object if its version is still the one sent, else `Conflict`; a write that changes nothing
    produces no new version and no watch event. `update` never changes the status; `update_status` changes nothing
    else.
 3. `patch` is a JSON merge patch (RFC 7386), tied to a version only when one is given.
 4. `delete` removes the object, or sets its deletion timestamp while finalizers or a grace period hold it. Removing
    the last finalizer removes the object. An object that is being deleted accepts no new finalizers. A watch may
    show the deletion timestamp of a delete that then takes effect at once.
 5. A patch that sets a pod's node binds the pod. It succeeds once, and may change nothing else but annotations.
 6. `list` returns a snapshot and its version. `watch` from that version delivers every later change once, in order.
    A watch from a version that is too old raises `Expired`: the reader lists again and compares.
 7. Acknowledged writes survive the end of the process, except in memory.
 8. Versions are opaque strings, compared for equality only. There are no transactions over several objects.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from aliquot.api import Json, Kind

AnyKind = Kind[Any]

# The largest object, in bytes: etcd accepts requests of 1.5 MiB, and the request adds an envelope.
MAX_DOCUMENT = 1 << 20


class Document:
    """The JSON of one object, as bytes and parsed. Each form is derived from the other on first use. Immutable."""

    __slots__ = ("_data", "_raw")

    def __init__(self, data: Json | None = None, raw: bytes | None = None) -> None:
        self._data = data
        self._raw = raw

    @property
    def data(self) -> Json:
        if self._data is None:
            self._data = json.loads(self._raw or b"null")
        return self._data

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = json.dumps(self._data, separators=(",", ":"), ensure_ascii=False).encode()
        return self._raw

    @property
    def metadata(self) -> Json:
        metadata: Json = self.data["metadata"]
        return metadata

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "")

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid") or "")

    @property
    def version(self) -> str:
        return str(self.metadata.get("resourceVersion") or "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Document) and self.data == other.data

    __hash__ = None  # type: ignore[assignment]  # compared by content, so not a key

    def __repr__(self) -> str:
        return f"Document({self.data!r})"


ChangeType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch. A BOOKMARK has no document: it only carries the version the reader has reached.

    DELETED carries the object's last state. When the object only left the selection, DELETED carries its current
    state. In both cases `version` is the version of the change.
    """

    type: ChangeType
    version: str
    document: Document | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    items: list[Document]
    version: str


class StoreDriver(Protocol):
    """The interface of a store, with the guarantees above. Raises only errors from `aliquot.errors`."""

    # False: the storage does not remove objects whose owners are gone, so controllers.garbage does.
    collects_orphans: bool

    async def get(self, kind: AnyKind, name: str, namespace: str = "") -> Document: ...

    async def list(self, kind: AnyKind, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Listing:
        """The objects of a kind in one namespace, or in every namespace when it is None."""

    async def count(self, kind: AnyKind) -> int:
        """The number of objects of a kind, without reading them."""

    async def create(self, kind: AnyKind, document: Document) -> Document: ...

    async def update(self, kind: AnyKind, document: Document) -> Document: ...

    async def update_status(self, kind: AnyKind, document: Document) -> Document: ...

    async def patch(
        self, kind: AnyKind, name: str, namespace: str, patch: Json, *, version: str = "", status: bool = False
    ) -> Document: ...

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
        """True when the object is gone, False when finalizers or a grace period still hold it."""

    def watch(
        self, kind: AnyKind, namespace: str | None = None, *, version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Change]:
        """Yields changes after `version` for as long as the caller reads. `Unavailable` when the connection breaks."""

    async def check(self) -> None:
        """Raises `Unavailable` when the driver cannot serve reads and writes now."""

    async def close(self) -> None: ...
