"""What watches promise: every change once, in order, from where the reader was."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.errors import Conflict, Exists, Expired
from support.stores.namespace import DEPARTMENT, NAMESPACE, POD, TEMPLATE, StoreNamespace, changed, document

CONDITION = {"type": "Ready", "status": "True"}


async def test_create(place: StoreNamespace) -> None:
    """A create is seen as ADDED, with the object as created."""
    watcher = await place.watch()
    made = await place.create()
    change = await watcher.next()
    assert (change.type, change.document, change.version) == ("ADDED", made, made.version)


async def test_update(place: StoreNamespace) -> None:
    """A change is seen as MODIFIED, with the object as it then was."""
    made = await place.create()
    watcher = await place.watch()
    after = await place.describe(made, "second")
    change = await watcher.next()
    assert (change.type, change.document, change.version) == ("MODIFIED", after, after.version)


async def test_status(place: StoreNamespace) -> None:
    """A new status is a change."""
    made = await place.create()
    watcher = await place.watch()
    after = await place.driver.update_status(TEMPLATE, changed(made, status={"conditions": [CONDITION]}))
    change = await watcher.next()
    assert (change.type, change.document) == ("MODIFIED", after)


async def test_delete(place: StoreNamespace) -> None:
    """A removal is seen as DELETED, with the last state at a version of its own."""
    made = await place.create()
    watcher = await place.watch()
    await place.delete()
    change = await watcher.next()
    assert change.type == "DELETED"
    assert change.document is not None
    assert (change.document.name, change.document.uid) == (made.name, made.uid)
    assert change.document.data["spec"] == made.data["spec"]
    assert change.version not in ("", made.version)


async def test_mark(place: StoreNamespace) -> None:
    """A delete that has to wait is seen as a change, the end as DELETED, once."""
    await place.create(finalizers=["aliquot.dev/hold"])
    watcher = await place.watch()
    await place.delete()
    await place.driver.patch(TEMPLATE, "a", place.namespace, {"metadata": {"finalizers": None}})
    await place.create("end")
    first, second, third = await watcher.take(3)
    assert first.type == "MODIFIED"
    assert first.document is not None
    assert "deletionTimestamp" in first.document.metadata
    assert second.type == "DELETED"
    assert third.document is not None
    assert third.document.name == "end"


async def test_nothing_for_no_change(place: StoreNamespace) -> None:
    """A write that changes nothing is not seen."""
    made = await place.create()
    watcher = await place.watch()
    await place.driver.update(TEMPLATE, made)
    await place.driver.patch(TEMPLATE, "a", place.namespace, {})
    await place.create("end")
    change = await watcher.next()
    assert change.document is not None
    assert change.document.name == "end"


async def test_nothing_for_refused_writes(place: StoreNamespace) -> None:
    """A refused write is not seen."""
    made = await place.create()
    after = await place.describe(made, "second")
    watcher = await place.watch()
    for attempt in (place.describe(made, "third"), place.create(), place.delete(version=made.version)):
        with pytest.raises((Conflict, Exists)):
            await attempt
    await place.describe(after, "last")
    change = await watcher.next()
    assert change.document is not None
    assert change.document.data["spec"] == {"description": "last"}


async def test_order(place: StoreNamespace) -> None:
    """Changes come in the order in which they happened."""
    watcher = await place.watch()
    made = await place.create("a")
    made = await place.describe(made, "second")
    await place.create("b")
    await place.describe(made, "third")
    await place.delete("b")
    await place.delete("a")
    seen = [(change.type, change.document.name if change.document else "") for change in await watcher.take(6)]
    assert seen == [
        ("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b"), ("DELETED", "a"),
    ]  # fmt: skip


async def test_every_intermediate_state(place: StoreNamespace) -> None:
    """No state is skipped, however fast they follow."""
    made = await place.create(description="0")
    watcher = await place.watch()
    for number in range(1, 26):
        made = await place.describe(made, str(number))
    seen = [change.document.data["spec"]["description"] for change in await watcher.take(25) if change.document]
    assert seen == [str(number) for number in range(1, 26)]


async def test_from_a_past_version(place: StoreNamespace) -> None:
    """A watch starts where its version says, not now."""
    version = (await place.driver.list(TEMPLATE, place.namespace)).version
    await place.create("a")
    await place.create("b")
    watcher = place.watch_from(version)
    assert [change.document.name for change in await watcher.take(2) if change.document] == ["a", "b"]


async def test_list_and_watch_meet(place: StoreNamespace) -> None:
    """What a list has its watch does not repeat, and what it lacks its watch brings."""
    await place.create("before")
    listing = await place.driver.list(TEMPLATE, place.namespace)
    await place.create("after")
    change = await place.watch_from(listing.version).next()
    assert [item.name for item in listing.items] == ["before"]
    assert change.document is not None
    assert change.document.name == "after"


async def test_from_an_objects_version(place: StoreNamespace) -> None:
    """A watch may go on from any version that was seen."""
    watcher = await place.watch()
    await place.create("a")
    seen = await watcher.next()
    await place.create("b")
    change = await place.watch_from(seen.version).next()
    assert change.document is not None
    assert change.document.name == "b"


async def test_resumes(place: StoreNamespace) -> None:
    """A reader that was away misses nothing and sees nothing twice."""
    watcher = await place.watch()
    await place.create("a")
    await watcher.next()
    await watcher.close()
    await place.create("b")
    await place.delete("a")
    again = place.watch_from(watcher.version)
    seen = [(change.type, change.document.name if change.document else "") for change in await again.take(2)]
    assert seen == [("ADDED", "b"), ("DELETED", "a")]


async def test_one_namespace_only(place: StoreNamespace) -> None:
    """A namespace's watch is quiet about others."""
    other = f"{place.namespace}-other"
    await place.driver.create(NAMESPACE, document(NAMESPACE, other))
    watcher = await place.watch()
    await place.driver.create(TEMPLATE, document(TEMPLATE, "theirs", other, {}))
    await place.create("mine")
    change = await watcher.next()
    assert change.document is not None
    assert change.document.name == "mine"


async def test_one_kind_only(place: StoreNamespace) -> None:
    """A kind's watch is quiet about others."""
    watcher = await place.watch()
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    await place.driver.create(POD, document(POD, "p", place.namespace, spec))
    await place.create("mine")
    change = await watcher.next()
    assert change.document is not None
    assert change.document.data["kind"] == "Template"


async def test_cluster_kind(place: StoreNamespace) -> None:
    """Kinds that span the cluster can be watched."""
    version = (await place.driver.list(DEPARTMENT)).version
    made = await place.driver.create(DEPARTMENT, document(DEPARTMENT, place.unique(), spec={}))
    watcher = place.watch_from(version, DEPARTMENT)
    watcher._namespace = None
    while True:
        change = await watcher.next()
        if change.document is not None and change.document.name == made.name:
            assert change.type == "ADDED"
            break


async def test_many_watchers(place: StoreNamespace) -> None:
    """All watchers see the same."""
    watchers = [await place.watch() for _ in range(10)]
    made = await place.create()
    changes = await asyncio.gather(*(watcher.next() for watcher in watchers))
    assert all(change.document == made for change in changes)


async def test_slow_reader(place: StoreNamespace) -> None:
    """A reader that takes its time holds up nobody and still gets everything."""
    slow, fast = await place.watch(), await place.watch()
    for start in range(0, 60, 20):
        await asyncio.gather(*(place.create(f"t{index:02}") for index in range(start, start + 20)))
    assert len(await fast.take(60)) == 60
    names = [change.document.name for change in await slow.take(60) if change.document]
    assert sorted(names) == [f"t{index:02}" for index in range(60)]


@pytest.mark.on_kubernetes  # the others reach back to the beginning here; test_sqlite and test_memory cover their end
async def test_too_old(place: StoreNamespace) -> None:
    """A version that is out of reach is refused, not served with a hole."""
    with pytest.raises(Expired):
        await place.watch_from("1").next()


async def test_selected_by_label(place: StoreNamespace) -> None:
    """A selective watch brings what is selected."""
    watcher = await place.watch(labels="team=a")
    await place.create("other", labels={"team": "b"})
    await place.create("mine", labels={"team": "a"})
    change = await watcher.next()
    assert change.document is not None
    assert change.document.name == "mine"


async def test_selected_by_field(place: StoreNamespace) -> None:
    """A watch on one name brings only that one."""
    watcher = await place.watch(fields="metadata.name=mine")
    await place.create("other")
    await place.create("mine")
    change = await watcher.next()
    assert change.document is not None
    assert change.document.name == "mine"


async def test_entering_the_selection(place: StoreNamespace) -> None:
    """An object that begins to match is seen as ADDED."""
    made = await place.create(labels={"team": "b"})
    watcher = await place.watch(labels="team=a")
    after = await place.driver.update(TEMPLATE, changed(made, labels={"team": "a"}))
    change = await watcher.next()
    assert (change.type, change.document) == ("ADDED", after)


async def test_leaving_the_selection(place: StoreNamespace) -> None:
    """An object that no longer matches is seen as DELETED, at the version of the change."""
    made = await place.create(labels={"team": "a"})
    watcher = await place.watch(labels="team=a")
    after = await place.driver.update(TEMPLATE, changed(made, labels={"team": "b"}))
    change = await watcher.next()
    assert (change.type, change.version) == ("DELETED", after.version)
    assert change.document is not None
    assert change.document.name == "a"


async def test_staying_in_the_selection(place: StoreNamespace) -> None:
    """An object that goes on matching is seen as MODIFIED."""
    made = await place.create(labels={"team": "a"})
    watcher = await place.watch(labels="team=a")
    after = await place.describe(made, "second")
    change = await watcher.next()
    assert (change.type, change.document) == ("MODIFIED", after)


async def test_outside_the_selection(place: StoreNamespace) -> None:
    """What never matched is never seen, not even its end."""
    made = await place.create("other", labels={"team": "b"})
    watcher = await place.watch(labels="team=a")
    await place.describe(made, "second")
    await place.delete("other")
    await place.create("end", labels={"team": "a"})
    change = await watcher.next()
    assert change.document is not None
    assert change.document.name == "end"


async def test_deleted_from_the_selection(place: StoreNamespace) -> None:
    """The end of a selected object is seen."""
    await place.create(labels={"team": "a"})
    watcher = await place.watch(labels="team=a")
    await place.delete()
    assert (await watcher.next()).type == "DELETED"


async def test_pods_of_a_node(place: StoreNamespace) -> None:
    """A node sees a pod the moment it is bound to it."""
    watcher = await place.watch(POD, fields="spec.nodeName=n1")
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    made = await place.driver.create(POD, document(POD, "p", place.namespace, spec))
    await place.driver.patch(POD, "p", place.namespace, {"spec": {"nodeName": "n1"}}, version=made.version)
    change = await watcher.next()
    assert change.type == "ADDED"
    assert change.document is not None
    assert change.document.data["spec"]["nodeName"] == "n1"


async def test_recreated_object(place: StoreNamespace) -> None:
    """Delete and create are seen as two objects, never as a change of one."""
    first = await place.create()
    watcher = await place.watch()
    await place.delete()
    second = await place.create()
    gone, new = await watcher.take(2)
    assert (gone.type, new.type) == ("DELETED", "ADDED")
    assert gone.document is not None
    assert gone.document.uid == first.uid
    assert new.document is not None
    assert new.document.uid == second.uid
