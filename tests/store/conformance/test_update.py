"""What updates promise: optimistic concurrency, and the border between spec and status."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aliquot.errors import Conflict, Invalid, NotFound
from aliquot.store.driver import Document
from support.stores.namespace import DEPARTMENT, TEMPLATE, StoreNamespace, changed, document

CONDITION = {"type": "Ready", "status": "True"}


async def test_changes_spec(place: StoreNamespace) -> None:
    """The new spec replaces the old one."""
    made = await place.create()
    assert (await place.describe(made, "second")).data["spec"] == {"description": "second"}
    assert (await place.get()).data["spec"] == {"description": "second"}


async def test_replaces_whole_spec(place: StoreNamespace) -> None:
    """What the new spec leaves out is gone."""
    made = await place.driver.create(
        TEMPLATE, document(TEMPLATE, "a", place.namespace, {"description": "x", "createdBy": "me"})
    )
    after = await place.driver.update(TEMPLATE, changed(made, spec={"description": "x"}))
    assert after.data["spec"] == {"description": "x"}


async def test_gives_new_version(place: StoreNamespace) -> None:
    """Every change has its version."""
    made = await place.create()
    after = await place.describe(made, "second")
    assert after.version not in ("", made.version)
    assert (await place.get()).version == after.version


async def test_counts_generation(place: StoreNamespace) -> None:
    """Each change of the spec counts."""
    made = await place.create()
    second = await place.describe(made, "second")
    third = await place.describe(second, "third")
    assert (second.metadata["generation"], third.metadata["generation"]) == (2, 3)


async def test_labels_do_not_count(place: StoreNamespace) -> None:
    """Labels are no part of the spec."""
    made = await place.create()
    after = await place.driver.update(TEMPLATE, changed(made, labels={"a": "b"}))
    assert after.metadata["labels"] == {"a": "b"}
    assert after.metadata["generation"] == 1
    assert after.version != made.version


async def test_keeps_identity(place: StoreNamespace) -> None:
    """uid, creation time, name and namespace never change."""
    made = await place.create()
    after = await place.describe(made, "second")
    for key in ("uid", "creationTimestamp", "name", "namespace"):
        assert after.metadata[key] == made.metadata[key]


async def test_nothing_changed(place: StoreNamespace) -> None:
    """A write that changes nothing gives no new version."""
    made = await place.create(labels={"a": "b"})
    assert (await place.driver.update(TEMPLATE, made)).version == made.version


async def test_stale_version(place: StoreNamespace) -> None:
    """Who decided from an old version is refused."""
    made = await place.create()
    await place.describe(made, "second")
    with pytest.raises(Conflict):
        await place.driver.update(TEMPLATE, changed(made, spec={"description": "third"}))
    assert (await place.get()).data["spec"] == {"description": "second"}


async def test_no_version(place: StoreNamespace) -> None:
    """A replacement says what it replaces."""
    made = await place.create()
    with pytest.raises(Invalid):
        await place.driver.update(TEMPLATE, changed(made, resourceVersion=None, spec={"description": "second"}))


async def test_other_uid(place: StoreNamespace) -> None:
    """An update meant for an object of the past does not hit its successor."""
    made = await place.create()
    with pytest.raises(Conflict):
        await place.driver.update(
            TEMPLATE, changed(made, uid="11111111-1111-1111-1111-111111111111", spec={"description": "second"})
        )


async def test_missing(place: StoreNamespace) -> None:
    """What is not there cannot be updated."""
    made = await place.create()
    await place.delete()
    with pytest.raises(NotFound):
        await place.describe(made, "second")


async def test_recreated(place: StoreNamespace) -> None:
    """A version of a deleted object does not fit its successor."""
    made = await place.create()
    await place.delete()
    await place.create()
    with pytest.raises(Conflict):
        await place.describe(made, "second")


@pytest.mark.parametrize(
    ("part", "value"), [("labels", {"a": "1"}), ("annotations", {"a": "1"}), ("finalizers", ["aliquot.dev/a"])]
)
async def test_sets_and_removes_marks(place: StoreNamespace, part: str, value: Any) -> None:
    """Marks come and go with updates."""
    made = await place.create()
    with_it = await place.driver.update(TEMPLATE, changed(made, **{part: value}))
    assert with_it.metadata[part] == value
    without = await place.driver.update(TEMPLATE, changed(with_it, **{part: None}))
    assert part not in without.metadata


async def test_bad_label_in_update(place: StoreNamespace) -> None:
    """An update is checked like a create, and a refused one changes nothing."""
    made = await place.create()
    with pytest.raises(Invalid):
        await place.driver.update(TEMPLATE, changed(made, labels={"a": "not a label value"}))
    assert await place.get() == made


async def test_ignores_creation_time(place: StoreNamespace) -> None:
    """Nobody rewrites history."""
    made = await place.create()
    after = await place.driver.update(
        TEMPLATE, changed(made, creationTimestamp="2001-01-01T00:00:00Z", spec={"description": "second"})
    )
    assert after.metadata["creationTimestamp"] == made.metadata["creationTimestamp"]


async def test_ignores_generation(place: StoreNamespace) -> None:
    """The generation is the store's to count."""
    made = await place.create()
    after = await place.driver.update(TEMPLATE, changed(made, generation=50, spec={"description": "second"}))
    assert after.metadata["generation"] == 2


async def test_refuses_deletion_time(place: StoreNamespace) -> None:
    """An update does not delete."""
    made = await place.create()
    with pytest.raises(Invalid):
        await place.driver.update(TEMPLATE, changed(made, deletionTimestamp="2001-01-01T00:00:00Z"))
    assert await place.get() == made


async def test_spec_update_leaves_status(place: StoreNamespace) -> None:
    """An update of the spec does not touch the status."""
    made = await place.create()
    with_status = await place.driver.update_status(TEMPLATE, changed(made, status={"conditions": [CONDITION]}))
    after = await place.driver.update(TEMPLATE, changed(with_status, spec={"description": "second"}, status=None))
    assert after.data["status"] == {"conditions": [CONDITION]}


async def test_spec_update_ignores_status(place: StoreNamespace) -> None:
    """A status sent with an update of the spec is ignored."""
    made = await place.create()
    data = changed(made, spec={"description": "second"}, status={"conditions": [CONDITION]})
    after = await place.driver.update(TEMPLATE, data)
    assert "status" not in after.data
    assert after.data["spec"] == {"description": "second"}


async def test_status_update_sets_status(place: StoreNamespace) -> None:
    """An update of the status sets it."""
    made = await place.create()
    after = await place.driver.update_status(TEMPLATE, changed(made, status={"conditions": [CONDITION]}))
    assert after.data["status"] == {"conditions": [CONDITION]}
    assert (await place.get()).data["status"] == {"conditions": [CONDITION]}


async def test_status_update_leaves_the_rest(place: StoreNamespace) -> None:
    """An update of the status changes neither spec nor labels."""
    made = await place.create(labels={"a": "b"})
    data = changed(made, spec={"description": "no"}, labels={"a": "no"}, status={"conditions": [CONDITION]})
    after = await place.driver.update_status(TEMPLATE, data)
    assert after.data["spec"] == made.data["spec"]
    assert after.metadata["labels"] == {"a": "b"}


async def test_status_does_not_count(place: StoreNamespace) -> None:
    """A new status is no new generation, but a new version."""
    made = await place.create()
    after = await place.driver.update_status(TEMPLATE, changed(made, status={"conditions": [CONDITION]}))
    assert after.metadata["generation"] == 1
    assert after.version != made.version


async def test_same_status(place: StoreNamespace) -> None:
    """The same status again gives no new version."""
    made = await place.create()
    first = await place.driver.update_status(TEMPLATE, changed(made, status={"conditions": [CONDITION]}))
    assert (await place.driver.update_status(TEMPLATE, first)).version == first.version


async def test_stale_status(place: StoreNamespace) -> None:
    """A status decided from an old version is refused."""
    made = await place.create()
    await place.describe(made, "second")
    with pytest.raises(Conflict):
        await place.driver.update_status(TEMPLATE, changed(made, status={"conditions": [CONDITION]}))


async def test_status_of_missing(place: StoreNamespace) -> None:
    """What is not there has no status."""
    made = await place.create()
    await place.delete()
    with pytest.raises(NotFound):
        await place.driver.update_status(TEMPLATE, changed(made, status={"conditions": [CONDITION]}))


@pytest.mark.calm  # a repeated call cannot tell its own success from a rival's
async def test_race(place: StoreNamespace) -> None:
    """Of many updates from one version exactly one wins."""
    made = await place.create()
    tries = [place.describe(made, f"number {index}") for index in range(10)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(result, Document) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 9


@pytest.mark.calm  # a repeated call cannot tell its own success from a rival's
async def test_no_lost_update(place: StoreNamespace) -> None:
    """Read, add one, write, repeat on conflict: every addition counts."""
    made = await place.driver.create(DEPARTMENT, document(DEPARTMENT, place.unique(), spec={"quota": {"gpu": 0}}))

    async def add() -> None:
        while True:
            seen = await place.driver.get(DEPARTMENT, made.name)
            more = seen.data.get("spec", {}).get("quota", {}).get("gpu", 0) + 1
            try:
                await place.driver.update(DEPARTMENT, changed(seen, spec={"quota": {"gpu": more}}))
            except Conflict:
                continue
            return

    await asyncio.gather(*(add() for _ in range(8)))
    assert (await place.driver.get(DEPARTMENT, made.name)).data["spec"]["quota"]["gpu"] == 8
