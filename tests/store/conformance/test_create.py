"""The contract of `create`, for every store driver."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest

from aliquot import units
from aliquot.errors import Exists, Invalid, NotFound, TooLarge
from aliquot.store.driver import Document
from support.stores.namespace import DEPARTMENT, POD, TEMPLATE, StoreNamespace, document


async def test_gives_what_was_sent(store: StoreNamespace) -> None:
    """The created object has the spec that was sent."""
    assert (await store.create(description="hello")).data["spec"] == {"description": "hello"}


async def test_gives_envelope(store: StoreNamespace) -> None:
    """The created object has its apiVersion and kind."""
    created = await store.create()
    assert (created.data["apiVersion"], created.data["kind"]) == ("aliquot.dev/v1", "Template")


async def test_gives_uid(store: StoreNamespace) -> None:
    """Each new object has a unique uid."""
    first, second = await store.create("a"), await store.create("b")
    assert first.uid
    assert first.uid != second.uid


async def test_gives_version(store: StoreNamespace) -> None:
    """Each new object has a unique version."""
    first, second = await store.create("a"), await store.create("b")
    assert first.version
    assert first.version != second.version


async def test_gives_generation_one(store: StoreNamespace) -> None:
    """A new object has generation 1."""
    assert (await store.create()).metadata["generation"] == 1


async def test_gives_creation_time(store: StoreNamespace) -> None:
    """The creation time is now, in UTC, to the second."""
    stamp = (await store.create()).metadata["creationTimestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", stamp)
    assert abs(units.timestamp(stamp) - time.time()) < 120


async def test_keeps_name_and_namespace(store: StoreNamespace) -> None:
    """Name and namespace are those of the request."""
    created = await store.create("my-template.v1")
    assert (created.name, created.namespace) == ("my-template.v1", store.namespace)


async def test_keeps_labels_and_annotations(store: StoreNamespace) -> None:
    """Labels and annotations are stored as sent."""
    created = await store.create(labels={"team": "a", "example.com/x": "1"}, annotations={"note": "any text: ü {}"})
    assert created.metadata["labels"] == {"team": "a", "example.com/x": "1"}
    assert created.metadata["annotations"] == {"note": "any text: ü {}"}


async def test_leaves_out_empty_labels_annotations_and_finalizers(store: StoreNamespace) -> None:
    """Empty labels, annotations and finalizers are not stored."""
    created = await store.create(labels={}, annotations={}, finalizers=[])
    assert not {"labels", "annotations", "finalizers"} & created.metadata.keys()


async def test_keeps_finalizers(store: StoreNamespace) -> None:
    """Finalizers are stored in order."""
    created = await store.create(finalizers=["aliquot.dev/b", "aliquot.dev/a"])
    assert created.metadata["finalizers"] == ["aliquot.dev/b", "aliquot.dev/a"]


async def test_ignores_identity_from_caller(store: StoreNamespace) -> None:
    """uid, generation, creation and deletion time of the request are ignored."""
    created = await store.driver.create(
        TEMPLATE,
        store.template(
            uid="11111111-1111-1111-1111-111111111111",
            generation=9,
            resourceVersion="77",
            creationTimestamp="2001-01-01T00:00:00Z",
            deletionTimestamp="2001-01-01T00:00:00Z",
        ),
    )
    assert created.uid != "11111111-1111-1111-1111-111111111111"
    assert created.metadata["generation"] == 1
    assert not created.metadata["creationTimestamp"].startswith("2001")
    assert "deletionTimestamp" not in created.metadata


async def test_drops_status(store: StoreNamespace) -> None:
    """A status in the request is ignored."""
    data = {**store.template().data, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert "status" not in (await store.driver.create(TEMPLATE, Document(data))).data


async def test_same_name_twice(store: StoreNamespace) -> None:
    """A second object with the same name is refused."""
    await store.create()
    with pytest.raises(Exists, match="already exists"):
        await store.create()


async def test_second_create_changes_nothing(store: StoreNamespace) -> None:
    """A refused create does not change the existing object."""
    first = await store.create(description="first")
    with pytest.raises(Exists):
        await store.create(description="second")
    assert await store.get() == first


async def test_same_name_of_another_kind(store: StoreNamespace) -> None:
    """Objects of different kinds may have the same name."""
    await store.create("a")
    policy = document(_kind("Policy"), "a", store.namespace, {"types": ["training"]})
    assert (await store.driver.create(_kind("Policy"), policy)).name == "a"


async def test_same_name_after_delete(store: StoreNamespace) -> None:
    """The name of a deleted object can be used again; the new object has another uid."""
    first = await store.create()
    await store.delete()
    second = await store.create()
    assert second.uid != first.uid


async def test_in_missing_namespace(store: StoreNamespace) -> None:
    """A create in a missing namespace is refused."""
    with pytest.raises(NotFound, match="not found"):
        await store.driver.create(TEMPLATE, document(TEMPLATE, "a", "no-such-namespace", {}))


async def test_namespaced_kind_needs_namespace(store: StoreNamespace) -> None:
    """A namespaced kind needs a namespace."""
    with pytest.raises(Invalid):
        await store.driver.create(TEMPLATE, document(TEMPLATE, "a"))


async def test_cluster_kind_refuses_namespace(store: StoreNamespace) -> None:
    """A cluster-scoped kind cannot have a namespace."""
    with pytest.raises(Invalid):
        await store.driver.create(DEPARTMENT, document(DEPARTMENT, store.unique(), store.namespace, {}))


@pytest.mark.parametrize("name", ["", "Upper", "has space", "-a", "a-", "a_b", "ä", "a/b", "x" * 254, ".a", "a..b"])
async def test_refuses_name(store: StoreNamespace, name: str) -> None:
    """A name that is not a DNS name is refused."""
    with pytest.raises(Invalid):
        await store.create(name)


@pytest.mark.parametrize("name", ["a", "a-b", "a.b", "0", "x" * 253])
async def test_takes_name(store: StoreNamespace, name: str) -> None:
    """Every DNS name is accepted."""
    assert (await store.create(name)).name == name


@pytest.mark.parametrize(
    "labels",
    [{"": "x"}, {"a b": "x"}, {"a": "b c"}, {"a": "x" * 64}, {"a/b/c": "x"}, {"-a": "x"}, {"x" * 64: "x"}, {"a": "-"}],
)
async def test_refuses_labels(store: StoreNamespace, labels: dict[str, str]) -> None:
    """Every driver refuses a label that Kubernetes would refuse."""
    with pytest.raises(Invalid):
        await store.create(labels=labels)


@pytest.mark.parametrize("labels", [{"a": ""}, {"a.b/c_d": "e.f_g-h"}, {"A": "B"}, {"a": "x" * 63}])
async def test_takes_labels(store: StoreNamespace, labels: dict[str, str]) -> None:
    """Every driver accepts a label that Kubernetes accepts."""
    assert (await store.create(labels=labels)).metadata["labels"] == labels


async def test_refuses_large_annotations(store: StoreNamespace) -> None:
    """Annotations beyond the size limit are refused."""
    with pytest.raises(Invalid):
        await store.create(annotations={"note": "x" * 262_145})


async def test_refuses_bad_finalizer(store: StoreNamespace) -> None:
    """A finalizer must have the form of a label key."""
    with pytest.raises(Invalid):
        await store.create(finalizers=["not a name"])


@pytest.mark.parametrize("lacking", ["apiVersion", "kind", "name", "uid"])
async def test_refuses_incomplete_owner(store: StoreNamespace, lacking: str) -> None:
    """An incomplete owner reference is refused."""
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": "x", "uid": "u"}
    del owner[lacking]
    with pytest.raises(Invalid):
        await store.create(ownerReferences=[owner])


async def test_refuses_two_controllers(store: StoreNamespace) -> None:
    """An object has at most one controller owner."""
    owners = [
        {"apiVersion": "v1", "kind": "Namespace", "name": name, "uid": name, "controller": True} for name in ("x", "y")
    ]
    with pytest.raises(Invalid):
        await store.create(ownerReferences=owners)


async def test_refuses_too_large(store: StoreNamespace) -> None:
    """An object beyond one mebibyte is refused and not stored."""
    texts = [{"name": f"v{index}", "value": "x" * 4000} for index in range(400)]
    data = document(TEMPLATE, "big", store.namespace, {"values": {"environment": texts}})
    with pytest.raises((TooLarge, Invalid)):
        await store.driver.create(TEMPLATE, data)
    assert await store.names() == []


async def test_large_but_fitting(store: StoreNamespace) -> None:
    """An object of half a mebibyte is stored completely."""
    texts = [{"name": f"V{index}", "value": "x" * 4000} for index in range(120)]
    data = document(TEMPLATE, "big", store.namespace, {"values": {"environment": texts}})
    created = await store.driver.create(TEMPLATE, data)
    assert created.data["spec"]["values"]["environment"] == texts


async def test_text_survives(store: StoreNamespace) -> None:
    """Quotes, newlines, other scripts and emoji are stored unchanged."""
    text = "\"quoted\" 'single' \\ back\nnew\ttab ü 試験 🚀 \u2028"
    assert (await store.create(description=text)).data["spec"]["description"] == text
    assert (await store.get()).data["spec"]["description"] == text


async def test_many_at_once(store: StoreNamespace) -> None:
    """Concurrent creates of different names all succeed, once each."""
    created = await asyncio.gather(*(store.create(f"t{index}") for index in range(20)))
    assert len({document.uid for document in created}) == 20
    assert len(await store.names()) == 20


@pytest.mark.stable_server  # a client that repeats a broken call cannot tell its own object from another client's
async def test_race_for_one_name(store: StoreNamespace) -> None:
    """Of concurrent creates of one name exactly one succeeds."""
    results = await asyncio.gather(*(store.create() for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(result, Document) for result in results) == 1
    assert sum(isinstance(result, Exists) for result in results) == 9


async def test_cluster_kind(store: StoreNamespace) -> None:
    """A cluster-scoped object has no namespace."""
    created = await store.driver.create(DEPARTMENT, document(DEPARTMENT, store.unique(), spec={"quota": {"gpu": 4}}))
    assert created.namespace == ""
    assert created.data["spec"] == {"quota": {"gpu": 4}}


async def test_pod(store: StoreNamespace) -> None:
    """A pod is stored with the spec that was sent."""
    created = await store.driver.create(POD, stored_pod(store))
    assert created.data["spec"]["containers"][0]["image"] == "busybox"
    assert "nodeName" not in created.data["spec"]


def stored_pod(store: StoreNamespace, name: str = "p", **metadata: Any) -> Document:
    spec = {"containers": [{"name": "main", "image": "busybox"}], "schedulerName": "aliquot"}
    return document(POD, name, store.namespace, spec, **metadata)


def _kind(name: str) -> Any:
    from aliquot.api import KINDS

    return KINDS.named(name)
