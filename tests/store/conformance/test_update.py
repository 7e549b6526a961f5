"""The contract of `update` and `update_status`, for every store driver: versions, and separate spec and status."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aliquot.errors import Conflict, Invalid, NotFound
from aliquot.store.driver import Document
from support.stores.namespace import DEPARTMENT, TEMPLATE, StoreNamespace, changed, document

CONDITION = {"type": "Ready", "status": "True"}


async def test_changes_spec(store: StoreNamespace) -> None:
    """The new spec replaces the old one."""
    created = await store.create()
    assert (await store.describe(created, "second")).data["spec"] == {"description": "second"}
    assert (await store.get()).data["spec"] == {"description": "second"}


async def test_replaces_whole_spec(store: StoreNamespace) -> None:
    """Fields that the new spec omits are removed."""
    created = await store.driver.create(
        TEMPLATE, document(TEMPLATE, "a", store.namespace, {"description": "x", "createdBy": "me"})
    )
    after = await store.driver.update(TEMPLATE, changed(created, spec={"description": "x"}))
    assert after.data["spec"] == {"description": "x"}


async def test_gives_new_version(store: StoreNamespace) -> None:
    """Every change gives a new version."""
    created = await store.create()
    after = await store.describe(created, "second")
    assert after.version not in ("", created.version)
    assert (await store.get()).version == after.version


async def test_counts_generation(store: StoreNamespace) -> None:
    """Each change of the spec increases the generation."""
    created = await store.create()
    second = await store.describe(created, "second")
    third = await store.describe(second, "third")
    assert (second.metadata["generation"], third.metadata["generation"]) == (2, 3)


async def test_labels_do_not_count(store: StoreNamespace) -> None:
    """A change of labels does not increase the generation."""
    created = await store.create()
    after = await store.driver.update(TEMPLATE, changed(created, labels={"a": "b"}))
    assert after.metadata["labels"] == {"a": "b"}
    assert after.metadata["generation"] == 1
    assert after.version != created.version


async def test_keeps_identity(store: StoreNamespace) -> None:
    """uid, creation time, name and namespace never change."""
    created = await store.create()
    after = await store.describe(created, "second")
    for key in ("uid", "creationTimestamp", "name", "namespace"):
        assert after.metadata[key] == created.metadata[key]


async def test_nothing_changed(store: StoreNamespace) -> None:
    """An update without a change gives no new version."""
    created = await store.create(labels={"a": "b"})
    assert (await store.driver.update(TEMPLATE, created)).version == created.version


async def test_stale_version(store: StoreNamespace) -> None:
    """An update with an old version is refused."""
    created = await store.create()
    await store.describe(created, "second")
    with pytest.raises(Conflict):
        await store.driver.update(TEMPLATE, changed(created, spec={"description": "third"}))
    assert (await store.get()).data["spec"] == {"description": "second"}


async def test_no_version(store: StoreNamespace) -> None:
    """An update without a version is refused."""
    created = await store.create()
    with pytest.raises(Invalid):
        await store.driver.update(TEMPLATE, changed(created, resourceVersion=None, spec={"description": "second"}))


async def test_other_uid(store: StoreNamespace) -> None:
    """An update with the uid of an earlier object is refused."""
    created = await store.create()
    with pytest.raises(Conflict):
        await store.driver.update(
            TEMPLATE, changed(created, uid="11111111-1111-1111-1111-111111111111", spec={"description": "second"})
        )


async def test_missing(store: StoreNamespace) -> None:
    """An update of a missing object is not found."""
    created = await store.create()
    await store.delete()
    with pytest.raises(NotFound):
        await store.describe(created, "second")


async def test_recreated(store: StoreNamespace) -> None:
    """A version of a deleted object is refused for a new object with the same name."""
    created = await store.create()
    await store.delete()
    await store.create()
    with pytest.raises(Conflict):
        await store.describe(created, "second")


@pytest.mark.parametrize(
    ("part", "value"), [("labels", {"a": "1"}), ("annotations", {"a": "1"}), ("finalizers", ["aliquot.dev/a"])]
)
async def test_sets_and_removes_labels_annotations_and_finalizers(store: StoreNamespace, part: str, value: Any) -> None:
    """Updates add and remove labels, annotations and finalizers."""
    created = await store.create()
    with_it = await store.driver.update(TEMPLATE, changed(created, **{part: value}))
    assert with_it.metadata[part] == value
    without = await store.driver.update(TEMPLATE, changed(with_it, **{part: None}))
    assert part not in without.metadata


async def test_bad_label_in_update(store: StoreNamespace) -> None:
    """An update is validated like a create, and a refused one changes nothing."""
    created = await store.create()
    with pytest.raises(Invalid):
        await store.driver.update(TEMPLATE, changed(created, labels={"a": "not a label value"}))
    assert await store.get() == created


async def test_ignores_creation_time(store: StoreNamespace) -> None:
    """The creation time in an update is ignored."""
    created = await store.create()
    after = await store.driver.update(
        TEMPLATE, changed(created, creationTimestamp="2001-01-01T00:00:00Z", spec={"description": "second"})
    )
    assert after.metadata["creationTimestamp"] == created.metadata["creationTimestamp"]


async def test_ignores_generation(store: StoreNamespace) -> None:
    """The generation in an update is ignored."""
    created = await store.create()
    after = await store.driver.update(TEMPLATE, changed(created, generation=50, spec={"description": "second"}))
    assert after.metadata["generation"] == 2


async def test_refuses_deletion_time(store: StoreNamespace) -> None:
    """A deletion timestamp in an update is refused."""
    created = await store.create()
    with pytest.raises(Invalid):
        await store.driver.update(TEMPLATE, changed(created, deletionTimestamp="2001-01-01T00:00:00Z"))
    assert await store.get() == created


async def test_spec_update_leaves_status(store: StoreNamespace) -> None:
    """An update of the spec does not touch the status."""
    created = await store.create()
    with_status = await store.driver.update_status(TEMPLATE, changed(created, status={"conditions": [CONDITION]}))
    after = await store.driver.update(TEMPLATE, changed(with_status, spec={"description": "second"}, status=None))
    assert after.data["status"] == {"conditions": [CONDITION]}


async def test_spec_update_ignores_status(store: StoreNamespace) -> None:
    """A status sent with an update of the spec is ignored."""
    created = await store.create()
    data = changed(created, spec={"description": "second"}, status={"conditions": [CONDITION]})
    after = await store.driver.update(TEMPLATE, data)
    assert "status" not in after.data
    assert after.data["spec"] == {"description": "second"}


async def test_status_update_sets_status(store: StoreNamespace) -> None:
    """A status update sets the status."""
    created = await store.create()
    after = await store.driver.update_status(TEMPLATE, changed(created, status={"conditions": [CONDITION]}))
    assert after.data["status"] == {"conditions": [CONDITION]}
    assert (await store.get()).data["status"] == {"conditions": [CONDITION]}


async def test_status_update_leaves_the_rest(store: StoreNamespace) -> None:
    """A status update changes neither spec nor labels."""
    created = await store.create(labels={"a": "b"})
    data = changed(created, spec={"description": "no"}, labels={"a": "no"}, status={"conditions": [CONDITION]})
    after = await store.driver.update_status(TEMPLATE, data)
    assert after.data["spec"] == created.data["spec"]
    assert after.metadata["labels"] == {"a": "b"}


async def test_status_does_not_count(store: StoreNamespace) -> None:
    """A new status gives a new version and the same generation."""
    created = await store.create()
    after = await store.driver.update_status(TEMPLATE, changed(created, status={"conditions": [CONDITION]}))
    assert after.metadata["generation"] == 1
    assert after.version != created.version


async def test_same_status(store: StoreNamespace) -> None:
    """A status update without a change gives no new version."""
    created = await store.create()
    first = await store.driver.update_status(TEMPLATE, changed(created, status={"conditions": [CONDITION]}))
    assert (await store.driver.update_status(TEMPLATE, first)).version == first.version


async def test_stale_status(store: StoreNamespace) -> None:
    """A status update with an old version is refused."""
    created = await store.create()
    await store.describe(created, "second")
    with pytest.raises(Conflict):
        await store.driver.update_status(TEMPLATE, changed(created, status={"conditions": [CONDITION]}))


async def test_status_of_missing(store: StoreNamespace) -> None:
    """A status update of a missing object is not found."""
    created = await store.create()
    await store.delete()
    with pytest.raises(NotFound):
        await store.driver.update_status(TEMPLATE, changed(created, status={"conditions": [CONDITION]}))


@pytest.mark.stable_server  # a repeated call cannot tell its own success from another client's
async def test_race(store: StoreNamespace) -> None:
    """Of concurrent updates from one version exactly one succeeds."""
    created = await store.create()
    tries = [store.describe(created, f"number {index}") for index in range(10)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(result, Document) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 9


@pytest.mark.stable_server  # a repeated call cannot tell its own success from another client's
async def test_no_lost_update(store: StoreNamespace) -> None:
    """Concurrent increments with retries on conflict are all counted."""
    created = await store.driver.create(DEPARTMENT, document(DEPARTMENT, store.unique(), spec={"quota": {"gpu": 0}}))

    async def add() -> None:
        while True:
            seen = await store.driver.get(DEPARTMENT, created.name)
            more = seen.data.get("spec", {}).get("quota", {}).get("gpu", 0) + 1
            try:
                await store.driver.update(DEPARTMENT, changed(seen, spec={"quota": {"gpu": more}}))
            except Conflict:
                continue
            return

    await asyncio.gather(*(add() for _ in range(8)))
    assert (await store.driver.get(DEPARTMENT, created.name)).data["spec"]["quota"]["gpu"] == 8
