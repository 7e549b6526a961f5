"""What patches promise: RFC 7386, with or without a version."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.errors import Conflict, Invalid, NotFound
from aliquot.store.driver import Document
from support.stores.namespace import TEMPLATE, StoreNamespace, document

CONDITION = {"type": "Ready", "status": "True"}


async def patch(place: StoreNamespace, change: Any, **options: Any) -> Document:
    return await place.driver.patch(TEMPLATE, "a", place.namespace, change, **options)


async def test_changes_one_field(place: StoreNamespace) -> None:
    """What a patch names changes, the rest stays."""
    await place.driver.create(
        TEMPLATE, document(TEMPLATE, "a", place.namespace, {"description": "x", "createdBy": "me"})
    )
    after = await patch(place, {"spec": {"description": "y"}})
    assert after.data["spec"] == {"description": "y", "createdBy": "me"}


async def test_null_removes(place: StoreNamespace) -> None:
    """Null takes a field away."""
    await place.driver.create(
        TEMPLATE, document(TEMPLATE, "a", place.namespace, {"description": "x", "createdBy": "me"})
    )
    assert (await patch(place, {"spec": {"createdBy": None}})).data["spec"] == {"description": "x"}


async def test_lists_are_replaced(place: StoreNamespace) -> None:
    """A list is one value."""
    await place.driver.create(
        TEMPLATE, document(TEMPLATE, "a", place.namespace, {"types": ["training", "interactive"]})
    )
    assert (await patch(place, {"spec": {"types": ["inference"]}})).data["spec"]["types"] == ["inference"]


async def test_merges_deep(place: StoreNamespace) -> None:
    """Objects merge at every depth."""
    spec = {"values": {"image": "i", "compute": {"gpu": 1, "cpu": 2}}}
    await place.driver.create(TEMPLATE, document(TEMPLATE, "a", place.namespace, spec))
    after = await patch(place, {"spec": {"values": {"compute": {"gpu": 2}}}})
    assert after.data["spec"] == {"values": {"image": "i", "compute": {"gpu": 2, "cpu": 2}}}


async def test_adds_label(place: StoreNamespace) -> None:
    """A patch adds one label among others."""
    await place.create(labels={"a": "1"})
    assert (await patch(place, {"metadata": {"labels": {"b": "2"}}})).metadata["labels"] == {"a": "1", "b": "2"}


async def test_removes_label(place: StoreNamespace) -> None:
    """A patch removes one label among others."""
    await place.create(labels={"a": "1", "b": "2"})
    assert (await patch(place, {"metadata": {"labels": {"a": None}}})).metadata["labels"] == {"b": "2"}


async def test_counts_generation(place: StoreNamespace) -> None:
    """A patched spec is a new generation."""
    await place.create()
    assert (await patch(place, {"spec": {"description": "y"}})).metadata["generation"] == 2


async def test_empty_patch(place: StoreNamespace) -> None:
    """A patch that says nothing changes nothing."""
    made = await place.create()
    assert (await patch(place, {})).version == made.version


async def test_patch_to_the_same(place: StoreNamespace) -> None:
    """A patch to what is there already gives no new version."""
    made = await place.create(description="x")
    assert (await patch(place, {"spec": {"description": "x"}})).version == made.version


async def test_without_version_always_applies(place: StoreNamespace) -> None:
    """A patch tied to no version does not mind what happened before."""
    made = await place.create()
    await place.describe(made, "second")
    assert (await patch(place, {"metadata": {"labels": {"a": "1"}}})).data["spec"] == {"description": "second"}


async def test_with_current_version(place: StoreNamespace) -> None:
    """A patch tied to the current version applies."""
    made = await place.create()
    after = await patch(place, {"spec": {"description": "y"}}, version=made.version)
    assert after.data["spec"] == {"description": "y"}


async def test_with_stale_version(place: StoreNamespace) -> None:
    """A patch tied to an old version is refused."""
    made = await place.create()
    await place.describe(made, "second")
    with pytest.raises(Conflict):
        await patch(place, {"spec": {"description": "y"}}, version=made.version)


async def test_missing(place: StoreNamespace) -> None:
    """What is not there cannot be patched."""
    with pytest.raises(NotFound):
        await patch(place, {"spec": {"description": "y"}})


async def test_status(place: StoreNamespace) -> None:
    """The status is patched apart."""
    await place.create()
    after = await patch(place, {"status": {"conditions": [CONDITION]}}, status=True)
    assert after.data["status"] == {"conditions": [CONDITION]}
    assert after.metadata["generation"] == 1


async def test_spec_patch_ignores_status(place: StoreNamespace) -> None:
    """A status in a patch of the spec is ignored."""
    await place.create()
    after = await patch(place, {"spec": {"description": "y"}, "status": {"conditions": [CONDITION]}})
    assert "status" not in after.data


async def test_status_patch_ignores_spec(place: StoreNamespace) -> None:
    """A spec in a patch of the status is ignored."""
    made = await place.create()
    after = await patch(place, {"spec": {"description": "y"}, "status": {"conditions": [CONDITION]}}, status=True)
    assert after.data["spec"] == made.data["spec"]


async def test_bad_label(place: StoreNamespace) -> None:
    """A patch is checked like an update."""
    made = await place.create()
    with pytest.raises(Invalid):
        await patch(place, {"metadata": {"labels": {"a": "not a label value"}}})
    assert await place.get() == made


async def test_keeps_name(place: StoreNamespace) -> None:
    """A patch cannot rename."""
    await place.create()
    with pytest.raises(Invalid):
        await patch(place, {"metadata": {"name": "b"}})
    assert await place.names() == ["a"]
