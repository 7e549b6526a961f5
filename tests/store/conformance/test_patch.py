"""What patches promise: RFC 7386, with or without a version."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.errors import Conflict, Invalid, NotFound
from aliquot.store.driver import Document
from support.stores.namespace import TEMPLATE, Place, document

CONDITION = {"type": "Ready", "status": "True"}


async def patch(place: Place, change: Any, **options: Any) -> Document:
    return await place.body.patch(TEMPLATE, "a", place.namespace, change, **options)


async def test_changes_one_field(place: Place) -> None:
    """What a patch names changes, the rest stays."""
    await place.body.create(TEMPLATE, document(TEMPLATE, "a", place.namespace, {"description": "x", "createdBy": "me"}))
    after = await patch(place, {"spec": {"description": "y"}})
    assert after.data["spec"] == {"description": "y", "createdBy": "me"}


async def test_null_removes(place: Place) -> None:
    """Null takes a field away."""
    await place.body.create(TEMPLATE, document(TEMPLATE, "a", place.namespace, {"description": "x", "createdBy": "me"}))
    assert (await patch(place, {"spec": {"createdBy": None}})).data["spec"] == {"description": "x"}


async def test_lists_are_replaced(place: Place) -> None:
    """A list is one value."""
    await place.body.create(TEMPLATE, document(TEMPLATE, "a", place.namespace, {"types": ["training", "interactive"]}))
    assert (await patch(place, {"spec": {"types": ["inference"]}})).data["spec"]["types"] == ["inference"]


async def test_merges_deep(place: Place) -> None:
    """Objects merge at every depth."""
    spec = {"values": {"image": "i", "compute": {"gpu": 1, "cpu": 2}}}
    await place.body.create(TEMPLATE, document(TEMPLATE, "a", place.namespace, spec))
    after = await patch(place, {"spec": {"values": {"compute": {"gpu": 2}}}})
    assert after.data["spec"] == {"values": {"image": "i", "compute": {"gpu": 2, "cpu": 2}}}


async def test_adds_label(place: Place) -> None:
    """A patch adds one label among others."""
    await place.create(labels={"a": "1"})
    assert (await patch(place, {"metadata": {"labels": {"b": "2"}}})).metadata["labels"] == {"a": "1", "b": "2"}


async def test_removes_label(place: Place) -> None:
    """A patch removes one label among others."""
    await place.create(labels={"a": "1", "b": "2"})
    assert (await patch(place, {"metadata": {"labels": {"a": None}}})).metadata["labels"] == {"b": "2"}


async def test_counts_generation(place: Place) -> None:
    """A patched spec is a new generation."""
    await place.create()
    assert (await patch(place, {"spec": {"description": "y"}})).metadata["generation"] == 2


async def test_empty_patch(place: Place) -> None:
    """A patch that says nothing changes nothing."""
    made = await place.create()
    assert (await patch(place, {})).version == made.version


async def test_patch_to_the_same(place: Place) -> None:
    """A patch to what is there already gives no new version."""
    made = await place.create(description="x")
    assert (await patch(place, {"spec": {"description": "x"}})).version == made.version


async def test_without_version_always_applies(place: Place) -> None:
    """A patch tied to no version does not mind what happened before."""
    made = await place.create()
    await place.describe(made, "second")
    assert (await patch(place, {"metadata": {"labels": {"a": "1"}}})).data["spec"] == {"description": "second"}


async def test_with_current_version(place: Place) -> None:
    """A patch tied to the current version applies."""
    made = await place.create()
    after = await patch(place, {"spec": {"description": "y"}}, version=made.version)
    assert after.data["spec"] == {"description": "y"}


async def test_with_stale_version(place: Place) -> None:
    """A patch tied to an old version is refused."""
    made = await place.create()
    await place.describe(made, "second")
    with pytest.raises(Conflict):
        await patch(place, {"spec": {"description": "y"}}, version=made.version)


async def test_missing(place: Place) -> None:
    """What is not there cannot be patched."""
    with pytest.raises(NotFound):
        await patch(place, {"spec": {"description": "y"}})


async def test_status(place: Place) -> None:
    """The status is patched apart."""
    await place.create()
    after = await patch(place, {"status": {"conditions": [CONDITION]}}, status=True)
    assert after.data["status"] == {"conditions": [CONDITION]}
    assert after.metadata["generation"] == 1


async def test_spec_patch_ignores_status(place: Place) -> None:
    """A status in a patch of the spec is ignored."""
    await place.create()
    after = await patch(place, {"spec": {"description": "y"}, "status": {"conditions": [CONDITION]}})
    assert "status" not in after.data


async def test_status_patch_ignores_spec(place: Place) -> None:
    """A spec in a patch of the status is ignored."""
    made = await place.create()
    after = await patch(place, {"spec": {"description": "y"}, "status": {"conditions": [CONDITION]}}, status=True)
    assert after.data["spec"] == made.data["spec"]


async def test_bad_label(place: Place) -> None:
    """A patch is checked like an update."""
    made = await place.create()
    with pytest.raises(Invalid):
        await patch(place, {"metadata": {"labels": {"a": "not a label value"}}})
    assert await place.get() == made


async def test_keeps_name(place: Place) -> None:
    """A patch cannot rename."""
    await place.create()
    with pytest.raises(Invalid):
        await patch(place, {"metadata": {"name": "b"}})
    assert await place.names() == ["a"]
