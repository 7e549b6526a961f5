"""What the scheduler reads of a real cluster besides pods: priorities, other projects' gangs, claims and volumes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from aliquot.api import Claim, Json, Metadata, Pod, decode
from aliquot.api import Node as NodeObject
from aliquot.backends.kubernetes.priority_classes import install_priority_classes
from aliquot.backends.kubernetes.scheduling_context import KubernetesSchedulingContext
from aliquot.backends.kubernetes.unstructured_kinds import PRIORITY_CLASS
from aliquot.backends.kubernetes.volume_binding import SELECTED_NODE, bind_claims
from aliquot.errors import NotFound, Unavailable
from aliquot.planner import Node, NodeSelectorRequirement
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver, install
from aliquot.store.http import kubeconfig
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.kubernetes.cluster import CONTROLLERS, Cluster, ClusterError
from support.kubernetes.fixtures import available_programs
from support.stores.running import running
from support.waiting import eventually

pytestmark = pytest.mark.kube
VALUES = {"train": 50, "build-preemptible": 75, "interactive-preemptible": 75, "build": 100, "inference": 125}


@pytest.fixture(scope="module")
def volume_cluster() -> Iterator[Cluster]:
    """A cluster that binds claims to volumes."""
    running_cluster = Cluster(
        available_programs(), controllers=(*CONTROLLERS, "persistentvolume-binder-controller")
    ).start()
    yield running_cluster
    running_cluster.stop()


@pytest.fixture
def namespace(volume_cluster: Cluster) -> str:
    """A namespace in the cluster of this module."""
    return volume_cluster.create_namespace()


@pytest_asyncio.fixture
async def driver(volume_cluster: Cluster) -> AsyncIterator[KubernetesDriver]:
    async with KubernetesDriver(kubeconfig.load([volume_cluster.kubeconfig])) as connected:
        yield connected


@pytest_asyncio.fixture
async def context(driver: KubernetesDriver) -> AsyncIterator[KubernetesSchedulingContext]:
    """A running scheduling context."""
    informers = Informers(driver)
    scheduling_context = KubernetesSchedulingContext(driver, informers)
    scheduling_context.watch_pods(informers.of(Pod))
    async with running(*(informer.run() for informer in informers), *scheduling_context.background_tasks()):
        await scheduling_context.wait_synced()
        yield scheduling_context


def apply(cluster: Cluster, *documents: Json) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))


def storage_class(name: str, provisioner: str) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer",
    }  # fmt: skip


def volume(name: str, storage_class: str, node: str) -> Json:
    term = {"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class,
            "local": {"path": "/data"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }  # fmt: skip


def claim(namespace: str, storage_class: str) -> Json:
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }  # fmt: skip


def pod_with_claim(namespace: str) -> Pod:
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    return decode(Pod, {"metadata": {"name": "p", "namespace": namespace}, "spec": {"volumes": volumes}})


def asynchronous(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def is_met() -> bool:
        return condition()

    return is_met


def at(*nodes: str) -> Any:
    return (tuple((NodeSelectorRequirement("host", "In", (node,)),) for node in nodes),)


async def test_priority_classes_are_installed(driver: KubernetesDriver) -> None:
    """All five are installed, and a second start changes nothing."""
    await install_priority_classes(driver)
    before = {name: (await driver.get(PRIORITY_CLASS, name)).data for name in VALUES}
    await install_priority_classes(driver)

    assert {name: item["value"] for name, item in before.items()} == VALUES
    assert {name: (await driver.get(PRIORITY_CLASS, name)).data for name in VALUES} == before


async def test_existing_priority_class_is_kept(driver: KubernetesDriver) -> None:
    """An existing class with another value keeps it."""
    with suppress(NotFound):
        await driver.delete(PRIORITY_CLASS, "build")
    await driver.create(PRIORITY_CLASS, Document({"metadata": {"name": "build"}, "value": 7}))

    await install_priority_classes(driver)

    assert (await driver.get(PRIORITY_CLASS, "build")).data["value"] == 7
    await driver.delete(PRIORITY_CLASS, "build")


async def test_fractions_are_no_resource(volume_cluster: Cluster, namespace: str) -> None:
    """Kubernetes refuses nvidia.com/gpu: "0.5", so a fraction is an annotation."""
    limits = {"limits": {"nvidia.com/gpu": "0.5"}}
    half = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "half", "namespace": namespace},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": limits}]},
    }  # fmt: skip
    with pytest.raises(ClusterError, match="must be an integer"):
        apply(volume_cluster, half)


async def test_volume_restricts_nodes(
    volume_cluster: Cluster, namespace: str, context: KubernetesSchedulingContext
) -> None:
    """An unbound claim may get any free volume; once it is bound, its pod must run where the volume is."""
    apply(volume_cluster, storage_class("here", "kubernetes.io/no-provisioner"), claim(namespace, "here"))
    apply(volume_cluster, volume("here-1", "here", "n1"), volume("here-2", "here", "n2"))
    both = {at("n1", "n2"), at("n2", "n1")}
    await eventually(asynchronous(lambda: context.volume_constraints(pod_with_claim(namespace)).node in both))

    node = await Store(context._driver).create(NodeObject(metadata=Metadata(name="n2", labels={"host": "n2"})))
    await eventually(asynchronous(lambda: context._nodes.get("n2") is not None))
    await context.bind_claims(pod_with_claim(namespace), "n2")
    await Store(context._driver).delete(node)

    await eventually(asynchronous(lambda: context.volume_constraints(pod_with_claim(namespace)).node == at("n2")))
    bound = await Store(context._driver).get(Claim, "data", namespace)
    assert bound.spec.volume_name == "here-2"


async def test_no_volume_on_that_node(
    volume_cluster: Cluster, namespace: str, context: KubernetesSchedulingContext
) -> None:
    """A bind to a node without a free volume fails, and nothing is changed."""
    apply(volume_cluster, storage_class("there", "kubernetes.io/no-provisioner"), claim(namespace, "there"))
    apply(volume_cluster, volume("there-1", "there", "n1"))
    await eventually(asynchronous(lambda: context.volume_constraints(pod_with_claim(namespace)).node == at("n1")))

    with pytest.raises(Unavailable, match="no free volume of storage class there is left on n2 for claim data"):
        await context.bind_claims(pod_with_claim(namespace), "n2")

    assert context.volume_constraints(pod_with_claim(namespace)).node == at("n1")


async def test_provisioner_gets_the_node(
    volume_cluster: Cluster, namespace: str, context: KubernetesSchedulingContext
) -> None:
    """For volumes that are provisioned on demand, the claim names the node; a second attempt waits for the same one."""
    apply(volume_cluster, storage_class("made", "example.com/disks"), claim(namespace, "made"))
    await eventually(asynchronous(lambda: context.volume_constraints(pod_with_claim(namespace)).hindrance == ""))

    with pytest.raises(Unavailable, match="has got no volume on n1 in 0 s"):
        await bind_claims(context._driver, context.storage, pod_with_claim(namespace), Node("n1"), seconds=0)

    claimed = await Store(context._driver).get(Claim, "data", namespace)
    assert claimed.metadata.annotations[SELECTED_NODE] == "n1"
    chosen = (((NodeSelectorRequirement("", "In", ("n1",)),),),)
    await eventually(asynchronous(lambda: context.volume_constraints(pod_with_claim(namespace)).node == chosen))


async def test_missing_claim(volume_cluster: Cluster, namespace: str, context: KubernetesSchedulingContext) -> None:
    """The pod waits, with the reason; when the claim is created, listeners are notified of its namespace."""
    notified = asyncio.Event()
    context.listen(lambda changed: notified.set() if changed == namespace else None)
    assert (
        context.volume_constraints(pod_with_claim(namespace)).hindrance
        == "volume claim data does not exist; create it and this starts"
    )

    apply(volume_cluster, storage_class("soon", "example.com/disks"), claim(namespace, "soon"))

    async with asyncio.timeout(30):
        await notified.wait()
    await eventually(asynchronous(lambda: context.volume_constraints(pod_with_claim(namespace)).hindrance == ""))


def pod_group_definition() -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "podgroups.scheduling.run.ai"},
        "spec": {
            "group": "scheduling.run.ai", "scope": "Namespaced",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "versions": [
                {"name": "v2alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }  # fmt: skip


async def test_pod_groups_of_kai(volume_cluster: Cluster, driver: KubernetesDriver, namespace: str) -> None:
    """If the cluster has KAI's pod groups, their minMember is the gang's minimum, and changes are followed."""
    await install(driver, [pod_group_definition()])
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": namespace}, "spec": {"minMember": 4},
    }  # fmt: skip
    apply(volume_cluster, group)
    informers = Informers(driver)
    context = KubernetesSchedulingContext(driver, informers)

    async with running(*(informer.run() for informer in informers), *context.background_tasks()):
        await context.wait_synced()
        assert context.min_available(namespace, "podgroup:g") == 4
        assert context.min_available(namespace, "podgroup:other") is None
        assert context.min_available(namespace, "g") is None
        apply(volume_cluster, {**group, "spec": {"minMember": 2}})
        await eventually(asynchronous(lambda: context.min_available(namespace, "podgroup:g") == 2))
