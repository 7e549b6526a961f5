"""The contract of `get`, `list` and `count`, for every store driver."""

from __future__ import annotations

import pytest

from aliquot.errors import Invalid, NotFound
from support.stores.namespace import DEPARTMENT, NAMESPACE, TEMPLATE, StoreNamespace, document


async def test_get_gives_what_create_gave(store: StoreNamespace) -> None:
    """A read after a create returns the created object."""
    created = await store.create(labels={"a": "b"})
    assert await store.get() == created


async def test_get_missing(store: StoreNamespace) -> None:
    """A missing object is not found, and the message names it."""
    with pytest.raises(NotFound, match="no-such"):
        await store.get("no-such")


async def test_get_is_per_namespace(store: StoreNamespace) -> None:
    """The same name in another namespace is another object."""
    await store.create()
    with pytest.raises(NotFound):
        await store.driver.get(TEMPLATE, "a", "default-elsewhere")


async def test_get_is_per_kind(store: StoreNamespace) -> None:
    """A name is not found under another kind."""
    await store.create("only-a-template")
    with pytest.raises(NotFound):
        await store.driver.get(DEPARTMENT, "only-a-template")


async def test_get_after_delete(store: StoreNamespace) -> None:
    """A deleted object is not found."""
    await store.create()
    await store.delete()
    with pytest.raises(NotFound):
        await store.get()


async def test_list_nothing(store: StoreNamespace) -> None:
    """An empty list has a version."""
    listing = await store.driver.list(TEMPLATE, store.namespace)
    assert listing.items == []
    assert listing.version


async def test_list_all(store: StoreNamespace) -> None:
    """A list has every object of the namespace, complete."""
    created = [await store.create(name) for name in ("a", "b", "c")]
    assert (await store.driver.list(TEMPLATE, store.namespace)).items == created


async def test_list_in_order_of_name(store: StoreNamespace) -> None:
    """Lists are sorted by name."""
    for name in ("c", "a", "b", "a-1", "a.1"):
        await store.create(name)
    assert await store.names() == sorted(["c", "a", "b", "a-1", "a.1"])


async def test_list_of_one_namespace(store: StoreNamespace) -> None:
    """The list of a namespace has no objects of other namespaces."""
    other = f"{store.namespace}-other"
    await store.driver.create(NAMESPACE, document(NAMESPACE, other))
    await store.create("mine")
    await store.driver.create(TEMPLATE, document(TEMPLATE, "theirs", other, {}))
    assert await store.names() == ["mine"]


async def test_list_of_every_namespace(store: StoreNamespace) -> None:
    """A list without a namespace spans all namespaces."""
    other = f"{store.namespace}-other"
    await store.driver.create(NAMESPACE, document(NAMESPACE, other))
    await store.create("x")
    await store.driver.create(TEMPLATE, document(TEMPLATE, "x", other, {}))
    listed = {(item.namespace, item.name) for item in (await store.driver.list(TEMPLATE)).items}
    assert {(store.namespace, "x"), (other, "x")} <= listed


async def test_list_of_missing_namespace(store: StoreNamespace) -> None:
    """The list of a missing namespace is empty."""
    assert (await store.driver.list(TEMPLATE, "no-such-namespace")).items == []


async def test_list_of_cluster_kind(store: StoreNamespace) -> None:
    """Cluster-scoped kinds can be listed."""
    await store.driver.create(DEPARTMENT, document(DEPARTMENT, store.unique(), spec={}))
    assert store.unique() in [item.name for item in (await store.driver.list(DEPARTMENT)).items]


async def test_list_items_have_envelope(store: StoreNamespace) -> None:
    """Each item of a list has its apiVersion and kind."""
    await store.create()
    (item,) = (await store.driver.list(TEMPLATE, store.namespace)).items
    assert (item.data["apiVersion"], item.data["kind"]) == ("aliquot.dev/v1", "Template")


async def test_list_version_moves(store: StoreNamespace) -> None:
    """After a change a list has a later version."""
    before = (await store.driver.list(TEMPLATE, store.namespace)).version
    await store.create()
    assert (await store.driver.list(TEMPLATE, store.namespace)).version != before


async def test_many(store: StoreNamespace) -> None:
    """A long list is complete, even if it is read in pages."""
    import asyncio

    for start in range(0, 120, 30):
        await asyncio.gather(*(store.create(f"t{index:03}") for index in range(start, start + 30)))
    assert await store.names() == [f"t{index:03}" for index in range(120)]


async def test_count(store: StoreNamespace) -> None:
    """A count equals the length of the list."""
    await store.create("a")
    await store.create("b")
    assert await store.driver.count(TEMPLATE) >= 2


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("", ["none", "prod-a", "prod-b", "test-a"]),
        ("env=prod", ["prod-a", "prod-b"]),
        ("env==prod", ["prod-a", "prod-b"]),
        ("env!=prod", ["none", "test-a"]),
        ("env=prod,app=a", ["prod-a"]),
        ("env in (prod, test)", ["prod-a", "prod-b", "test-a"]),
        ("env in (test)", ["test-a"]),
        ("env notin (prod)", ["none", "test-a"]),
        ("env", ["prod-a", "prod-b", "test-a"]),
        ("!env", ["none"]),
        ("env,app notin (a)", ["prod-b"]),
        ("env=nothing", []),
        ("example.com/team=x", ["prod-a"]),
    ],
)
async def test_label_selector(store: StoreNamespace, labels: str, expected: list[str]) -> None:
    """Label selectors have the semantics of Kubernetes."""
    await store.create("prod-a", labels={"env": "prod", "app": "a", "example.com/team": "x"})
    await store.create("prod-b", labels={"env": "prod", "app": "b"})
    await store.create("test-a", labels={"env": "test", "app": "a"})
    await store.create("none")
    assert await store.names(labels=labels) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("metadata.name=b", ["b"]),
        ("metadata.name==b", ["b"]),
        ("metadata.name!=b", ["a", "c"]),
        ("metadata.name!=b,metadata.name!=c", ["a"]),
        ("metadata.name=nobody", []),
    ],
)
async def test_field_selector(store: StoreNamespace, fields: str, expected: list[str]) -> None:
    """Field selectors can select by name."""
    for name in ("a", "b", "c"):
        await store.create(name)
    assert await store.names(fields=fields) == expected


async def test_field_and_label_selector(store: StoreNamespace) -> None:
    """Label and field selectors must both match."""
    await store.create("a", labels={"x": "1"})
    await store.create("b", labels={"x": "1"})
    assert await store.names(labels="x=1", fields="metadata.name=b") == ["b"]


@pytest.mark.parametrize("labels", ["env=prod=x", "a b", "env in prod", "=x", "env in (a"])
async def test_refuses_label_selector(store: StoreNamespace, labels: str) -> None:
    """An invalid selector is refused."""
    with pytest.raises(Invalid):
        await store.names(labels=labels)


async def test_refuses_unknown_field(store: StoreNamespace) -> None:
    """A field selector on an unsupported field is refused."""
    with pytest.raises(Invalid):
        await store.names(fields="spec.description=x")
