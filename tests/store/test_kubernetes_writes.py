"""Operations that only the Kubernetes driver has: bind in one request, evict, apply, read the start of a log."""

from __future__ import annotations

import pytest

from aliquot.errors import Conflict, NotFound, PlatformError
from aliquot.store.drivers.kubernetes import KubernetesDriver
from support.kubernetes.kinds import CONFIG, POD, pod_document

pytestmark = pytest.mark.kube


async def test_bind(kube: KubernetesDriver, namespace: str) -> None:
    """A bind sets the pod's node and annotations once, and only at the given version."""
    created = await kube.create(POD, pod_document(namespace))
    with pytest.raises(Conflict):
        await kube.bind("p", namespace, "n1", {}, uid="another")
    with pytest.raises(Conflict):
        await kube.bind("p", namespace, "n1", {}, version="1")

    await kube.bind("p", namespace, "n1", {"devices": "0"}, uid=created.uid, version=created.version)

    bound = await kube.get(POD, "p", namespace)
    assert bound.data["spec"]["nodeName"] == "n1"
    assert bound.metadata["annotations"] == {"devices": "0"}
    with pytest.raises(Conflict):
        await kube.bind("p", namespace, "n2", {})


async def test_evict(kube: KubernetesDriver, namespace: str) -> None:
    """An eviction applies only to the pod with the given uid; a dry run changes nothing."""
    created = await kube.create(POD, pod_document(namespace))

    await kube.evict("p", namespace, uid=created.uid, dry_run=True)
    assert (await kube.get(POD, "p", namespace)).version == created.version
    with pytest.raises(Conflict):
        await kube.evict("p", namespace, uid="another")
    await kube.evict("p", namespace, uid=created.uid, grace_seconds=0)
    with pytest.raises(NotFound):
        await kube.evict("p", namespace)


async def test_apply(kube: KubernetesDriver, namespace: str) -> None:
    """Apply creates or updates an object and keeps the fields of other managers."""
    place = {"name": "c", "namespace": namespace}
    await kube.apply(CONFIG, {"metadata": place, "data": {"ours": "1", "old": "1"}})
    await kube.patch(CONFIG, "c", namespace, {"data": {"theirs": "1"}})

    await kube.apply(CONFIG, {"metadata": place, "data": {"ours": "2"}})

    assert (await kube.get(CONFIG, "c", namespace)).data["data"] == {"ours": "2", "theirs": "1"}


async def test_apply_again_changes_nothing(kube: KubernetesDriver, namespace: str) -> None:
    """An apply without a change gives no new version."""
    wanted = {"metadata": {"name": "c", "namespace": namespace}, "data": {"ours": "1"}}
    first = await kube.apply(CONFIG, wanted)
    assert (await kube.apply(CONFIG, wanted)).version == first.version


async def test_log_of_a_pod_that_does_not_run(kube: KubernetesDriver, namespace: str) -> None:
    """The log of a pod that has not started is an error."""
    await kube.create(POD, pod_document(namespace))
    with pytest.raises(PlatformError):
        await kube.log("p", namespace)
