"""Objects on a real API server: created, read, changed and deleted through the Kubernetes driver."""

from __future__ import annotations

import pytest

from aliquot.api import Kind
from aliquot.errors import Conflict, Exists, Invalid, NotFound, TooLarge
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from support.kubernetes.kinds import CONFIG, GADGET, NAMESPACE, POD, gadget, pod_document

pytestmark = pytest.mark.kube


async def test_created_object_has_identity(kube: KubernetesDriver, namespace: str) -> None:
    """A created object has its own uid, version and generation; those of the request are ignored."""
    sent = gadget(namespace, metadata={"uid": "x", "resourceVersion": "7", "generation": 9}, size=1)

    created = await kube.create(GADGET, sent)

    assert created.uid not in ("", "x")
    assert created.version not in ("", "7")
    assert created.metadata["generation"] == 1
    assert (created.data["apiVersion"], created.data["kind"]) == (GADGET.api_version, "Gadget")


async def test_bookkeeping_is_left_out(kube: KubernetesDriver, namespace: str) -> None:
    """Managed fields are removed from created, read and listed objects."""
    created = await kube.create(GADGET, gadget(namespace))
    listing = await kube.list(GADGET, namespace)

    for document in (created, await kube.get(GADGET, "g", namespace), *listing.items):
        assert "managedFields" not in document.metadata


async def test_name_is_taken_once(kube: KubernetesDriver, namespace: str) -> None:
    """A second object of the same name is refused as existing, not as a conflict."""
    await kube.create(GADGET, gadget(namespace))

    with pytest.raises(Exists, match="already exists"):
        await kube.create(GADGET, gadget(namespace))


async def test_missing_object_is_not_found(kube: KubernetesDriver, namespace: str) -> None:
    """A missing object is not found, and the message names it."""
    with pytest.raises(NotFound, match="nobody"):
        await kube.get(GADGET, "nobody", namespace)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
async def test_name_cannot_leave_its_path(kube: KubernetesDriver, namespace: str, name: str) -> None:
    """A name with path characters is not found."""
    with pytest.raises(NotFound):
        await kube.get(GADGET, name, namespace)


async def test_unknown_kind_says_so(kube: KubernetesDriver) -> None:
    """An unknown kind gives an error with a hint."""
    with pytest.raises(NotFound, match="custom resources installed"):
        await kube.list(Kind(name="Widget", type=dict, plural="widgets", group="none.aliquot.dev"))


async def test_bad_object_names_every_field(kube: KubernetesDriver, namespace: str) -> None:
    """Every fault that the schema finds comes back with its path, in one line."""
    with pytest.raises(Invalid) as caught:
        await kube.create(GADGET, gadget(namespace, size=-1, color=5))

    assert {fault.path for fault in caught.value.faults} == {"spec.size", "spec.color"}
    assert "\n" not in str(caught.value)


async def test_rule_of_the_schema_is_reported(kube: KubernetesDriver, namespace: str) -> None:
    """A CEL rule reports its own message."""
    with pytest.raises(Invalid, match="must be below 100"):
        await kube.create(GADGET, gadget(namespace, size=100))


async def test_update_needs_current_version(kube: KubernetesDriver, namespace: str) -> None:
    """Of two updates from the same version the second gets a conflict."""
    created = await kube.create(GADGET, gadget(namespace, size=1))
    changed = await kube.update(GADGET, Document({**created.data, "spec": {"size": 2}}))

    with pytest.raises(Conflict):
        await kube.update(GADGET, Document({**created.data, "spec": {"size": 3}}))
    assert changed.metadata["generation"] == 2
    assert (await kube.get(GADGET, "g", namespace)).data["spec"] == {"size": 2}


async def test_update_without_version_is_refused(kube: KubernetesDriver, namespace: str) -> None:
    """The same for kinds that Kubernetes would overwrite unconditionally."""
    await kube.create(CONFIG, Document({"metadata": {"name": "c", "namespace": namespace}, "data": {"a": "1"}}))

    with pytest.raises(Invalid, match=r"metadata\.resourceVersion"):
        await kube.update(CONFIG, Document({"metadata": {"name": "c", "namespace": namespace}, "data": {}}))


async def test_update_that_changes_nothing(kube: KubernetesDriver, namespace: str) -> None:
    """An update without a change gives no new version."""
    created = await kube.create(GADGET, gadget(namespace, size=1))

    assert (await kube.update(GADGET, created)).version == created.version


async def test_status_is_written_apart(kube: KubernetesDriver, namespace: str) -> None:
    """A status update does not change the spec, and a spec update does not change the status."""
    created = await kube.create(GADGET, gadget(namespace, size=1))
    status_written = await kube.update_status(
        GADGET, Document({**created.data, "spec": {"size": 5}, "status": {"phase": "Up"}})
    )
    after = await kube.update(
        GADGET, Document({**status_written.data, "spec": {"size": 2}, "status": {"phase": "Down"}})
    )

    assert status_written.data["spec"] == {"size": 1}
    assert (after.data["spec"], after.data["status"]) == ({"size": 2}, {"phase": "Up"})


async def test_kind_without_status_says_so(kube: KubernetesDriver, namespace: str) -> None:
    """A status update of a kind without status fails before anything is sent."""
    with pytest.raises(Invalid, match="have no status"):
        await kube.patch(CONFIG, "c", namespace, {"status": {}}, status=True)


async def test_patch_merges(kube: KubernetesDriver, namespace: str) -> None:
    """A patch sets, replaces and with null removes; the rest stays."""
    await kube.create(GADGET, gadget(namespace, size=1, color="red"))

    patched = await kube.patch(GADGET, "g", namespace, {"spec": {"size": 2, "color": None}})

    assert patched.data["spec"] == {"size": 2}


async def test_patch_of_a_version(kube: KubernetesDriver, namespace: str) -> None:
    """A patch with a version applies to that version only."""
    created = await kube.create(GADGET, gadget(namespace, size=1))
    await kube.patch(GADGET, "g", namespace, {"spec": {"size": 2}}, version=created.version)

    with pytest.raises(Conflict):
        await kube.patch(GADGET, "g", namespace, {"spec": {"size": 3}}, version=created.version)


async def test_delete_is_done_at_once(kube: KubernetesDriver, namespace: str) -> None:
    """An object without finalizers is removed when the delete returns."""
    await kube.create(GADGET, gadget(namespace))

    assert await kube.delete(GADGET, "g", namespace)
    with pytest.raises(NotFound):
        await kube.delete(GADGET, "g", namespace)


async def test_finalizer_keeps_it(kube: KubernetesDriver, namespace: str) -> None:
    """An object with a finalizer is marked as deleted, and is removed with its last finalizer."""
    await kube.create(GADGET, gadget(namespace, metadata={"finalizers": ["aliquot.dev/wait"]}))

    assert not await kube.delete(GADGET, "g", namespace)
    marked = await kube.get(GADGET, "g", namespace)
    assert marked.metadata["deletionTimestamp"]
    await kube.patch(GADGET, "g", namespace, {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await kube.get(GADGET, "g", namespace)


async def test_delete_of_another_one(kube: KubernetesDriver, namespace: str) -> None:
    """A delete with a uid or version does not affect another object."""
    created = await kube.create(GADGET, gadget(namespace))

    with pytest.raises(Conflict):
        await kube.delete(GADGET, "g", namespace, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Conflict):
        await kube.delete(GADGET, "g", namespace, version="1")
    assert await kube.delete(GADGET, "g", namespace, uid=created.uid, version=created.version)


async def test_pod_in_a_new_namespace(kube: KubernetesDriver, namespace: str) -> None:
    """The first pod of a namespace waits for its service account instead of failing."""
    created = await kube.create(POD, pod_document(namespace))

    assert created.data["status"]["phase"] == "Pending"


async def test_running_pod_stops_with_grace(kube: KubernetesDriver, namespace: str) -> None:
    """A delete marks a bound pod; with grace 0, or without a node, it removes the pod at once."""
    await kube.create(POD, pod_document(namespace, "bound", nodeName="nowhere"))
    await kube.create(POD, pod_document(namespace, "free"))

    assert await kube.delete(POD, "free", namespace)
    assert not await kube.delete(POD, "bound", namespace)
    assert (await kube.get(POD, "bound", namespace)).metadata["deletionGracePeriodSeconds"] == 30
    assert await kube.delete(POD, "bound", namespace, grace_seconds=0)


async def test_namespace_empties_first(kube: KubernetesDriver) -> None:
    """A namespace is terminating when the delete returns."""
    await kube.create(NAMESPACE, Document({"metadata": {"name": "short-lived"}}))

    assert not await kube.delete(NAMESPACE, "short-lived")


async def test_too_large_object_is_refused(kube: KubernetesDriver, namespace: str) -> None:
    """An object beyond one mebibyte is refused, as by every other driver."""
    with pytest.raises(TooLarge):
        await kube.create(GADGET, gadget(namespace, text="x" * (1 << 20)))


async def test_etcd_limit_is_a_size_error(kube: KubernetesDriver, namespace: str) -> None:
    """An object that grows beyond etcd's limit is too large, not unavailable."""
    await kube.create(GADGET, gadget(namespace, text="x" * 1_000_000))

    with pytest.raises(TooLarge):
        await kube.patch(GADGET, "g", namespace, {"status": {"more": "y" * 1_000_000}}, status=True)


async def test_ready_server_passes_the_check(kube: KubernetesDriver) -> None:
    """The check of a ready server succeeds."""
    await kube.check()
