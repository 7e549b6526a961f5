"""Follows the objects of one kind: reports the present objects, then every change.

A watch may expire or lose its connection. Then the objects are listed again and compared with those that were reported,
so that the user misses no change and sees none twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from aliquot.errors import Expired, Unavailable
from aliquot.store.driver import AnyKind, Document, Listing, StoreDriver

# Long enough for a server to restart, short enough to feel live.
_RETRY_S = 1.0

# The objects that were reported, by namespace and name.
Reported = dict[tuple[str, str], Document]


async def follow(
    driver: StoreDriver,
    kind: AnyKind,
    namespace: str | None,
    *,
    labels: str,
    fields: str,
    on_list: Callable[[list[Document]], None],
    on_change: Callable[[Document, bool], None],
    note: Callable[[str], None],
) -> NoReturn:
    """Call `on_list` once and then `on_change(document, deleted)`. Ends only by cancellation or an error."""
    listing = await driver.list(kind, namespace, labels=labels, fields=fields)
    documents = sorted(listing.items, key=_key)
    on_list(documents)
    reported: Reported = {_key(document): document for document in documents}
    disconnected = False
    while True:
        try:
            if disconnected:
                listing = await driver.list(kind, namespace, labels=labels, fields=fields)
                disconnected = False
                report_missed_changes(reported, listing, on_change)
            await _watch(driver, kind, namespace, listing.version, labels, fields, reported, on_change)
        except Expired:
            pass
        except Unavailable as exc:
            note(f"connection lost ({exc.message}); trying again")
        disconnected = True
        await asyncio.sleep(_RETRY_S)


async def _watch(
    driver: StoreDriver,
    kind: AnyKind,
    namespace: str | None,
    version: str,
    labels: str,
    fields: str,
    reported: Reported,
    on_change: Callable[[Document, bool], None],
) -> None:
    async for change in driver.watch(kind, namespace, version=version, labels=labels, fields=fields):
        document = change.document
        if document is None:
            continue
        if change.type == "DELETED":
            reported.pop(_key(document), None)
        else:
            reported[_key(document)] = document
        on_change(document, change.type == "DELETED")


def report_missed_changes(reported: Reported, listing: Listing, on_change: Callable[[Document, bool], None]) -> None:
    """Report the differences between the reported objects and a new listing."""
    present = {_key(document): document for document in listing.items}
    for key in sorted(reported.keys() - present.keys()):
        on_change(reported.pop(key), True)
    for key, document in sorted(present.items()):
        if key not in reported or reported[key].version != document.version:
            on_change(document, False)
        reported[key] = document


def _key(document: Document) -> tuple[str, str]:
    return document.namespace, document.name
