"""What deletes promise: finalizers, grace, and no accidents."""

from __future__ import annotations

import asyncio
import time

import pytest

from aliquot import units
from aliquot.errors import Conflict, Denied, Invalid, NotFound
from aliquot.store.driver import Document
from support.stores.namespace import DEPARTMENT, NAMESPACE, POD, TEMPLATE, StoreNamespace, changed, document

HOLD = ["aliquot.dev/hold"]


async def test_removes(place: StoreNamespace) -> None:
    """A deleted object is gone at once when nothing keeps it."""
    await place.create()
    assert await place.delete() is True
    assert await place.names() == []


async def test_missing(place: StoreNamespace) -> None:
    """What is not there cannot be deleted."""
    with pytest.raises(NotFound):
        await place.delete("no-such")


async def test_twice(place: StoreNamespace) -> None:
    """The second delete finds nothing."""
    await place.create()
    await place.delete()
    with pytest.raises(NotFound):
        await place.delete()


async def test_only_the_named_one(place: StoreNamespace) -> None:
    """Others stay."""
    await place.create("a")
    await place.create("b")
    await place.delete("a")
    assert await place.names() == ["b"]


async def test_cluster_kind(place: StoreNamespace) -> None:
    """Kinds that span the cluster are deleted the same way."""
    await place.driver.create(DEPARTMENT, document(DEPARTMENT, place.unique(), spec={}))
    assert await place.driver.delete(DEPARTMENT, place.unique()) is True


async def test_with_right_uid(place: StoreNamespace) -> None:
    """A delete of this very object works."""
    made = await place.create()
    assert await place.delete(uid=made.uid) is True


async def test_with_other_uid(place: StoreNamespace) -> None:
    """A delete meant for an object of the past does not hit its successor."""
    await place.create()
    with pytest.raises(Conflict):
        await place.delete(uid="11111111-1111-1111-1111-111111111111")
    assert await place.names() == ["a"]


async def test_with_right_version(place: StoreNamespace) -> None:
    """A delete of what was seen works while it is so."""
    made = await place.create()
    assert await place.delete(version=made.version) is True


async def test_with_stale_version(place: StoreNamespace) -> None:
    """A delete decided from an old version is refused."""
    made = await place.create()
    await place.describe(made, "second")
    with pytest.raises(Conflict):
        await place.delete(version=made.version)
    assert await place.names() == ["a"]


async def test_finalizer_keeps(place: StoreNamespace) -> None:
    """Who has a finalizer on it gets to finish first."""
    await place.create(finalizers=HOLD)
    assert await place.delete() is False
    assert "deletionTimestamp" in (await place.get()).metadata


async def test_mark_is_now(place: StoreNamespace) -> None:
    """The mark says since when."""
    await place.create(finalizers=HOLD)
    await place.delete()
    metadata = (await place.get()).metadata
    assert abs(units.timestamp(metadata["deletionTimestamp"]) - time.time()) < 120
    assert metadata["deletionGracePeriodSeconds"] == 0


async def test_mark_counts_generation(place: StoreNamespace) -> None:
    """Being deleted is a wish like a new spec."""
    await place.create(finalizers=HOLD)
    await place.delete()
    assert (await place.get()).metadata["generation"] == 2


async def test_marked_again(place: StoreNamespace) -> None:
    """A second delete of a marked object changes nothing."""
    await place.create(finalizers=HOLD)
    await place.delete()
    first = await place.get()
    assert await place.delete() is False
    assert await place.get() == first


async def test_marked_can_still_change(place: StoreNamespace) -> None:
    """While it waits its fields can be written."""
    await place.create(finalizers=HOLD)
    await place.delete()
    after = await place.describe(await place.get(), "last words")
    assert after.data["spec"] == {"description": "last words"}
    assert "deletionTimestamp" in after.metadata


async def test_marked_keeps_mark(place: StoreNamespace) -> None:
    """There is no way back."""
    await place.create(finalizers=HOLD)
    await place.delete()
    seen = await place.get()
    after = await place.driver.update(TEMPLATE, changed(seen, deletionTimestamp=None, labels={"a": "b"}))
    assert after.metadata["deletionTimestamp"] == seen.metadata["deletionTimestamp"]


async def test_marked_takes_no_new_finalizer(place: StoreNamespace) -> None:
    """A dying object cannot be held by newcomers."""
    await place.create(finalizers=HOLD)
    await place.delete()
    seen = await place.get()
    with pytest.raises(Invalid):
        await place.driver.update(TEMPLATE, changed(seen, finalizers=[*HOLD, "aliquot.dev/late"]))


async def test_last_finalizer_removes(place: StoreNamespace) -> None:
    """When the last one lets go the object is gone."""
    await place.create(finalizers=HOLD)
    await place.delete()
    seen = await place.get()
    last = await place.driver.update(TEMPLATE, changed(seen, finalizers=None))
    assert await place.names() == []
    if "fire" not in place.flavour:  # a repeated call is told of the object as it last was
        assert (last.version, "finalizers" in last.metadata) == (seen.version, False)


async def test_last_finalizer_by_patch(place: StoreNamespace) -> None:
    """Letting go by patch works too."""
    await place.create(finalizers=HOLD)
    await place.delete()
    await place.driver.patch(TEMPLATE, "a", place.namespace, {"metadata": {"finalizers": None}})
    assert await place.names() == []


async def test_two_finalizers(place: StoreNamespace) -> None:
    """All of them must let go."""
    await place.create(finalizers=["aliquot.dev/one", "aliquot.dev/two"])
    await place.delete()
    seen = await place.driver.update(TEMPLATE, changed(await place.get(), finalizers=["aliquot.dev/two"]))
    assert await place.names() == ["a"]
    await place.driver.update(TEMPLATE, changed(seen, finalizers=None))
    assert await place.names() == []


async def test_finalizer_without_delete(place: StoreNamespace) -> None:
    """Letting go of an object that nobody deletes keeps it."""
    made = await place.create(finalizers=HOLD)
    await place.driver.update(TEMPLATE, changed(made, finalizers=None))
    assert await place.names() == ["a"]


async def test_name_stays_taken_while_marked(place: StoreNamespace) -> None:
    """A name is free when its object is gone, not before."""
    from aliquot.errors import Exists

    await place.create(finalizers=HOLD)
    await place.delete()
    with pytest.raises(Exists):
        await place.create()


@pytest.mark.calm  # a repeated delete counts "gone" as its own success
async def test_race(place: StoreNamespace) -> None:
    """Of many deletes one removes, the others find nothing."""
    await place.create()
    results = await asyncio.gather(*(place.delete() for _ in range(8)), return_exceptions=True)
    assert results.count(True) == 1
    assert sum(isinstance(result, NotFound) for result in results) == 7


# --- pods: a running one gets time to stop


def stored_pod(place: StoreNamespace, **spec: object) -> Document:
    return document(POD, "p", place.namespace, {"containers": [{"name": "main", "image": "busybox"}], **spec})


async def bound(place: StoreNamespace, **spec: object) -> Document:
    made = await place.driver.create(POD, stored_pod(place, **spec))
    return await place.driver.patch(POD, "p", place.namespace, {"spec": {"nodeName": "n1"}}, version=made.version)


async def test_unbound_pod_goes_at_once(place: StoreNamespace) -> None:
    """A pod that runs nowhere needs no time."""
    await place.driver.create(POD, stored_pod(place))
    assert await place.driver.delete(POD, "p", place.namespace) is True


async def test_bound_pod_gets_time(place: StoreNamespace) -> None:
    """A pod on a node is marked, with thirty seconds unless it says otherwise."""
    await bound(place)
    assert await place.driver.delete(POD, "p", place.namespace) is False
    metadata = (await place.driver.get(POD, "p", place.namespace)).metadata
    assert metadata["deletionGracePeriodSeconds"] == 30
    assert 0 < units.timestamp(metadata["deletionTimestamp"]) - time.time() < 60


async def test_pods_own_grace(place: StoreNamespace) -> None:
    """A pod says itself how long it needs."""
    await bound(place, terminationGracePeriodSeconds=77)
    await place.driver.delete(POD, "p", place.namespace)
    assert (await place.driver.get(POD, "p", place.namespace)).metadata["deletionGracePeriodSeconds"] == 77


async def test_callers_grace(place: StoreNamespace) -> None:
    """The caller may give another grace."""
    await bound(place)
    await place.driver.delete(POD, "p", place.namespace, grace_seconds=5)
    assert (await place.driver.get(POD, "p", place.namespace)).metadata["deletionGracePeriodSeconds"] == 5


async def test_no_grace(place: StoreNamespace) -> None:
    """Grace 0 removes at once: it is how a node says that the pod has ended."""
    await bound(place)
    assert await place.driver.delete(POD, "p", place.namespace, grace_seconds=0) is True
    with pytest.raises(NotFound):
        await place.driver.get(POD, "p", place.namespace)


async def test_node_finishes(place: StoreNamespace) -> None:
    """First the wish, then the node's word."""
    await bound(place)
    assert await place.driver.delete(POD, "p", place.namespace) is False
    assert await place.driver.delete(POD, "p", place.namespace, grace_seconds=0) is True


async def test_grace_shrinks_only(place: StoreNamespace) -> None:
    """A second delete may hurry, not delay."""
    await bound(place)
    await place.driver.delete(POD, "p", place.namespace, grace_seconds=20)
    await place.driver.delete(POD, "p", place.namespace, grace_seconds=10)
    assert (await place.driver.get(POD, "p", place.namespace)).metadata["deletionGracePeriodSeconds"] == 10
    await place.driver.delete(POD, "p", place.namespace, grace_seconds=300)
    assert (await place.driver.get(POD, "p", place.namespace)).metadata["deletionGracePeriodSeconds"] == 10


async def test_asking_again_changes_nothing(place: StoreNamespace) -> None:
    """A second delete that names no grace leaves the one that was given."""
    await bound(place)
    await place.driver.delete(POD, "p", place.namespace, grace_seconds=60)
    assert await place.driver.delete(POD, "p", place.namespace) is False
    assert (await place.driver.get(POD, "p", place.namespace)).metadata["deletionGracePeriodSeconds"] == 60


async def test_finished_pod_goes_at_once(place: StoreNamespace) -> None:
    """A pod that has ended needs no time."""
    await bound(place)
    await place.driver.patch(POD, "p", place.namespace, {"status": {"phase": "Succeeded"}}, status=True)
    assert await place.driver.delete(POD, "p", place.namespace) is True


# --- binding


async def test_bind(place: StoreNamespace) -> None:
    """Binding gives a pod its node and its devices in one step."""
    made = await place.driver.create(POD, stored_pod(place))
    patch = {"metadata": {"annotations": {"aliquot.dev/devices": "[]"}}, "spec": {"nodeName": "n1"}}
    after = await place.driver.patch(POD, "p", place.namespace, patch, version=made.version)
    assert after.data["spec"]["nodeName"] == "n1"
    assert after.metadata["annotations"]["aliquot.dev/devices"] == "[]"


async def test_bind_twice(place: StoreNamespace) -> None:
    """A pod is given out once."""
    after = await bound(place)
    with pytest.raises(Conflict):
        await place.driver.patch(POD, "p", place.namespace, {"spec": {"nodeName": "n2"}}, version=after.version)
    assert (await place.driver.get(POD, "p", place.namespace)).data["spec"]["nodeName"] == "n1"


async def test_bind_stale(place: StoreNamespace) -> None:
    """A binding decided from an old version is refused."""
    made = await place.driver.create(POD, stored_pod(place))
    await place.driver.patch(POD, "p", place.namespace, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        await place.driver.patch(POD, "p", place.namespace, {"spec": {"nodeName": "n1"}}, version=made.version)


async def test_pod_by_node(place: StoreNamespace) -> None:
    """A node finds its pods."""
    await bound(place)
    await place.driver.create(POD, document(POD, "q", place.namespace, stored_pod(place).data["spec"]))
    listing = await place.driver.list(POD, place.namespace, fields="spec.nodeName=n1")
    assert [item.name for item in listing.items] == ["p"]


async def test_pod_spec_is_fixed(place: StoreNamespace) -> None:
    """What a pod runs cannot change under it."""
    made = await place.driver.create(POD, stored_pod(place))
    with pytest.raises(Invalid):
        await place.driver.update(POD, changed(made, spec={**made.data["spec"], "restartPolicy": "Never"}))


# --- namespaces


async def test_namespace_keeps_its_contents_until_emptied(place: StoreNamespace) -> None:
    """A namespace with something in it is on its way, not gone."""
    await place.create(finalizers=HOLD)
    assert await place.driver.delete(NAMESPACE, place.namespace) is False
    seen = await place.driver.get(NAMESPACE, place.namespace)
    assert "deletionTimestamp" in seen.metadata
    assert seen.data["status"]["phase"] == "Terminating"
    await place.driver.patch(TEMPLATE, "a", place.namespace, {"metadata": {"finalizers": None}})


async def test_nothing_new_in_a_dying_namespace(place: StoreNamespace) -> None:
    """A namespace that goes takes nothing in."""
    await place.create(finalizers=HOLD)
    await place.driver.delete(NAMESPACE, place.namespace)
    with pytest.raises(Denied):
        await place.create("late")
    await place.driver.patch(TEMPLATE, "a", place.namespace, {"metadata": {"finalizers": None}})


async def test_new_namespace_is_active(place: StoreNamespace) -> None:
    """A namespace says that it may be used."""
    assert (await place.driver.get(NAMESPACE, place.namespace)).data["status"]["phase"] == "Active"
