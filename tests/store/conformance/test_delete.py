"""The contract of `delete`, for every store driver: finalizers, grace and preconditions."""

from __future__ import annotations

import asyncio
import time

import pytest

from aliquot import units
from aliquot.errors import Conflict, Denied, Invalid, NotFound
from aliquot.store.driver import Document
from support.stores.namespace import DEPARTMENT, NAMESPACE, POD, TEMPLATE, StoreNamespace, changed, document

HOLD = ["aliquot.dev/hold"]


async def test_removes(store: StoreNamespace) -> None:
    """An object without finalizers is removed at once."""
    await store.create()
    assert await store.delete() is True
    assert await store.names() == []


async def test_missing(store: StoreNamespace) -> None:
    """A delete of a missing object is not found."""
    with pytest.raises(NotFound):
        await store.delete("no-such")


async def test_twice(store: StoreNamespace) -> None:
    """A second delete is not found."""
    await store.create()
    await store.delete()
    with pytest.raises(NotFound):
        await store.delete()


async def test_only_the_named_one(store: StoreNamespace) -> None:
    """A delete does not affect other objects."""
    await store.create("a")
    await store.create("b")
    await store.delete("a")
    assert await store.names() == ["b"]


async def test_cluster_kind(store: StoreNamespace) -> None:
    """Cluster-scoped objects are deleted the same way."""
    await store.driver.create(DEPARTMENT, document(DEPARTMENT, store.unique(), spec={}))
    assert await store.driver.delete(DEPARTMENT, store.unique()) is True


async def test_with_right_uid(store: StoreNamespace) -> None:
    """A delete with the object's uid succeeds."""
    created = await store.create()
    assert await store.delete(uid=created.uid) is True


async def test_with_other_uid(store: StoreNamespace) -> None:
    """A delete with the uid of an earlier object is refused."""
    await store.create()
    with pytest.raises(Conflict):
        await store.delete(uid="11111111-1111-1111-1111-111111111111")
    assert await store.names() == ["a"]


async def test_with_right_version(store: StoreNamespace) -> None:
    """A delete with the current version succeeds."""
    created = await store.create()
    assert await store.delete(version=created.version) is True


async def test_with_stale_version(store: StoreNamespace) -> None:
    """A delete with an old version is refused."""
    created = await store.create()
    await store.describe(created, "second")
    with pytest.raises(Conflict):
        await store.delete(version=created.version)
    assert await store.names() == ["a"]


async def test_finalizer_keeps(store: StoreNamespace) -> None:
    """An object with a finalizer gets a deletion timestamp and stays."""
    await store.create(finalizers=HOLD)
    assert await store.delete() is False
    assert "deletionTimestamp" in (await store.get()).metadata


async def test_deletion_timestamp_is_now(store: StoreNamespace) -> None:
    """The deletion timestamp is the time of the delete."""
    await store.create(finalizers=HOLD)
    await store.delete()
    metadata = (await store.get()).metadata
    assert abs(units.timestamp(metadata["deletionTimestamp"]) - time.time()) < 120
    assert metadata["deletionGracePeriodSeconds"] == 0


async def test_delete_increases_generation(store: StoreNamespace) -> None:
    """A deletion timestamp increases the generation."""
    await store.create(finalizers=HOLD)
    await store.delete()
    assert (await store.get()).metadata["generation"] == 2


async def test_terminating_is_deleted_again(store: StoreNamespace) -> None:
    """A second delete of an object that is being deleted changes nothing."""
    await store.create(finalizers=HOLD)
    await store.delete()
    first = await store.get()
    assert await store.delete() is False
    assert await store.get() == first


async def test_terminating_can_still_change(store: StoreNamespace) -> None:
    """An object that is being deleted can be updated."""
    await store.create(finalizers=HOLD)
    await store.delete()
    after = await store.describe(await store.get(), "last words")
    assert after.data["spec"] == {"description": "last words"}
    assert "deletionTimestamp" in after.metadata


async def test_deletion_timestamp_stays(store: StoreNamespace) -> None:
    """A deletion timestamp cannot be removed."""
    await store.create(finalizers=HOLD)
    await store.delete()
    seen = await store.get()
    after = await store.driver.update(TEMPLATE, changed(seen, deletionTimestamp=None, labels={"a": "b"}))
    assert after.metadata["deletionTimestamp"] == seen.metadata["deletionTimestamp"]


async def test_terminating_takes_no_new_finalizer(store: StoreNamespace) -> None:
    """No finalizer can be added to an object that is being deleted."""
    await store.create(finalizers=HOLD)
    await store.delete()
    seen = await store.get()
    with pytest.raises(Invalid):
        await store.driver.update(TEMPLATE, changed(seen, finalizers=[*HOLD, "aliquot.dev/late"]))


async def test_last_finalizer_removes(store: StoreNamespace) -> None:
    """The object is removed with its last finalizer."""
    await store.create(finalizers=HOLD)
    await store.delete()
    seen = await store.get()
    last = await store.driver.update(TEMPLATE, changed(seen, finalizers=None))
    assert await store.names() == []
    if "restarted" not in store.flavour:  # a repeated call returns the last known state of the object
        assert (last.version, "finalizers" in last.metadata) == (seen.version, False)


async def test_last_finalizer_by_patch(store: StoreNamespace) -> None:
    """A patch can remove the last finalizer too."""
    await store.create(finalizers=HOLD)
    await store.delete()
    await store.driver.patch(TEMPLATE, "a", store.namespace, {"metadata": {"finalizers": None}})
    assert await store.names() == []


async def test_two_finalizers(store: StoreNamespace) -> None:
    """The object stays until every finalizer is removed."""
    await store.create(finalizers=["aliquot.dev/one", "aliquot.dev/two"])
    await store.delete()
    seen = await store.driver.update(TEMPLATE, changed(await store.get(), finalizers=["aliquot.dev/two"]))
    assert await store.names() == ["a"]
    await store.driver.update(TEMPLATE, changed(seen, finalizers=None))
    assert await store.names() == []


async def test_finalizer_without_delete(store: StoreNamespace) -> None:
    """An object that is not being deleted stays when its finalizers are removed."""
    created = await store.create(finalizers=HOLD)
    await store.driver.update(TEMPLATE, changed(created, finalizers=None))
    assert await store.names() == ["a"]


async def test_name_stays_taken_while_marked(store: StoreNamespace) -> None:
    """A name stays in use until its object is removed."""
    from aliquot.errors import Exists

    await store.create(finalizers=HOLD)
    await store.delete()
    with pytest.raises(Exists):
        await store.create()


@pytest.mark.stable_server  # a repeated delete counts "gone" as its own success
async def test_race(store: StoreNamespace) -> None:
    """Of concurrent deletes one succeeds, and the others are not found."""
    await store.create()
    results = await asyncio.gather(*(store.delete() for _ in range(8)), return_exceptions=True)
    assert results.count(True) == 1
    assert sum(isinstance(result, NotFound) for result in results) == 7


# --- pods: a running one gets time to stop


def stored_pod(store: StoreNamespace, **spec: object) -> Document:
    return document(POD, "p", store.namespace, {"containers": [{"name": "main", "image": "busybox"}], **spec})


async def bound(store: StoreNamespace, **spec: object) -> Document:
    created = await store.driver.create(POD, stored_pod(store, **spec))
    return await store.driver.patch(POD, "p", store.namespace, {"spec": {"nodeName": "n1"}}, version=created.version)


async def test_unbound_pod_goes_at_once(store: StoreNamespace) -> None:
    """A pod without a node is removed at once."""
    await store.driver.create(POD, stored_pod(store))
    assert await store.driver.delete(POD, "p", store.namespace) is True


async def test_bound_pod_gets_time(store: StoreNamespace) -> None:
    """A pod on a node is marked, with a grace of thirty seconds by default."""
    await bound(store)
    assert await store.driver.delete(POD, "p", store.namespace) is False
    metadata = (await store.driver.get(POD, "p", store.namespace)).metadata
    assert metadata["deletionGracePeriodSeconds"] == 30
    assert 0 < units.timestamp(metadata["deletionTimestamp"]) - time.time() < 60


async def test_pods_own_grace(store: StoreNamespace) -> None:
    """The pod's own grace period is used."""
    await bound(store, terminationGracePeriodSeconds=77)
    await store.driver.delete(POD, "p", store.namespace)
    assert (await store.driver.get(POD, "p", store.namespace)).metadata["deletionGracePeriodSeconds"] == 77


async def test_callers_grace(store: StoreNamespace) -> None:
    """The caller's grace overrides that of the pod."""
    await bound(store)
    await store.driver.delete(POD, "p", store.namespace, grace_seconds=5)
    assert (await store.driver.get(POD, "p", store.namespace)).metadata["deletionGracePeriodSeconds"] == 5


async def test_no_grace(store: StoreNamespace) -> None:
    """Grace 0 removes the pod at once, as a node does when the pod has ended."""
    await bound(store)
    assert await store.driver.delete(POD, "p", store.namespace, grace_seconds=0) is True
    with pytest.raises(NotFound):
        await store.driver.get(POD, "p", store.namespace)


async def test_node_finishes(store: StoreNamespace) -> None:
    """A delete marks the pod, and a delete with grace 0 removes it."""
    await bound(store)
    assert await store.driver.delete(POD, "p", store.namespace) is False
    assert await store.driver.delete(POD, "p", store.namespace, grace_seconds=0) is True


async def test_grace_shrinks_only(store: StoreNamespace) -> None:
    """A second delete can shorten the grace, but not extend it."""
    await bound(store)
    await store.driver.delete(POD, "p", store.namespace, grace_seconds=20)
    await store.driver.delete(POD, "p", store.namespace, grace_seconds=10)
    assert (await store.driver.get(POD, "p", store.namespace)).metadata["deletionGracePeriodSeconds"] == 10
    await store.driver.delete(POD, "p", store.namespace, grace_seconds=300)
    assert (await store.driver.get(POD, "p", store.namespace)).metadata["deletionGracePeriodSeconds"] == 10


async def test_asking_again_changes_nothing(store: StoreNamespace) -> None:
    """A second delete without a grace keeps the first one."""
    await bound(store)
    await store.driver.delete(POD, "p", store.namespace, grace_seconds=60)
    assert await store.driver.delete(POD, "p", store.namespace) is False
    assert (await store.driver.get(POD, "p", store.namespace)).metadata["deletionGracePeriodSeconds"] == 60


async def test_finished_pod_goes_at_once(store: StoreNamespace) -> None:
    """A pod that has ended is removed at once."""
    await bound(store)
    await store.driver.patch(POD, "p", store.namespace, {"status": {"phase": "Succeeded"}}, status=True)
    assert await store.driver.delete(POD, "p", store.namespace) is True


# --- binding


async def test_bind(store: StoreNamespace) -> None:
    """A patch sets a pod's node and devices in one write."""
    created = await store.driver.create(POD, stored_pod(store))
    patch = {"metadata": {"annotations": {"aliquot.dev/devices": "[]"}}, "spec": {"nodeName": "n1"}}
    after = await store.driver.patch(POD, "p", store.namespace, patch, version=created.version)
    assert after.data["spec"]["nodeName"] == "n1"
    assert after.metadata["annotations"]["aliquot.dev/devices"] == "[]"


async def test_bind_twice(store: StoreNamespace) -> None:
    """A bound pod cannot be bound again."""
    after = await bound(store)
    with pytest.raises(Conflict):
        await store.driver.patch(POD, "p", store.namespace, {"spec": {"nodeName": "n2"}}, version=after.version)
    assert (await store.driver.get(POD, "p", store.namespace)).data["spec"]["nodeName"] == "n1"


async def test_bind_stale(store: StoreNamespace) -> None:
    """A binding with an old version is refused."""
    created = await store.driver.create(POD, stored_pod(store))
    await store.driver.patch(POD, "p", store.namespace, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        await store.driver.patch(POD, "p", store.namespace, {"spec": {"nodeName": "n1"}}, version=created.version)


async def test_pod_by_node(store: StoreNamespace) -> None:
    """A list can select the pods of a node."""
    await bound(store)
    await store.driver.create(POD, document(POD, "q", store.namespace, stored_pod(store).data["spec"]))
    listing = await store.driver.list(POD, store.namespace, fields="spec.nodeName=n1")
    assert [item.name for item in listing.items] == ["p"]


async def test_pod_spec_is_fixed(store: StoreNamespace) -> None:
    """The spec of a pod is immutable."""
    created = await store.driver.create(POD, stored_pod(store))
    with pytest.raises(Invalid):
        await store.driver.update(POD, changed(created, spec={**created.data["spec"], "restartPolicy": "Never"}))


# --- namespaces


async def test_namespace_keeps_its_contents_until_emptied(store: StoreNamespace) -> None:
    """A namespace with objects is marked as terminating."""
    await store.create(finalizers=HOLD)
    assert await store.driver.delete(NAMESPACE, store.namespace) is False
    seen = await store.driver.get(NAMESPACE, store.namespace)
    assert "deletionTimestamp" in seen.metadata
    assert seen.data["status"]["phase"] == "Terminating"
    await store.driver.patch(TEMPLATE, "a", store.namespace, {"metadata": {"finalizers": None}})


async def test_nothing_new_in_a_dying_namespace(store: StoreNamespace) -> None:
    """A create in a terminating namespace is refused."""
    await store.create(finalizers=HOLD)
    await store.driver.delete(NAMESPACE, store.namespace)
    with pytest.raises(Denied):
        await store.create("late")
    await store.driver.patch(TEMPLATE, "a", store.namespace, {"metadata": {"finalizers": None}})


async def test_new_namespace_is_active(store: StoreNamespace) -> None:
    """A namespace has phase Active."""
    assert (await store.driver.get(NAMESPACE, store.namespace)).data["status"]["phase"] == "Active"
