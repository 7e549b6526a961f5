"""What a create promises."""

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


async def test_gives_what_was_sent(place: StoreNamespace) -> None:
    """The spec comes back as it was sent."""
    assert (await place.create(description="hello")).data["spec"] == {"description": "hello"}


async def test_gives_envelope(place: StoreNamespace) -> None:
    """The answer names its apiVersion and kind."""
    made = await place.create()
    assert (made.data["apiVersion"], made.data["kind"]) == ("aliquot.dev/v1", "Template")


async def test_gives_uid(place: StoreNamespace) -> None:
    """A new object has an id of its own."""
    first, second = await place.create("a"), await place.create("b")
    assert first.uid
    assert first.uid != second.uid


async def test_gives_version(place: StoreNamespace) -> None:
    """A new object has a version, and another object another one."""
    first, second = await place.create("a"), await place.create("b")
    assert first.version
    assert first.version != second.version


async def test_gives_generation_one(place: StoreNamespace) -> None:
    """The spec's first generation is 1."""
    assert (await place.create()).metadata["generation"] == 1


async def test_gives_creation_time(place: StoreNamespace) -> None:
    """The creation time is now, in UTC, to the second."""
    stamp = (await place.create()).metadata["creationTimestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", stamp)
    assert abs(units.timestamp(stamp) - time.time()) < 120


async def test_keeps_name_and_namespace(place: StoreNamespace) -> None:
    """Name and namespace are the caller's."""
    made = await place.create("my-template.v1")
    assert (made.name, made.namespace) == ("my-template.v1", place.namespace)


async def test_keeps_labels_and_annotations(place: StoreNamespace) -> None:
    """Marks are kept as they were sent."""
    made = await place.create(labels={"team": "a", "example.com/x": "1"}, annotations={"note": "any text: ü {}"})
    assert made.metadata["labels"] == {"team": "a", "example.com/x": "1"}
    assert made.metadata["annotations"] == {"note": "any text: ü {}"}


async def test_leaves_out_empty_marks(place: StoreNamespace) -> None:
    """No labels and empty labels are the same."""
    made = await place.create(labels={}, annotations={}, finalizers=[])
    assert not {"labels", "annotations", "finalizers"} & made.metadata.keys()


async def test_keeps_finalizers(place: StoreNamespace) -> None:
    """Finalizers are kept, in order."""
    made = await place.create(finalizers=["aliquot.dev/b", "aliquot.dev/a"])
    assert made.metadata["finalizers"] == ["aliquot.dev/b", "aliquot.dev/a"]


async def test_ignores_identity_from_caller(place: StoreNamespace) -> None:
    """Nobody chooses their own uid, generation, creation or deletion time."""
    made = await place.driver.create(
        TEMPLATE,
        place.template(
            uid="11111111-1111-1111-1111-111111111111",
            generation=9,
            resourceVersion="77",
            creationTimestamp="2001-01-01T00:00:00Z",
            deletionTimestamp="2001-01-01T00:00:00Z",
        ),
    )
    assert made.uid != "11111111-1111-1111-1111-111111111111"
    assert made.metadata["generation"] == 1
    assert not made.metadata["creationTimestamp"].startswith("2001")
    assert "deletionTimestamp" not in made.metadata


async def test_drops_status(place: StoreNamespace) -> None:
    """A new object has no status: that is not its creator's to say."""
    data = {**place.template().data, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert "status" not in (await place.driver.create(TEMPLATE, Document(data))).data


async def test_same_name_twice(place: StoreNamespace) -> None:
    """A name can be used once."""
    await place.create()
    with pytest.raises(Exists, match="already exists"):
        await place.create()


async def test_second_create_changes_nothing(place: StoreNamespace) -> None:
    """A refused create leaves what is there alone."""
    first = await place.create(description="first")
    with pytest.raises(Exists):
        await place.create(description="second")
    assert await place.get() == first


async def test_same_name_of_another_kind(place: StoreNamespace) -> None:
    """Names are per kind."""
    await place.create("a")
    policy = document(_kind("Policy"), "a", place.namespace, {"types": ["training"]})
    assert (await place.driver.create(_kind("Policy"), policy)).name == "a"


async def test_same_name_after_delete(place: StoreNamespace) -> None:
    """A freed name can be used again, by an object with another id."""
    first = await place.create()
    await place.delete()
    second = await place.create()
    assert second.uid != first.uid


async def test_in_missing_namespace(place: StoreNamespace) -> None:
    """Nothing can be made where there is no namespace."""
    with pytest.raises(NotFound, match="not found"):
        await place.driver.create(TEMPLATE, document(TEMPLATE, "a", "no-such-namespace", {}))


async def test_namespaced_kind_needs_namespace(place: StoreNamespace) -> None:
    """A kind that lives in namespaces cannot live without."""
    with pytest.raises(Invalid):
        await place.driver.create(TEMPLATE, document(TEMPLATE, "a"))


async def test_cluster_kind_refuses_namespace(place: StoreNamespace) -> None:
    """A kind that spans the cluster cannot live in a namespace."""
    with pytest.raises(Invalid):
        await place.driver.create(DEPARTMENT, document(DEPARTMENT, place.unique(), place.namespace, {}))


@pytest.mark.parametrize("name", ["", "Upper", "has space", "-a", "a-", "a_b", "ä", "a/b", "x" * 254, ".a", "a..b"])
async def test_refuses_name(place: StoreNamespace, name: str) -> None:
    """A name that is no DNS name is refused."""
    with pytest.raises(Invalid):
        await place.create(name)


@pytest.mark.parametrize("name", ["a", "a-b", "a.b", "0", "x" * 253])
async def test_takes_name(place: StoreNamespace, name: str) -> None:
    """Every DNS name is a name."""
    assert (await place.create(name)).name == name


@pytest.mark.parametrize(
    "labels",
    [{"": "x"}, {"a b": "x"}, {"a": "b c"}, {"a": "x" * 64}, {"a/b/c": "x"}, {"-a": "x"}, {"x" * 64: "x"}, {"a": "-"}],
)
async def test_refuses_labels(place: StoreNamespace, labels: dict[str, str]) -> None:
    """A label that Kubernetes would not take is refused everywhere."""
    with pytest.raises(Invalid):
        await place.create(labels=labels)


@pytest.mark.parametrize("labels", [{"a": ""}, {"a.b/c_d": "e.f_g-h"}, {"A": "B"}, {"a": "x" * 63}])
async def test_takes_labels(place: StoreNamespace, labels: dict[str, str]) -> None:
    """Everything Kubernetes takes is a label."""
    assert (await place.create(labels=labels)).metadata["labels"] == labels


async def test_refuses_large_annotations(place: StoreNamespace) -> None:
    """Annotations hold notes, not files."""
    with pytest.raises(Invalid):
        await place.create(annotations={"note": "x" * 262_145})


async def test_refuses_bad_finalizer(place: StoreNamespace) -> None:
    """A finalizer has the form of a label key."""
    with pytest.raises(Invalid):
        await place.create(finalizers=["not a name"])


@pytest.mark.parametrize("lacking", ["apiVersion", "kind", "name", "uid"])
async def test_refuses_incomplete_owner(place: StoreNamespace, lacking: str) -> None:
    """An owner must be named in full."""
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": "x", "uid": "u"}
    del owner[lacking]
    with pytest.raises(Invalid):
        await place.create(ownerReferences=[owner])


async def test_refuses_two_controllers(place: StoreNamespace) -> None:
    """One owner at most is the one that manages the object."""
    owners = [
        {"apiVersion": "v1", "kind": "Namespace", "name": name, "uid": name, "controller": True} for name in ("x", "y")
    ]
    with pytest.raises(Invalid):
        await place.create(ownerReferences=owners)


async def test_refuses_too_large(place: StoreNamespace) -> None:
    """An object has at most a mebibyte, and one beyond that leaves no trace."""
    texts = [{"name": f"v{index}", "value": "x" * 4000} for index in range(400)]
    data = document(TEMPLATE, "big", place.namespace, {"values": {"environment": texts}})
    with pytest.raises((TooLarge, Invalid)):
        await place.driver.create(TEMPLATE, data)
    assert await place.names() == []


async def test_large_but_fitting(place: StoreNamespace) -> None:
    """Half a mebibyte goes in and comes out whole."""
    texts = [{"name": f"V{index}", "value": "x" * 4000} for index in range(120)]
    data = document(TEMPLATE, "big", place.namespace, {"values": {"environment": texts}})
    made = await place.driver.create(TEMPLATE, data)
    assert made.data["spec"]["values"]["environment"] == texts


async def test_text_survives(place: StoreNamespace) -> None:
    """Every character comes back: quotes, newlines, other scripts, emoji."""
    text = "\"quoted\" 'single' \\ back\nnew\ttab ü 試験 🚀 \u2028"
    assert (await place.create(description=text)).data["spec"]["description"] == text
    assert (await place.get()).data["spec"]["description"] == text


async def test_many_at_once(place: StoreNamespace) -> None:
    """Creates at the same time all happen, once each."""
    made = await asyncio.gather(*(place.create(f"t{index}") for index in range(20)))
    assert len({found.uid for found in made}) == 20
    assert len(await place.names()) == 20


@pytest.mark.calm  # a client that repeats a broken call cannot tell its own object from a rival's
async def test_race_for_one_name(place: StoreNamespace) -> None:
    """Of many creates of one name exactly one wins."""
    results = await asyncio.gather(*(place.create() for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(result, Document) for result in results) == 1
    assert sum(isinstance(result, Exists) for result in results) == 9


async def test_cluster_kind(place: StoreNamespace) -> None:
    """A kind that spans the cluster has no namespace."""
    made = await place.driver.create(DEPARTMENT, document(DEPARTMENT, place.unique(), spec={"quota": {"gpu": 4}}))
    assert made.namespace == ""
    assert made.data["spec"] == {"quota": {"gpu": 4}}


async def test_pod(place: StoreNamespace) -> None:
    """A pod keeps what we said of it."""
    made = await place.driver.create(POD, stored_pod(place))
    assert made.data["spec"]["containers"][0]["image"] == "busybox"
    assert "nodeName" not in made.data["spec"]


def stored_pod(place: StoreNamespace, name: str = "p", **metadata: Any) -> Document:
    spec = {"containers": [{"name": "main", "image": "busybox"}], "schedulerName": "aliquot"}
    return document(POD, name, place.namespace, spec, **metadata)


def _kind(name: str) -> Any:
    from aliquot.api import KINDS

    return KINDS.named(name)
