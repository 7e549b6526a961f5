"""The garbage collector deletes orphans, deleted namespaces and old events, and nothing else."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from aliquot.api import KINDS
from aliquot.controllers.events import EVENT_SECONDS
from aliquot.controllers.garbage import GarbageCollector
from aliquot.errors import NotFound
from aliquot.store.driver import Document
from support.stores.namespace import NAMESPACE, POD, TEMPLATE, StoreNamespace, document
from support.stores.running import running
from support.waiting import eventually

EVENT = KINDS.named("Event")


def owner(of: Document) -> dict[str, str]:
    return {"apiVersion": of.data["apiVersion"], "kind": of.data["kind"], "name": of.name, "uid": of.uid}


async def gone(embedded: StoreNamespace, name: str) -> bool:
    try:
        await embedded.get(name)
    except NotFound:
        return True
    return False


async def namespace_gone(embedded: StoreNamespace) -> bool:
    try:
        await embedded.driver.get(NAMESPACE, embedded.namespace)
    except NotFound:
        return True
    return False


def collecting(garbage: GarbageCollector) -> AbstractAsyncContextManager[None]:
    return running(*(informer.run() for informer in garbage.informers.values()), garbage.controller.run())


async def test_dependents_are_deleted_with_their_owner(embedded: StoreNamespace) -> None:
    """An object whose owner is deleted is deleted too; others stay."""
    parent = await embedded.create("parent")
    await embedded.create("child", ownerReferences=[owner(parent)])
    await embedded.create("free")
    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.delete("parent")
        await eventually(lambda: gone(embedded, "child"))
    assert await embedded.names() == ["free"]


async def test_dependents_of_dependents(embedded: StoreNamespace) -> None:
    """Deletion follows chains of owners."""
    parent = await embedded.create("parent")
    child = await embedded.create("child", ownerReferences=[owner(parent)])
    await embedded.create("grandchild", ownerReferences=[owner(child)])
    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.delete("parent")
        await eventually(lambda: gone(embedded, "grandchild"))


async def test_two_owners(embedded: StoreNamespace) -> None:
    """An object stays as long as one of its owners exists."""
    first, second = await embedded.create("first"), await embedded.create("second")
    await embedded.create("child", ownerReferences=[owner(first), owner(second)])
    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.delete("first")
        third = await embedded.create("third")
        await embedded.create("marker", ownerReferences=[owner(third)])
        await embedded.delete("third")
        await eventually(lambda: gone(embedded, "marker"))
        assert not await gone(embedded, "child")
        await embedded.delete("second")
        await eventually(lambda: gone(embedded, "child"))


async def test_orphan_from_before_the_start(embedded: StoreNamespace) -> None:
    """Orphans whose owner was deleted while the collector did not run are deleted at its start."""
    parent = await embedded.create("parent")
    await embedded.create("child", ownerReferences=[owner(parent)])
    await embedded.delete("parent")
    async with collecting(GarbageCollector(embedded.driver)):
        await eventually(lambda: gone(embedded, "child"))


async def test_recreated_owner(embedded: StoreNamespace) -> None:
    """A new object with the owner's name is not the owner."""
    parent = await embedded.create("parent")
    await embedded.create("child", ownerReferences=[owner(parent)])
    await embedded.delete("parent")
    await embedded.create("parent")
    async with collecting(GarbageCollector(embedded.driver)):
        await eventually(lambda: gone(embedded, "child"))
    assert await embedded.names() == ["parent"]


async def test_owner_of_unknown_kind(embedded: StoreNamespace) -> None:
    """Objects owned by a kind we do not know are left alone."""
    foreign = {"apiVersion": "example.com/v1", "kind": "Spaceship", "name": "x", "uid": "y"}
    await embedded.create("child", ownerReferences=[foreign])
    parent = await embedded.create("parent")
    await embedded.create("marker", ownerReferences=[owner(parent)])
    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.delete("parent")
        await eventually(lambda: gone(embedded, "marker"))
    assert await embedded.names() == ["child"]


async def test_finalizer_of_a_dependent_is_respected(embedded: StoreNamespace) -> None:
    """An orphan with a finalizer is marked as deleted and waits for the finalizer."""
    parent = await embedded.create("parent")
    await embedded.create("child", ownerReferences=[owner(parent)], finalizers=["aliquot.dev/hold"])

    async def is_marked() -> bool:
        return "deletionTimestamp" in (await embedded.get("child")).metadata

    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.delete("parent")
        await eventually(is_marked)


async def test_namespace_is_emptied(embedded: StoreNamespace) -> None:
    """A deleted namespace is removed with everything in it."""
    await embedded.create("a")
    spec = {"containers": [{"name": "main", "image": "busybox"}], "nodeName": "n1"}
    await embedded.driver.create(POD, document(POD, "p", embedded.namespace, spec))

    async with collecting(GarbageCollector(embedded.driver)):
        assert await embedded.driver.delete(NAMESPACE, embedded.namespace) is False
        await eventually(lambda: namespace_gone(embedded))
    assert (await embedded.driver.list(TEMPLATE, embedded.namespace)).items == []
    assert (await embedded.driver.list(POD, embedded.namespace)).items == []


async def test_empty_namespace(embedded: StoreNamespace) -> None:
    """An empty namespace is removed at once."""
    async with collecting(GarbageCollector(embedded.driver)):
        await embedded.driver.delete(NAMESPACE, embedded.namespace)
        await eventually(lambda: namespace_gone(embedded))


async def create_event(embedded: StoreNamespace, name: str, stamp: str) -> None:
    data = document(EVENT, name, embedded.namespace).data
    involved = {"kind": "Pod", "name": "p", "namespace": embedded.namespace}
    await embedded.driver.create(
        EVENT, Document({**data, "involvedObject": involved, "reason": "Test", "lastTimestamp": stamp})
    )


async def events_after_sweep(embedded: StoreNamespace, now: float, most: int = 10) -> list[str]:
    garbage = GarbageCollector(embedded.driver, clock=lambda: now)
    async with running(garbage.informers["Event"].run()):
        await garbage.informers["Event"].synced.wait()
        await garbage.sweep_once(most)
    return [item.name for item in (await embedded.driver.list(EVENT, embedded.namespace)).items]


BASE = 978307200.0  # 2001-01-01


async def test_old_events_are_deleted(embedded: StoreNamespace) -> None:
    """Events are kept for an hour."""
    await create_event(embedded, "old", "2001-01-01T00:00:00Z")
    await create_event(embedded, "new", "2001-01-01T00:59:00Z")
    assert await events_after_sweep(embedded, BASE + EVENT_SECONDS + 1) == ["new"]


async def test_the_number_of_events_is_bounded(embedded: StoreNamespace) -> None:
    """Of too many events only the latest are kept."""
    for minute in (1, 3, 2, 4):
        await create_event(embedded, f"e{minute}", f"2001-01-01T00:0{minute}:00Z")
    assert await events_after_sweep(embedded, BASE + 300, most=2) == ["e3", "e4"]
