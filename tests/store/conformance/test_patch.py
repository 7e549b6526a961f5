"""The contract of `patch`, for every store driver: RFC 7386, with or without a version."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.errors import Conflict, Invalid, NotFound
from aliquot.store.driver import Document
from support.stores.namespace import TEMPLATE, StoreNamespace, document

CONDITION = {"type": "Ready", "status": "True"}


async def patch(store: StoreNamespace, change: Any, **options: Any) -> Document:
    return await store.driver.patch(TEMPLATE, "a", store.namespace, change, **options)


async def test_changes_one_field(store: StoreNamespace) -> None:
    """A patch changes the fields that it names."""
    await store.driver.create(
        TEMPLATE, document(TEMPLATE, "a", store.namespace, {"description": "x", "createdBy": "me"})
    )
    after = await patch(store, {"spec": {"description": "y"}})
    assert after.data["spec"] == {"description": "y", "createdBy": "me"}


async def test_null_removes(store: StoreNamespace) -> None:
    """Null removes a field."""
    await store.driver.create(
        TEMPLATE, document(TEMPLATE, "a", store.namespace, {"description": "x", "createdBy": "me"})
    )
    assert (await patch(store, {"spec": {"createdBy": None}})).data["spec"] == {"description": "x"}


async def test_lists_are_replaced(store: StoreNamespace) -> None:
    """A list is replaced as a whole."""
    await store.driver.create(
        TEMPLATE, document(TEMPLATE, "a", store.namespace, {"types": ["training", "interactive"]})
    )
    assert (await patch(store, {"spec": {"types": ["inference"]}})).data["spec"]["types"] == ["inference"]


async def test_merges_deep(store: StoreNamespace) -> None:
    """Objects merge at every depth."""
    spec = {"values": {"image": "i", "compute": {"gpu": 1, "cpu": 2}}}
    await store.driver.create(TEMPLATE, document(TEMPLATE, "a", store.namespace, spec))
    after = await patch(store, {"spec": {"values": {"compute": {"gpu": 2}}}})
    assert after.data["spec"] == {"values": {"image": "i", "compute": {"gpu": 2, "cpu": 2}}}


async def test_adds_label(store: StoreNamespace) -> None:
    """A patch adds one label among others."""
    await store.create(labels={"a": "1"})
    assert (await patch(store, {"metadata": {"labels": {"b": "2"}}})).metadata["labels"] == {"a": "1", "b": "2"}


async def test_removes_label(store: StoreNamespace) -> None:
    """A patch removes one label among others."""
    await store.create(labels={"a": "1", "b": "2"})
    assert (await patch(store, {"metadata": {"labels": {"a": None}}})).metadata["labels"] == {"b": "2"}


async def test_counts_generation(store: StoreNamespace) -> None:
    """A patched spec is a new generation."""
    await store.create()
    assert (await patch(store, {"spec": {"description": "y"}})).metadata["generation"] == 2


async def test_empty_patch(store: StoreNamespace) -> None:
    """An empty patch changes nothing."""
    created = await store.create()
    assert (await patch(store, {})).version == created.version


async def test_patch_to_the_same(store: StoreNamespace) -> None:
    """A patch without a change gives no new version."""
    created = await store.create(description="x")
    assert (await patch(store, {"spec": {"description": "x"}})).version == created.version


async def test_without_version_always_applies(store: StoreNamespace) -> None:
    """A patch without a version applies to any version."""
    created = await store.create()
    await store.describe(created, "second")
    assert (await patch(store, {"metadata": {"labels": {"a": "1"}}})).data["spec"] == {"description": "second"}


async def test_with_current_version(store: StoreNamespace) -> None:
    """A patch with the current version applies."""
    created = await store.create()
    after = await patch(store, {"spec": {"description": "y"}}, version=created.version)
    assert after.data["spec"] == {"description": "y"}


async def test_with_stale_version(store: StoreNamespace) -> None:
    """A patch with an old version is refused."""
    created = await store.create()
    await store.describe(created, "second")
    with pytest.raises(Conflict):
        await patch(store, {"spec": {"description": "y"}}, version=created.version)


async def test_missing(store: StoreNamespace) -> None:
    """A patch of a missing object is not found."""
    with pytest.raises(NotFound):
        await patch(store, {"spec": {"description": "y"}})


async def test_status(store: StoreNamespace) -> None:
    """The status is patched separately."""
    await store.create()
    after = await patch(store, {"status": {"conditions": [CONDITION]}}, status=True)
    assert after.data["status"] == {"conditions": [CONDITION]}
    assert after.metadata["generation"] == 1


async def test_spec_patch_ignores_status(store: StoreNamespace) -> None:
    """A status in a patch of the spec is ignored."""
    await store.create()
    after = await patch(store, {"spec": {"description": "y"}, "status": {"conditions": [CONDITION]}})
    assert "status" not in after.data


async def test_status_patch_ignores_spec(store: StoreNamespace) -> None:
    """A spec in a patch of the status is ignored."""
    created = await store.create()
    after = await patch(store, {"spec": {"description": "y"}, "status": {"conditions": [CONDITION]}}, status=True)
    assert after.data["spec"] == created.data["spec"]


async def test_bad_label(store: StoreNamespace) -> None:
    """A patch is validated like an update."""
    created = await store.create()
    with pytest.raises(Invalid):
        await patch(store, {"metadata": {"labels": {"a": "not a label value"}}})
    assert await store.get() == created


async def test_keeps_name(store: StoreNamespace) -> None:
    """A patch cannot rename an object."""
    await store.create()
    with pytest.raises(Invalid):
        await patch(store, {"metadata": {"name": "b"}})
    assert await store.names() == ["a"]
