"""The store as loops see it: objects in, objects out.

`Store` puts types over a body's documents. A change is sent as what differs between the object that was read and the
one that is wanted, tied to the version that was read. So fields we do not know (another program's, a newer version's)
survive our writes, and a write decided from old facts is refused.
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
    """Typed access to one body."""

    def __init__(self, driver: StoreDriver) -> None:
        self.driver = driver

    async def get(self, cls: type[T], name: str, namespace: str = "") -> T:
        return decode(cls, (await self.driver.get(KINDS.of(cls), name, namespace)).data)

    async def list(self, cls: type[T], namespace: str | None = None, *, labels: str = "", fields: str = "") -> Items[T]:
        listing = await self.driver.list(KINDS.of(cls), namespace, labels=labels, fields=fields)
        return Items([found for item in listing.items if (found := _readable(cls, item))], listing.version)

    async def create(self, wanted: T) -> T:
        cls = type(wanted)
        return decode(cls, (await self.driver.create(KINDS.of(cls), Document(to_json(wanted)))).data)

    async def update(self, wanted: T, *, seen: T) -> T:
        """Change all but the status from what was seen to what is wanted."""
        return await self._change(wanted, seen, status=False)

    async def update_status(self, wanted: T, *, seen: T) -> T:
        return await self._change(wanted, seen, status=True)

    async def delete(self, seen: T, *, grace_seconds: int | None = None) -> bool:
        """Delete this very object, not another of the same name."""
        place = seen.metadata
        return await self.driver.delete(
            KINDS.of(type(seen)), place.name, place.namespace, uid=place.uid, grace_seconds=grace_seconds
        )

    async def _change(self, wanted: T, seen: T, *, status: bool) -> T:
        cls, place = type(wanted), seen.metadata
        patch = object_rules.difference(encode(seen), encode(wanted))
        if status:
            patch = {"status": patch["status"]} if "status" in patch else {}
        else:
            patch.pop("status", None)
        if not patch:
            return seen
        document = await self.driver.patch(
            KINDS.of(cls), place.name, place.namespace, patch, version=place.version, status=status
        )
        return decode(cls, document.data)


def _readable(cls: type[T], document: Document) -> T | None:
    """One object that somebody wrote past our checks must not hide all the others."""
    try:
        return decode(cls, document.data)
    except Invalid as exc:
        log.error("object cannot be read", kind=cls.__name__, name=document.name, error=str(exc))
        return None
