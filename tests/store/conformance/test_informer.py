"""An informer's cache equals the store after any sequence of changes."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from aliquot.store.informer import Informer, Key
from support.stores.namespace import TEMPLATE, StoreNamespace
from support.waiting import eventually

Seen = list[tuple[str, str]]


def recording_informer(store: StoreNamespace, seen: Seen) -> Informer[str]:
    """An informer that caches descriptions and records each notification."""
    informer = Informer(
        store.driver,
        TEMPLATE,
        lambda document: str(document.data["spec"].get("description")),
        labels=f"ns={store.namespace}",
    )

    def listen(key: Key, old: str | None, new: str | None) -> None:
        seen.append((key[1], f"{old} -> {new}"))

    informer.listen(listen)
    return informer


async def test_cache(store: StoreNamespace) -> None:
    """The cache has existing, new and changed objects, and no deleted ones."""
    labelled = {"labels": {"ns": store.namespace}}
    created = await store.create("a", description="1", **labelled)
    await store.create("b", description="1", **labelled)
    seen: Seen = []
    informer = recording_informer(store, seen)
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.synced.wait(), 60)
        assert sorted(informer) == ["1", "1"]
        await store.describe(created, "2")
        await store.create("c", description="3", **labelled)
        await store.delete("b")
        await eventually(lambda: sorted(informer) == ["2", "3"])
        assert informer.get("a", store.namespace) == "2"
        assert informer.get("b", store.namespace) is None
        assert len(informer) == 2
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_listeners_get_each_difference(store: StoreNamespace) -> None:
    """Notifications form an unbroken sequence, from which a listener can maintain its own cache."""
    labelled = {"labels": {"ns": store.namespace}}
    created = await store.create("a", description="1", **labelled)
    seen: Seen = []
    informer = recording_informer(store, seen)
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.synced.wait(), 60)
        await store.describe(created, "2")
        await store.delete("a")
        await eventually(lambda: len(informer) == 0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert seen[0] == ("a", "None -> 1")
    assert seen[-1][1].endswith("-> None")
    for (_, earlier), (_, later) in pairwise(seen):
        assert earlier.partition(" -> ")[2] == later.partition(" -> ")[0]
