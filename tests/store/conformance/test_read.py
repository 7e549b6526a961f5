"""What reads promise."""

from __future__ import annotations

import pytest

from aliquot.errors import Invalid, NotFound
from support.stores.namespace import DEPARTMENT, NAMESPACE, TEMPLATE, StoreNamespace, document


async def test_get_gives_what_create_gave(place: StoreNamespace) -> None:
    """A read right after a create sees it, whole."""
    made = await place.create(labels={"a": "b"})
    assert await place.get() == made


async def test_get_missing(place: StoreNamespace) -> None:
    """What is not there is not found, and the message names it."""
    with pytest.raises(NotFound, match="no-such"):
        await place.get("no-such")


async def test_get_is_per_namespace(place: StoreNamespace) -> None:
    """The same name elsewhere is another object."""
    await place.create()
    with pytest.raises(NotFound):
        await place.driver.get(TEMPLATE, "a", "default-elsewhere")


async def test_get_is_per_kind(place: StoreNamespace) -> None:
    """A template is no department."""
    await place.create("only-a-template")
    with pytest.raises(NotFound):
        await place.driver.get(DEPARTMENT, "only-a-template")


async def test_get_after_delete(place: StoreNamespace) -> None:
    """What was deleted is not found."""
    await place.create()
    await place.delete()
    with pytest.raises(NotFound):
        await place.get()


async def test_list_nothing(place: StoreNamespace) -> None:
    """An empty list is a list, with a version."""
    listing = await place.driver.list(TEMPLATE, place.namespace)
    assert listing.items == []
    assert listing.version


async def test_list_all(place: StoreNamespace) -> None:
    """A list has every object of the namespace, whole."""
    made = [await place.create(name) for name in ("a", "b", "c")]
    assert (await place.driver.list(TEMPLATE, place.namespace)).items == made


async def test_list_in_order_of_name(place: StoreNamespace) -> None:
    """Lists are sorted by name, whatever the order of creation."""
    for name in ("c", "a", "b", "a-1", "a.1"):
        await place.create(name)
    assert await place.names() == sorted(["c", "a", "b", "a-1", "a.1"])


async def test_list_of_one_namespace(place: StoreNamespace) -> None:
    """A namespace's list has nothing of another's."""
    other = f"{place.namespace}-other"
    await place.driver.create(NAMESPACE, document(NAMESPACE, other))
    await place.create("mine")
    await place.driver.create(TEMPLATE, document(TEMPLATE, "theirs", other, {}))
    assert await place.names() == ["mine"]


async def test_list_of_every_namespace(place: StoreNamespace) -> None:
    """Without a namespace the list has them all."""
    other = f"{place.namespace}-other"
    await place.driver.create(NAMESPACE, document(NAMESPACE, other))
    await place.create("x")
    await place.driver.create(TEMPLATE, document(TEMPLATE, "x", other, {}))
    found = {(item.namespace, item.name) for item in (await place.driver.list(TEMPLATE)).items}
    assert {(place.namespace, "x"), (other, "x")} <= found


async def test_list_of_missing_namespace(place: StoreNamespace) -> None:
    """A namespace that does not exist has nothing in it."""
    assert (await place.driver.list(TEMPLATE, "no-such-namespace")).items == []


async def test_list_of_cluster_kind(place: StoreNamespace) -> None:
    """Kinds that span the cluster are listed too."""
    await place.driver.create(DEPARTMENT, document(DEPARTMENT, place.unique(), spec={}))
    assert place.unique() in [item.name for item in (await place.driver.list(DEPARTMENT)).items]


async def test_list_items_have_envelope(place: StoreNamespace) -> None:
    """Each item of a list names its kind, as if it had been read alone."""
    await place.create()
    (item,) = (await place.driver.list(TEMPLATE, place.namespace)).items
    assert (item.data["apiVersion"], item.data["kind"]) == ("aliquot.dev/v1", "Template")


async def test_list_version_moves(place: StoreNamespace) -> None:
    """A later list has a later version when something happened between."""
    before = (await place.driver.list(TEMPLATE, place.namespace)).version
    await place.create()
    assert (await place.driver.list(TEMPLATE, place.namespace)).version != before


async def test_many(place: StoreNamespace) -> None:
    """A long list is complete (it may travel in pages)."""
    import asyncio

    for start in range(0, 120, 30):
        await asyncio.gather(*(place.create(f"t{index:03}") for index in range(start, start + 30)))
    assert await place.names() == [f"t{index:03}" for index in range(120)]


async def test_count(place: StoreNamespace) -> None:
    """Counting sees what listing sees."""
    await place.create("a")
    await place.create("b")
    assert await place.driver.count(TEMPLATE) >= 2


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
async def test_label_selector(place: StoreNamespace, labels: str, expected: list[str]) -> None:
    """Label selectors mean what they mean on Kubernetes."""
    await place.create("prod-a", labels={"env": "prod", "app": "a", "example.com/team": "x"})
    await place.create("prod-b", labels={"env": "prod", "app": "b"})
    await place.create("test-a", labels={"env": "test", "app": "a"})
    await place.create("none")
    assert await place.names(labels=labels) == expected


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
async def test_field_selector(place: StoreNamespace, fields: str, expected: list[str]) -> None:
    """Field selectors pick by name."""
    for name in ("a", "b", "c"):
        await place.create(name)
    assert await place.names(fields=fields) == expected


async def test_field_and_label_selector(place: StoreNamespace) -> None:
    """Both selectors must hold."""
    await place.create("a", labels={"x": "1"})
    await place.create("b", labels={"x": "1"})
    assert await place.names(labels="x=1", fields="metadata.name=b") == ["b"]


@pytest.mark.parametrize("labels", ["env=prod=x", "a b", "env in prod", "=x", "env in (a"])
async def test_refuses_label_selector(place: StoreNamespace, labels: str) -> None:
    """A selector that cannot be read is refused, not ignored."""
    with pytest.raises(Invalid):
        await place.names(labels=labels)


async def test_refuses_unknown_field(place: StoreNamespace) -> None:
    """A field that cannot be selected by is refused, not ignored."""
    with pytest.raises(Invalid):
        await place.names(fields="spec.description=x")
