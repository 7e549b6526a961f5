"""Objects on a real API server: created, read, changed and deleted through the Kubernetes body."""

from __future__ import annotations

import pytest

from aliquot.api import Kind
from aliquot.errors import Conflict, Exists, Invalid, NotFound, TooLarge
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from support.kubernetes.kinds import CONFIG, GADGET, NAMESPACE, POD, gadget, pod_document

pytestmark = pytest.mark.kube


async def test_created_object_has_identity(kube: KubernetesDriver, namespace: str) -> None:
    """A created object comes back with uid, version and generation, whatever the caller sent for them."""
    sent = gadget(namespace, metadata={"uid": "x", "resourceVersion": "7", "generation": 9}, size=1)

    made = await kube.create(GADGET, sent)

    assert made.uid not in ("", "x")
    assert made.version not in ("", "7")
    assert made.metadata["generation"] == 1
    assert (made.data["apiVersion"], made.data["kind"]) == (GADGET.api_version, "Gadget")


async def test_bookkeeping_is_left_out(kube: KubernetesDriver, namespace: str) -> None:
    """Nobody sees the managed fields of the API server, on no way in."""
    made = await kube.create(GADGET, gadget(namespace))
    listing = await kube.list(GADGET, namespace)

    for document in (made, await kube.get(GADGET, "g", namespace), *listing.items):
        assert "managedFields" not in document.metadata


async def test_name_is_taken_once(kube: KubernetesDriver, namespace: str) -> None:
    """A second object of the same name is refused as existing, not as a conflict."""
    await kube.create(GADGET, gadget(namespace))

    with pytest.raises(Exists, match="already exists"):
        await kube.create(GADGET, gadget(namespace))


async def test_missing_object_is_not_found(kube: KubernetesDriver, namespace: str) -> None:
    """What is not there is not found, and the message names it."""
    with pytest.raises(NotFound, match="nobody"):
        await kube.get(GADGET, "nobody", namespace)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
async def test_name_cannot_leave_its_path(kube: KubernetesDriver, namespace: str, name: str) -> None:
    """A name that would lead elsewhere is the name of nothing."""
    with pytest.raises(NotFound):
        await kube.get(GADGET, name, namespace)


async def test_unknown_kind_says_so(kube: KubernetesDriver) -> None:
    """A kind that the cluster does not know gives an error with the way out."""
    with pytest.raises(NotFound, match="custom resources installed"):
        await kube.list(Kind(name="Widget", type=dict, plural="widgets", group="none.aliquot.dev"))


async def test_bad_object_names_every_field(kube: KubernetesDriver, namespace: str) -> None:
    """Every fault that the schema finds comes back with its path, in one line."""
    with pytest.raises(Invalid) as caught:
        await kube.create(GADGET, gadget(namespace, size=-1, color=5))

    assert {fault.path for fault in caught.value.faults} == {"spec.size", "spec.color"}
    assert "\n" not in str(caught.value)


async def test_rule_of_the_schema_is_told(kube: KubernetesDriver, namespace: str) -> None:
    """A rule that spans fields answers with its own words."""
    with pytest.raises(Invalid, match="must be below 100"):
        await kube.create(GADGET, gadget(namespace, size=100))


async def test_update_needs_current_version(kube: KubernetesDriver, namespace: str) -> None:
    """Of two who read the same version the second to write meets a conflict."""
    made = await kube.create(GADGET, gadget(namespace, size=1))
    changed = await kube.update(GADGET, Document({**made.data, "spec": {"size": 2}}))

    with pytest.raises(Conflict):
        await kube.update(GADGET, Document({**made.data, "spec": {"size": 3}}))
    assert changed.metadata["generation"] == 2
    assert (await kube.get(GADGET, "g", namespace)).data["spec"] == {"size": 2}


async def test_update_without_version_is_refused(kube: KubernetesDriver, namespace: str) -> None:
    """Even of kinds that Kubernetes would overwrite blindly."""
    await kube.create(CONFIG, Document({"metadata": {"name": "c", "namespace": namespace}, "data": {"a": "1"}}))

    with pytest.raises(Invalid, match=r"metadata\.resourceVersion"):
        await kube.update(CONFIG, Document({"metadata": {"name": "c", "namespace": namespace}, "data": {}}))


async def test_update_that_changes_nothing(kube: KubernetesDriver, namespace: str) -> None:
    """Writing what is there already gives no new version."""
    made = await kube.create(GADGET, gadget(namespace, size=1))

    assert (await kube.update(GADGET, made)).version == made.version


async def test_status_is_written_apart(kube: KubernetesDriver, namespace: str) -> None:
    """A status write leaves the spec alone, and the other way round."""
    made = await kube.create(GADGET, gadget(namespace, size=1))
    told = await kube.update_status(GADGET, Document({**made.data, "spec": {"size": 5}, "status": {"phase": "Up"}}))
    after = await kube.update(GADGET, Document({**told.data, "spec": {"size": 2}, "status": {"phase": "Down"}}))

    assert told.data["spec"] == {"size": 1}
    assert (after.data["spec"], after.data["status"]) == ({"size": 2}, {"phase": "Up"})


async def test_kind_without_status_says_so(kube: KubernetesDriver, namespace: str) -> None:
    """A status of a kind that has none is an error before anything is sent."""
    with pytest.raises(Invalid, match="have no status"):
        await kube.patch(CONFIG, "c", namespace, {"status": {}}, status=True)


async def test_patch_merges(kube: KubernetesDriver, namespace: str) -> None:
    """A patch sets, replaces and with null removes; the rest stays."""
    await kube.create(GADGET, gadget(namespace, size=1, color="red"))

    patched = await kube.patch(GADGET, "g", namespace, {"spec": {"size": 2, "color": None}})

    assert patched.data["spec"] == {"size": 2}


async def test_patch_of_a_version(kube: KubernetesDriver, namespace: str) -> None:
    """A patch that names a version applies to that version only."""
    made = await kube.create(GADGET, gadget(namespace, size=1))
    await kube.patch(GADGET, "g", namespace, {"spec": {"size": 2}}, version=made.version)

    with pytest.raises(Conflict):
        await kube.patch(GADGET, "g", namespace, {"spec": {"size": 3}}, version=made.version)


async def test_delete_is_done_at_once(kube: KubernetesDriver, namespace: str) -> None:
    """An object that nothing keeps is gone when the delete returns."""
    await kube.create(GADGET, gadget(namespace))

    assert await kube.delete(GADGET, "g", namespace)
    with pytest.raises(NotFound):
        await kube.delete(GADGET, "g", namespace)


async def test_finalizer_keeps_it(kube: KubernetesDriver, namespace: str) -> None:
    """An object with a finalizer is marked, and goes when the last finalizer goes."""
    await kube.create(GADGET, gadget(namespace, metadata={"finalizers": ["aliquot.dev/wait"]}))

    assert not await kube.delete(GADGET, "g", namespace)
    marked = await kube.get(GADGET, "g", namespace)
    assert marked.metadata["deletionTimestamp"]
    await kube.patch(GADGET, "g", namespace, {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await kube.get(GADGET, "g", namespace)


async def test_delete_of_another_one(kube: KubernetesDriver, namespace: str) -> None:
    """A delete that names a uid or version leaves any other object alone."""
    made = await kube.create(GADGET, gadget(namespace))

    with pytest.raises(Conflict):
        await kube.delete(GADGET, "g", namespace, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Conflict):
        await kube.delete(GADGET, "g", namespace, version="1")
    assert await kube.delete(GADGET, "g", namespace, uid=made.uid, version=made.version)


async def test_pod_in_a_new_namespace(kube: KubernetesDriver, namespace: str) -> None:
    """The first pod of a namespace waits for its service account instead of failing."""
    made = await kube.create(POD, pod_document(namespace))

    assert made.data["status"]["phase"] == "Pending"


async def test_running_pod_stops_with_grace(kube: KubernetesDriver, namespace: str) -> None:
    """A pod with a node is on its way first; without grace it is gone at once. One without a node just goes."""
    await kube.create(POD, pod_document(namespace, "bound", nodeName="nowhere"))
    await kube.create(POD, pod_document(namespace, "free"))

    assert await kube.delete(POD, "free", namespace)
    assert not await kube.delete(POD, "bound", namespace)
    assert (await kube.get(POD, "bound", namespace)).metadata["deletionGracePeriodSeconds"] == 30
    assert await kube.delete(POD, "bound", namespace, grace_seconds=0)


async def test_namespace_empties_first(kube: KubernetesDriver) -> None:
    """A namespace is on its way when the delete returns."""
    await kube.create(NAMESPACE, Document({"metadata": {"name": "short-lived"}}))

    assert not await kube.delete(NAMESPACE, "short-lived")


async def test_too_large_object_is_refused(kube: KubernetesDriver, namespace: str) -> None:
    """An object beyond a mebibyte is refused, the same as in every other body."""
    with pytest.raises(TooLarge):
        await kube.create(GADGET, gadget(namespace, text="x" * (1 << 20)))


async def test_etcd_limit_is_a_size_error(kube: KubernetesDriver, namespace: str) -> None:
    """An object that grows beyond what etcd takes is too large, not unavailable."""
    await kube.create(GADGET, gadget(namespace, text="x" * 1_000_000))

    with pytest.raises(TooLarge):
        await kube.patch(GADGET, "g", namespace, {"status": {"more": "y" * 1_000_000}}, status=True)


async def test_ready_server_passes_the_check(kube: KubernetesDriver) -> None:
    """A server that is ready has nothing to complain about."""
    await kube.check()
