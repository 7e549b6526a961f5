"""Follow the objects of one kind: what is there, then every change, for as long as the user looks.

A watch may fall behind or lose its connection. Then we list again and show what differs from what was shown, so that
the user misses no change and sees none twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from aliquot.errors import Expired, Unavailable
from aliquot.store.driver import AnyKind, Document, Listing, StoreDriver

# Long enough for a server to come back, short enough to feel live.
_PAUSE = 1.0

Shown = dict[tuple[str, str], Document]


async def follow(
    driver: StoreDriver,
    kind: AnyKind,
    namespace: str | None,
    *,
    labels: str,
    fields: str,
    first: Callable[[list[Document]], None],
    change: Callable[[Document, bool], None],
    note: Callable[[str], None],
) -> NoReturn:
    """Calls `first` once and then `change(document, gone)`; ends only when cancelled or refused."""
    listing = await driver.list(kind, namespace, labels=labels, fields=fields)
    documents = sorted(listing.items, key=_key)
    first(documents)
    shown: Shown = {_key(document): document for document in documents}
    lost = False
    while True:
        try:
            if lost:
                listing = await driver.list(kind, namespace, labels=labels, fields=fields)
                lost = False
                report_missed_changes(shown, listing, change)
            await _read(driver, kind, namespace, listing.version, labels, fields, shown, change)
        except Expired:
            pass
        except Unavailable as exc:
            note(f"connection lost ({exc.message}); trying again")
        lost = True
        await asyncio.sleep(_PAUSE)


async def _read(
    driver: StoreDriver,
    kind: AnyKind,
    namespace: str | None,
    version: str,
    labels: str,
    fields: str,
    shown: Shown,
    change: Callable[[Document, bool], None],
) -> None:
    async for step in driver.watch(kind, namespace, version=version, labels=labels, fields=fields):
        document = step.document
        if document is None:
            continue
        if step.type == "DELETED":
            shown.pop(_key(document), None)
        else:
            shown[_key(document)] = document
        change(document, step.type == "DELETED")


def report_missed_changes(shown: Shown, listing: Listing, change: Callable[[Document, bool], None]) -> None:
    """Show what changed while nobody watched."""
    present = {_key(document): document for document in listing.items}
    for key in sorted(shown.keys() - present.keys()):
        change(shown.pop(key), True)
    for key, document in sorted(present.items()):
        if key not in shown or shown[key].version != document.version:
            change(document, False)
        shown[key] = document


def _key(document: Document) -> tuple[str, str]:
    return document.namespace, document.name
