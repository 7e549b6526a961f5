"""The store as controllers use it: typed objects in and out.

`Store` decodes and encodes a driver's documents. A change is sent as a merge patch between the object that was read and
the object that is wanted, conditional on the version that was read. So unknown fields (of another program or of a newer
version) survive our writes, and a write that was decided from an old version fails with `Conflict`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from aliquot.api import KINDS, Metadata, decode, encode, to_json
from aliquot.errors import Invalid
from aliquot.store import object_rules
from aliquot.store.driver import Document, StoreDriver

log = structlog.get_logger()


class Object(Protocol):
    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Items(Generic[T]):
    items: list[T]
    version: str


class Store:
    """Typed access to one driver."""

    def __init__(self, driver: StoreDriver) -> None:
        self.driver = driver

    async def get(self, cls: type[T], name: str, namespace: str = "") -> T:
        return decode(cls, (await self.driver.get(KINDS.of(cls), name, namespace)).data)

    async def list(self, cls: type[T], namespace: str | None = None, *, labels: str = "", fields: str = "") -> Items[T]:
        listing = await self.driver.list(KINDS.of(cls), namespace, labels=labels, fields=fields)
        return Items([decoded for item in listing.items if (decoded := _decoded(cls, item))], listing.version)

    async def create(self, wanted: T) -> T:
        cls = type(wanted)
        return decode(cls, (await self.driver.create(KINDS.of(cls), Document(to_json(wanted)))).data)

    async def update(self, wanted: T, *, seen: T) -> T:
        """Changes everything but the status from `seen` to `wanted`."""
        return await self._change(wanted, seen, status=False)

    async def update_status(self, wanted: T, *, seen: T) -> T:
        return await self._change(wanted, seen, status=True)

    async def delete(self, seen: T, *, grace_seconds: int | None = None) -> bool:
        """Deletes this object by uid, so a newer object of the same name is not affected."""
        meta = seen.metadata
        return await self.driver.delete(
            KINDS.of(type(seen)), meta.name, meta.namespace, uid=meta.uid, grace_seconds=grace_seconds
        )

    async def _change(self, wanted: T, seen: T, *, status: bool) -> T:
        cls, meta = type(wanted), seen.metadata
        patch = object_rules.difference(encode(seen), encode(wanted))
        if status:
            patch = {"status": patch["status"]} if "status" in patch else {}
        else:
            patch.pop("status", None)
        if not patch:
            return seen
        document = await self.driver.patch(
            KINDS.of(cls), meta.name, meta.namespace, patch, version=meta.version, status=status
        )
        return decode(cls, document.data)


def _decoded(cls: type[T], document: Document) -> T | None:
    """The object, or None when it cannot be decoded: one invalid object must not make the whole list fail."""
    try:
        return decode(cls, document.data)
    except Invalid as exc:
        log.error("object cannot be read", kind=cls.__name__, name=document.name, error=str(exc))
        return None
