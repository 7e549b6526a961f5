"""The contract of `watch`, for every store driver: every change once, in order, from a given version."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.errors import Conflict, Exists, Expired
from support.stores.namespace import DEPARTMENT, NAMESPACE, POD, TEMPLATE, StoreNamespace, changed, document

CONDITION = {"type": "Ready", "status": "True"}


async def test_create(store: StoreNamespace) -> None:
    """A create is seen as ADDED, with the object as created."""
    watcher = await store.watch()
    created = await store.create()
    change = await watcher.next()
    assert (change.type, change.document, change.version) == ("ADDED", created, created.version)


async def test_update(store: StoreNamespace) -> None:
    """A change is seen as MODIFIED, with the object at that version."""
    created = await store.create()
    watcher = await store.watch()
    after = await store.describe(created, "second")
    change = await watcher.next()
    assert (change.type, change.document, change.version) == ("MODIFIED", after, after.version)


async def test_status(store: StoreNamespace) -> None:
    """A status update is seen as MODIFIED."""
    created = await store.create()
    watcher = await store.watch()
    after = await store.driver.update_status(TEMPLATE, changed(created, status={"conditions": [CONDITION]}))
    change = await watcher.next()
    assert (change.type, change.document) == ("MODIFIED", after)


async def test_delete(store: StoreNamespace) -> None:
    """A removal is seen as DELETED, with the last state and a new version."""
    created = await store.create()
    watcher = await store.watch()
    await store.delete()
    change = await watcher.next()
    assert change.type == "DELETED"
    assert change.document is not None
    assert (change.document.name, change.document.uid) == (created.name, created.uid)
    assert change.document.data["spec"] == created.data["spec"]
    assert change.version not in ("", created.version)


async def test_deletion_timestamp(store: StoreNamespace) -> None:
    """A deletion timestamp is seen as MODIFIED, and the removal once as DELETED."""
    await store.create(finalizers=["aliquot.dev/hold"])
    watcher = await store.watch()
    await store.delete()
    await store.driver.patch(TEMPLATE, "a", store.namespace, {"metadata": {"finalizers": None}})
    await store.create("end")
    first, second, third = await watcher.take(3)
    assert first.type == "MODIFIED"
    assert first.document is not None
    assert "deletionTimestamp" in first.document.metadata
    assert second.type == "DELETED"
    assert third.document is not None
    assert third.document.name == "end"


async def test_nothing_for_no_change(store: StoreNamespace) -> None:
    """A write that changes nothing is not seen."""
    created = await store.create()
    watcher = await store.watch()
    await store.driver.update(TEMPLATE, created)
    await store.driver.patch(TEMPLATE, "a", store.namespace, {})
    await store.create("end")
    change = await watcher.next()
    assert change.document is not None
    assert change.document.name == "end"


async def test_nothing_for_refused_writes(store: StoreNamespace) -> None:
    """A refused write is not seen."""
    created = await store.create()
    after = await store.describe(created, "second")
    watcher = await store.watch()
    for attempt in (store.describe(created, "third"), store.create(), store.delete(version=created.version)):
        with pytest.raises((Conflict, Exists)):
            await attempt
    await store.describe(after, "last")
    change = await watcher.next()
    assert change.document is not None
    assert change.document.data["spec"] == {"description": "last"}


async def test_order(store: StoreNamespace) -> None:
    """Changes are in the order in which they happened."""
    watcher = await store.watch()
    created = await store.create("a")
    created = await store.describe(created, "second")
    await store.create("b")
    await store.describe(created, "third")
    await store.delete("b")
    await store.delete("a")
    seen = [(change.type, change.document.name if change.document else "") for change in await watcher.take(6)]
    assert seen == [
        ("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b"), ("DELETED", "a"),
    ]  # fmt: skip


async def test_every_intermediate_state(store: StoreNamespace) -> None:
    """No state is skipped, even in quick succession."""
    created = await store.create(description="0")
    watcher = await store.watch()
    for number in range(1, 26):
        created = await store.describe(created, str(number))
    seen = [change.document.data["spec"]["description"] for change in await watcher.take(25) if change.document]
    assert seen == [str(number) for number in range(1, 26)]


async def test_from_a_past_version(store: StoreNamespace) -> None:
    """A watch starts at its version."""
    version = (await store.driver.list(TEMPLATE, store.namespace)).version
    await store.create("a")
    await store.create("b")
    watcher = store.watch_from(version)
    assert [change.document.name for change in await watcher.take(2) if change.document] == ["a", "b"]


async def test_list_and_watch_meet(store: StoreNamespace) -> None:
    """A watch from a list's version has exactly the changes that the list lacks."""
    await store.create("before")
    listing = await store.driver.list(TEMPLATE, store.namespace)
    await store.create("after")
    change = await store.watch_from(listing.version).next()
    assert [item.name for item in listing.items] == ["before"]
    assert change.document is not None
    assert change.document.name == "after"


async def test_from_an_objects_version(store: StoreNamespace) -> None:
    """A watch can start at any version that was seen."""
    watcher = await store.watch()
    await store.create("a")
    seen = await watcher.next()
    await store.create("b")
    change = await store.watch_from(seen.version).next()
    assert change.document is not None
    assert change.document.name == "b"


async def test_resumes(store: StoreNamespace) -> None:
    """A resumed watch misses nothing and repeats nothing."""
    watcher = await store.watch()
    await store.create("a")
    await watcher.next()
    await watcher.close()
    await store.create("b")
    await store.delete("a")
    again = store.watch_from(watcher.version)
    seen = [(change.type, change.document.name if change.document else "") for change in await again.take(2)]
    assert seen == [("ADDED", "b"), ("DELETED", "a")]


async def test_one_namespace_only(store: StoreNamespace) -> None:
    """The watch of a namespace has no changes of other namespaces."""
    other = f"{store.namespace}-other"
    await store.driver.create(NAMESPACE, document(NAMESPACE, other))
    watcher = await store.watch()
    await store.driver.create(TEMPLATE, document(TEMPLATE, "theirs", other, {}))
    await store.create("mine")
    change = await watcher.next()
    assert change.document is not None
    assert change.document.name == "mine"


async def test_one_kind_only(store: StoreNamespace) -> None:
    """The watch of a kind has no changes of other kinds."""
    watcher = await store.watch()
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    await store.driver.create(POD, document(POD, "p", store.namespace, spec))
    await store.create("mine")
    change = await watcher.next()
    assert change.document is not None
    assert change.document.data["kind"] == "Template"


async def test_cluster_kind(store: StoreNamespace) -> None:
    """Cluster-scoped kinds can be watched."""
    version = (await store.driver.list(DEPARTMENT)).version
    created = await store.driver.create(DEPARTMENT, document(DEPARTMENT, store.unique(), spec={}))
    watcher = store.watch_from(version, DEPARTMENT)
    watcher._namespace = None
    while True:
        change = await watcher.next()
        if change.document is not None and change.document.name == created.name:
            assert change.type == "ADDED"
            break


async def test_many_watchers(store: StoreNamespace) -> None:
    """All watches see the same changes."""
    watchers = [await store.watch() for _ in range(10)]
    created = await store.create()
    changes = await asyncio.gather(*(watcher.next() for watcher in watchers))
    assert all(change.document == created for change in changes)


async def test_slow_reader(store: StoreNamespace) -> None:
    """A slow watch does not delay writes and still gets every change."""
    slow, fast = await store.watch(), await store.watch()
    for start in range(0, 60, 20):
        await asyncio.gather(*(store.create(f"t{index:02}") for index in range(start, start + 20)))
    assert len(await fast.take(60)) == 60
    names = [change.document.name for change in await slow.take(60) if change.document]
    assert sorted(names) == [f"t{index:02}" for index in range(60)]


@pytest.mark.on_kubernetes  # the others reach back to the beginning here; test_sqlite and test_memory cover their end
async def test_too_old(store: StoreNamespace) -> None:
    """A version that is too old is refused; the watch never skips changes."""
    with pytest.raises(Expired):
        await store.watch_from("1").next()


async def test_selected_by_label(store: StoreNamespace) -> None:
    """A watch with a label selector has only matching objects."""
    watcher = await store.watch(labels="team=a")
    await store.create("other", labels={"team": "b"})
    await store.create("mine", labels={"team": "a"})
    change = await watcher.next()
    assert change.document is not None
    assert change.document.name == "mine"


async def test_selected_by_field(store: StoreNamespace) -> None:
    """A watch on one name has only that object."""
    watcher = await store.watch(fields="metadata.name=mine")
    await store.create("other")
    await store.create("mine")
    change = await watcher.next()
    assert change.document is not None
    assert change.document.name == "mine"


async def test_entering_the_selection(store: StoreNamespace) -> None:
    """An object that begins to match is seen as ADDED."""
    created = await store.create(labels={"team": "b"})
    watcher = await store.watch(labels="team=a")
    after = await store.driver.update(TEMPLATE, changed(created, labels={"team": "a"}))
    change = await watcher.next()
    assert (change.type, change.document) == ("ADDED", after)


async def test_leaving_the_selection(store: StoreNamespace) -> None:
    """An object that no longer matches is seen as DELETED, at the version of the change."""
    created = await store.create(labels={"team": "a"})
    watcher = await store.watch(labels="team=a")
    after = await store.driver.update(TEMPLATE, changed(created, labels={"team": "b"}))
    change = await watcher.next()
    assert (change.type, change.version) == ("DELETED", after.version)
    assert change.document is not None
    assert change.document.name == "a"


async def test_staying_in_the_selection(store: StoreNamespace) -> None:
    """An object that still matches is seen as MODIFIED."""
    created = await store.create(labels={"team": "a"})
    watcher = await store.watch(labels="team=a")
    after = await store.describe(created, "second")
    change = await watcher.next()
    assert (change.type, change.document) == ("MODIFIED", after)


async def test_outside_the_selection(store: StoreNamespace) -> None:
    """An object that never matched is never seen, not even its deletion."""
    created = await store.create("other", labels={"team": "b"})
    watcher = await store.watch(labels="team=a")
    await store.describe(created, "second")
    await store.delete("other")
    await store.create("end", labels={"team": "a"})
    change = await watcher.next()
    assert change.document is not None
    assert change.document.name == "end"


async def test_deleted_from_the_selection(store: StoreNamespace) -> None:
    """The deletion of a matching object is seen."""
    await store.create(labels={"team": "a"})
    watcher = await store.watch(labels="team=a")
    await store.delete()
    assert (await watcher.next()).type == "DELETED"


async def test_pods_of_a_node(store: StoreNamespace) -> None:
    """A watch on a node's pods sees a pod as soon as it is bound."""
    watcher = await store.watch(POD, fields="spec.nodeName=n1")
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    created = await store.driver.create(POD, document(POD, "p", store.namespace, spec))
    await store.driver.patch(POD, "p", store.namespace, {"spec": {"nodeName": "n1"}}, version=created.version)
    change = await watcher.next()
    assert change.type == "ADDED"
    assert change.document is not None
    assert change.document.data["spec"]["nodeName"] == "n1"


async def test_recreated_object(store: StoreNamespace) -> None:
    """Delete and create are seen as two objects, never as a change of one."""
    first = await store.create()
    watcher = await store.watch()
    await store.delete()
    second = await store.create()
    gone, new = await watcher.take(2)
    assert (gone.type, new.type) == ("DELETED", "ADDED")
    assert gone.document is not None
    assert gone.document.uid == first.uid
    assert new.document is not None
    assert new.document.uid == second.uid
