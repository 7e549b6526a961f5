"""The store: one set of watchable objects that every loop, the server and the agents share.

    Document   one object as it travels and rests: Kubernetes-shaped JSON, parsed only when somebody looks inside
    Body       what a store is made of: memory, SQLite, Kubernetes, or another server's API; all keep the same promises
    Change     one step of a watch

Promises of every body (tests/store holds them against all):

 1. `create` gives uid, version, creation time and generation 1; what the caller sent for those is ignored.
 2. `update` replaces an object if its version is still the one sent, else `Conflict`; a write that changes nothing
    gives no new version and no change. `update` leaves the status alone, `update_status` all but the status.
 3. `patch` is a JSON merge patch (RFC 7386), tied to a version only when one is given.
 4. `delete` removes the object, or marks it when finalizers or a grace period keep it; the last finalizer's removal
    removes it. A marked object takes no new finalizers. A watch may show the mark of a delete that then took
    effect at once.
 5. A patch that names a pod's node binds it: once, and with nothing else but annotations.
 6. `list` is a snapshot and says its version; `watch` from that version brings every later change once, in order.
    A watch whose version is too old raises `Expired`: list again and compare.
 7. What was acknowledged survives the end of the process, except in memory.
 8. Versions are opaque. There is no transaction over several objects, so nothing may need one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from aliquot.api import Json, Kind

AnyKind = Kind[Any]

# As large as an object may be: what etcd takes (1.5 MiB a request), with room for the envelope.
MAX_DOCUMENT = 1 << 20


class Document:
    """JSON of one object, as bytes or parsed, each made from the other on first need. Never changed once made."""

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
        found: Json = self.data["metadata"]
        return found

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
    """One step of a watch. A BOOKMARK has no document: it only says how far the reader has come.

    DELETED carries the object's last state, or, when it merely left the selection, its present one;
    either way at the version of the change.
    """

    type: ChangeType
    version: str
    document: Document | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    items: list[Document]
    version: str


class StoreDriver(Protocol):
    """One body of the store. Every error is one of `aliquot.errors`."""

    # False: nobody removes objects whose owners are gone, so our own loop has to (control.garbage).
    collects_orphans: bool

    async def get(self, kind: AnyKind, name: str, namespace: str = "") -> Document: ...

    async def list(self, kind: AnyKind, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Listing:
        """All objects of a kind, or those of one namespace; `None` means every namespace."""

    async def count(self, kind: AnyKind) -> int:
        """How many objects of a kind there are, without reading them."""

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
        """True when the object is gone, False when it is on its way."""

    def watch(
        self, kind: AnyKind, namespace: str | None = None, *, version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Change]:
        """Changes after `version`, for as long as the caller reads. `Unavailable` when the connection broke."""

    async def check(self) -> None:
        """Raises `Unavailable` when the body cannot take reads and writes now."""

    async def close(self) -> None: ...
