"""An informer's picture equals the store, whatever happened on the way."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from aliquot.store.informer import Informer, Key
from support.stores.namespace import TEMPLATE, StoreNamespace
from support.waiting import eventually

Seen = list[tuple[str, str]]


def informer(place: StoreNamespace, seen: Seen) -> Informer[str]:
    """Remembers descriptions, and what it was told in which order."""
    found = Informer(
        place.driver,
        TEMPLATE,
        lambda document: str(document.data["spec"].get("description")),
        labels=f"ns={place.namespace}",
    )

    def listen(key: Key, old: str | None, new: str | None) -> None:
        seen.append((key[1], f"{old} -> {new}"))

    found.listen(listen)
    return found


async def test_picture(place: StoreNamespace) -> None:
    """It has what was there, what came, what changed, and not what went."""
    mark = {"labels": {"ns": place.namespace}}
    made = await place.create("a", description="1", **mark)
    await place.create("b", description="1", **mark)
    seen: Seen = []
    picture = informer(place, seen)
    task = asyncio.create_task(picture.run())
    try:
        await asyncio.wait_for(picture.synced.wait(), 60)
        assert sorted(picture) == ["1", "1"]
        await place.describe(made, "2")
        await place.create("c", description="3", **mark)
        await place.delete("b")
        await eventually(lambda: sorted(picture) == ["2", "3"])
        assert picture.get("a", place.namespace) == "2"
        assert picture.get("b", place.namespace) is None
        assert len(picture) == 2
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_listeners_hear_each_difference(place: StoreNamespace) -> None:
    """Who listens can keep a picture of its own from what it is told."""
    mark = {"labels": {"ns": place.namespace}}
    made = await place.create("a", description="1", **mark)
    seen: Seen = []
    picture = informer(place, seen)
    task = asyncio.create_task(picture.run())
    try:
        await asyncio.wait_for(picture.synced.wait(), 60)
        await place.describe(made, "2")
        await place.delete("a")
        await eventually(lambda: len(picture) == 0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert seen[0] == ("a", "None -> 1")
    assert seen[-1][1].endswith("-> None")
    for (_, earlier), (_, later) in pairwise(seen):
        assert earlier.partition(" -> ")[2] == later.partition(" -> ")[0]
