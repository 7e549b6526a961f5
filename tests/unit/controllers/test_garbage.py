"""What nobody needs goes; what somebody needs stays."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from aliquot.api import KINDS
from aliquot.controllers.events import EVENT_SECONDS
from aliquot.controllers.garbage import GarbageCollector
from aliquot.errors import NotFound
from aliquot.store.driver import Document
from support.stores.namespace import NAMESPACE, POD, TEMPLATE, StoreNamespace, document
from support.stores.running import running, until

EVENT = KINDS.named("Event")


def owner(of: Document) -> dict[str, str]:
    return {"apiVersion": of.data["apiVersion"], "kind": of.data["kind"], "name": of.name, "uid": of.uid}


async def gone(place: StoreNamespace, name: str) -> bool:
    try:
        await place.get(name)
    except NotFound:
        return True
    return False


async def namespace_gone(place: StoreNamespace) -> bool:
    try:
        await place.driver.get(NAMESPACE, place.namespace)
    except NotFound:
        return True
    return False


def collecting(garbage: GarbageCollector) -> AbstractAsyncContextManager[None]:
    return running(*(informer.run() for informer in garbage.informers.values()), garbage.controller.run())


async def test_dependant_goes_with_its_owner(embedded: StoreNamespace) -> None:
    """When the owner is deleted so is what it owns."""
    parent = await embedded.create("parent")
    await embedded.create("child", ownerReferences=[owner(parent)])
    await embedded.create("free")
    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.delete("parent")
        await until(lambda: gone(embedded, "child"))
    assert await embedded.names() == ["free"]


async def test_generations(embedded: StoreNamespace) -> None:
    """Grandchildren go too."""
    parent = await embedded.create("parent")
    child = await embedded.create("child", ownerReferences=[owner(parent)])
    await embedded.create("grandchild", ownerReferences=[owner(child)])
    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.delete("parent")
        await until(lambda: gone(embedded, "grandchild"))


async def test_two_owners(embedded: StoreNamespace) -> None:
    """One living owner is enough to stay."""
    first, second = await embedded.create("first"), await embedded.create("second")
    await embedded.create("child", ownerReferences=[owner(first), owner(second)])
    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.delete("first")
        third = await embedded.create("third")
        await embedded.create("mark", ownerReferences=[owner(third)])
        await embedded.delete("third")
        await until(lambda: gone(embedded, "mark"))
        assert not await gone(embedded, "child")
        await embedded.delete("second")
        await until(lambda: gone(embedded, "child"))


async def test_orphan_from_before_the_start(embedded: StoreNamespace) -> None:
    """An owner that went while nobody collected is noticed at the start."""
    parent = await embedded.create("parent")
    await embedded.create("child", ownerReferences=[owner(parent)])
    await embedded.delete("parent")
    async with collecting(GarbageCollector(embedded.driver)):
        await until(lambda: gone(embedded, "child"))


async def test_owner_of_another_life(embedded: StoreNamespace) -> None:
    """A new object with the old name is not the owner."""
    parent = await embedded.create("parent")
    await embedded.create("child", ownerReferences=[owner(parent)])
    await embedded.delete("parent")
    await embedded.create("parent")
    async with collecting(GarbageCollector(embedded.driver)):
        await until(lambda: gone(embedded, "child"))
    assert await embedded.names() == ["parent"]


async def test_owner_of_unknown_kind(embedded: StoreNamespace) -> None:
    """What another system owns is left to that system."""
    foreign = {"apiVersion": "example.com/v1", "kind": "Spaceship", "name": "x", "uid": "y"}
    await embedded.create("child", ownerReferences=[foreign])
    parent = await embedded.create("parent")
    await embedded.create("mark", ownerReferences=[owner(parent)])
    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.delete("parent")
        await until(lambda: gone(embedded, "mark"))
    assert await embedded.names() == ["child"]


async def test_finalizer_of_a_dependant_is_respected(embedded: StoreNamespace) -> None:
    """A dependant with a finalizer is marked and waits."""
    parent = await embedded.create("parent")
    await embedded.create("child", ownerReferences=[owner(parent)], finalizers=["aliquot.dev/hold"])

    async def marked() -> bool:
        return "deletionTimestamp" in (await embedded.get("child")).metadata

    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.delete("parent")
        await until(marked)


async def test_namespace_is_emptied(embedded: StoreNamespace) -> None:
    """A deleted namespace goes with everything in it."""
    await embedded.create("a")
    spec = {"containers": [{"name": "main", "image": "busybox"}], "nodeName": "n1"}
    await embedded.driver.create(POD, document(POD, "p", embedded.namespace, spec))

    async with collecting(GarbageCollector(embedded.driver)):
        assert await embedded.driver.delete(NAMESPACE, embedded.namespace) is False
        await until(lambda: namespace_gone(embedded))
    assert (await embedded.driver.list(TEMPLATE, embedded.namespace)).items == []
    assert (await embedded.driver.list(POD, embedded.namespace)).items == []


async def test_empty_namespace(embedded: StoreNamespace) -> None:
    """An empty namespace goes at once."""
    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.driver.delete(NAMESPACE, embedded.namespace)
        await until(lambda: namespace_gone(embedded))


async def happened(place: StoreNamespace, name: str, stamp: str) -> None:
    data = document(EVENT, name, place.namespace).data
    involved = {"kind": "Pod", "name": "p", "namespace": place.namespace}
    await place.driver.create(
        EVENT, Document({**data, "involvedObject": involved, "reason": "Test", "lastTimestamp": stamp})
    )


async def swept(place: StoreNamespace, now: float, most: int = 10) -> list[str]:
    """The events that are left."""
    garbage = GarbageCollector(place.driver, clock=lambda: now)
    async with running(garbage.informers["Event"].run()):
        await garbage.informers["Event"].synced.wait()
        await garbage.sweep_once(most)
    return [item.name for item in (await place.driver.list(EVENT, place.namespace)).items]


BASE = 978307200.0  # 2001-01-01


async def test_old_events_go(embedded: StoreNamespace) -> None:
    """Events are kept for an hour."""
    await happened(embedded, "old", "2001-01-01T00:00:00Z")
    await happened(embedded, "new", "2001-01-01T00:59:00Z")
    assert await swept(embedded, BASE + EVENT_SECONDS + 1) == ["new"]


async def test_of_many_events_the_latest_stay(embedded: StoreNamespace) -> None:
    """However much happens in an hour, what is kept of it has a bound."""
    for minute in (1, 3, 2, 4):
        await happened(embedded, f"e{minute}", f"2001-01-01T00:0{minute}:00Z")
    assert await swept(embedded, BASE + 300, most=2) == ["e3", "e4"]
