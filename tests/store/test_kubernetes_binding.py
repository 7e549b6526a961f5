"""The Kubernetes driver turns a patch or update of a pod's node name into a binding."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.api import Json
from aliquot.errors import Conflict, Invalid, NotFound
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from support.kubernetes.kinds import POD, pod_document

pytestmark = pytest.mark.kube


def to(node: str, **annotations: str) -> Json:
    return {"spec": {"nodeName": node}, "metadata": {"annotations": annotations}}


async def test_patch_binds(kube: KubernetesDriver, namespace: str) -> None:
    """A patch of the node name binds the pod and adds its annotations in the same write."""
    created = await kube.create(POD, Document({**pod_document(namespace).data, "metadata": _marked(namespace)}))

    bound = await kube.patch(POD, "p", namespace, to("n1", devices="0"), version=created.version)

    assert bound.data["spec"]["nodeName"] == "n1"
    assert bound.metadata["annotations"] == {"kept": "yes", "devices": "0"}
    assert bound.version != created.version


async def test_stale_version_does_not_bind(kube: KubernetesDriver, namespace: str) -> None:
    """A pod that changed since the plan is not bound."""
    created = await kube.create(POD, pod_document(namespace))
    await kube.patch(POD, "p", namespace, {"metadata": {"labels": {"a": "b"}}})

    with pytest.raises(Conflict):
        await kube.patch(POD, "p", namespace, to("n1"), version=created.version)
    assert "nodeName" not in (await kube.get(POD, "p", namespace)).data["spec"]


async def test_second_bind_is_a_conflict(kube: KubernetesDriver, namespace: str) -> None:
    """A bound pod keeps its node, with and without a version."""
    await kube.create(POD, pod_document(namespace))
    bound = await kube.patch(POD, "p", namespace, to("n1"))

    for version in ("", bound.version):
        with pytest.raises(Conflict, match="already assigned"):
            await kube.patch(POD, "p", namespace, to("n2"), version=version)


async def test_one_of_many_binds(kube: KubernetesDriver, namespace: str) -> None:
    """Of ten concurrent binds of one pod exactly one succeeds; the others get a conflict."""
    created = await kube.create(POD, pod_document(namespace))

    binds = (kube.patch(POD, "p", namespace, to(f"n{i}"), version=created.version) for i in range(10))
    results = await asyncio.gather(*binds, return_exceptions=True)

    bound = [result for result in results if isinstance(result, Document)]
    assert len(bound) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 9
    assert (await kube.get(POD, "p", namespace)).data["spec"]["nodeName"] == bound[0].data["spec"]["nodeName"]


async def test_another_pod_of_that_name_is_not_bound(kube: KubernetesDriver, namespace: str) -> None:
    """A bind with the uid of an earlier pod is refused."""
    await kube.create(POD, pod_document(namespace))
    patch = {"spec": {"nodeName": "n1"}, "metadata": {"uid": "00000000-0000-0000-0000-000000000000"}}

    with pytest.raises(Conflict):
        await kube.patch(POD, "p", namespace, patch)


async def test_missing_pod_is_not_bound(kube: KubernetesDriver, namespace: str) -> None:
    """A bind of a missing pod is not found."""
    with pytest.raises(NotFound):
        await kube.patch(POD, "p", namespace, to("n1"))


async def test_bind_carries_annotations_only(kube: KubernetesDriver, namespace: str) -> None:
    """A change that a binding cannot carry is refused with its path, and nothing is written."""
    created = await kube.create(POD, pod_document(namespace))
    patch = {"spec": {"nodeName": "n1"}, "metadata": {"labels": {"a": "b"}, "annotations": {"x": None}}}

    with pytest.raises(Invalid) as caught:
        await kube.patch(POD, "p", namespace, patch)
    assert [fault.path for fault in caught.value.faults] == ["metadata.labels", "metadata.annotations['x']"]
    assert (await kube.get(POD, "p", namespace)).version == created.version


async def test_update_binds_too(kube: KubernetesDriver, namespace: str) -> None:
    """An update whose only changes are the node and new annotations binds the pod."""
    created = await kube.create(POD, pod_document(namespace))
    wanted = {**created.data, "spec": {**created.data["spec"], "nodeName": "n1"}}
    wanted["metadata"] = {**created.metadata, "annotations": {"devices": "0"}}

    bound = await kube.update(POD, Document(wanted))

    assert bound.data["spec"]["nodeName"] == "n1"
    assert bound.metadata["annotations"] == {"devices": "0"}


async def test_update_of_more_is_refused(kube: KubernetesDriver, namespace: str) -> None:
    """An update of an immutable pod field is invalid and does not bind the pod."""
    created = await kube.create(POD, pod_document(namespace))
    wanted = {**created.data, "spec": {**created.data["spec"], "nodeName": "n1", "restartPolicy": "Never"}}

    with pytest.raises(Invalid):
        await kube.update(POD, Document(wanted))
    assert "nodeName" not in (await kube.get(POD, "p", namespace)).data["spec"]


def _marked(namespace: str) -> Json:
    return {"name": "p", "namespace": namespace, "annotations": {"kept": "yes"}}
