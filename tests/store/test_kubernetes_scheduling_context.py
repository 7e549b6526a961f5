"""What the scheduler reads of a real cluster besides pods: priorities, gangs of other projects, claims and volumes."""

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
from support.stores.running import running, until

pytestmark = pytest.mark.kube
VALUES = {"train": 50, "build-preemptible": 75, "interactive-preemptible": 75, "build": 100, "inference": 125}


@pytest.fixture(scope="module")
def storing() -> Iterator[Cluster]:
    """A cluster that binds claims to volumes."""
    made = Cluster(available_programs(), controllers=(*CONTROLLERS, "persistentvolume-binder-controller")).start()
    yield made
    made.stop()


@pytest.fixture
def place(storing: Cluster) -> str:
    """A namespace in the cluster of this module."""
    return storing.create_namespace()


@pytest_asyncio.fixture
async def driver(storing: Cluster) -> AsyncIterator[KubernetesDriver]:
    async with KubernetesDriver(kubeconfig.load([storing.kubeconfig])) as found:
        yield found


@pytest_asyncio.fixture
async def around(driver: KubernetesDriver) -> AsyncIterator[KubernetesSchedulingContext]:
    """What is read of the cluster, kept up to date."""
    informers = Informers(driver)
    made = KubernetesSchedulingContext(driver, informers)
    made.watch_pods(informers.of(Pod))
    async with running(*(informer.run() for informer in informers), *made.background_tasks()):
        await made.wait_synced()
        yield made


def apply(cluster: Cluster, *documents: Json) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))


def storage_class(name: str, provisioner: str) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer",
    }  # fmt: skip


def volume(name: str, kind: str, node: str) -> Json:
    term = {"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": kind,
            "local": {"path": "/data"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }  # fmt: skip


def claim(namespace: str, kind: str) -> Json:
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": kind,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }  # fmt: skip


def pod(namespace: str) -> Pod:
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    return decode(Pod, {"metadata": {"name": "p", "namespace": namespace}, "spec": {"volumes": volumes}})


def so(claim: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return claim()

    return holds


def at(*nodes: str) -> Any:
    return (tuple((NodeSelectorRequirement("host", "In", (node,)),) for node in nodes),)


async def test_priority_classes_are_installed(driver: KubernetesDriver) -> None:
    """All five, and a second start changes nothing; pods get their number from them."""
    await install_priority_classes(driver)
    before = {name: (await driver.get(PRIORITY_CLASS, name)).data for name in VALUES}
    await install_priority_classes(driver)

    assert {name: one["value"] for name, one in before.items()} == VALUES
    assert {name: (await driver.get(PRIORITY_CLASS, name)).data for name in VALUES} == before


async def test_priority_class_of_somebody_else_stays(driver: KubernetesDriver) -> None:
    """One that is there with another value keeps it."""
    with suppress(NotFound):
        await driver.delete(PRIORITY_CLASS, "build")
    await driver.create(PRIORITY_CLASS, Document({"metadata": {"name": "build"}, "value": 7}))

    await install_priority_classes(driver)

    assert (await driver.get(PRIORITY_CLASS, "build")).data["value"] == 7
    await driver.delete(PRIORITY_CLASS, "build")


async def test_parts_of_a_gpu_are_no_resource(storing: Cluster, place: str) -> None:
    """Kubernetes refuses nvidia.com/gpu: "0.5"; so a part is an annotation."""
    limits = {"limits": {"nvidia.com/gpu": "0.5"}}
    made = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "half", "namespace": place},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": limits}]},
    }  # fmt: skip
    with pytest.raises(ClusterError, match="must be an integer"):
        apply(storing, made)


async def test_volume_says_where_its_pod_may_go(
    storing: Cluster, place: str, around: KubernetesSchedulingContext
) -> None:
    """A claim that waits for its first pod may have any free volume; once it has one, its pod goes there."""
    apply(storing, storage_class("here", "kubernetes.io/no-provisioner"), claim(place, "here"))
    apply(storing, volume("here-1", "here", "n1"), volume("here-2", "here", "n2"))
    both = {at("n1", "n2"), at("n2", "n1")}
    await until(so(lambda: around.volume_constraints(pod(place)).node in both))

    node = await Store(around._driver).create(NodeObject(metadata=Metadata(name="n2", labels={"host": "n2"})))
    await until(so(lambda: around._nodes.get("n2") is not None))
    await around.bind_claims(pod(place), "n2")
    await Store(around._driver).delete(node)

    await until(so(lambda: around.volume_constraints(pod(place)).node == at("n2")))
    bound = await Store(around._driver).get(Claim, "data", place)
    assert bound.spec.volume_name == "here-2"


async def test_no_volume_on_that_node(storing: Cluster, place: str, around: KubernetesSchedulingContext) -> None:
    """A node that has none left is told so, and nothing was changed."""
    apply(storing, storage_class("there", "kubernetes.io/no-provisioner"), claim(place, "there"))
    apply(storing, volume("there-1", "there", "n1"))
    await until(so(lambda: around.volume_constraints(pod(place)).node == at("n1")))

    with pytest.raises(Unavailable, match="no free volume of storage class there is left on n2 for claim data"):
        await around.bind_claims(pod(place), "n2")

    assert around.volume_constraints(pod(place)).node == at("n1")


async def test_maker_of_volumes_learns_the_node(
    storing: Cluster, place: str, around: KubernetesSchedulingContext
) -> None:
    """Where volumes are made on demand, the claim says for which node; one that takes long is not asked for twice."""
    apply(storing, storage_class("made", "example.com/disks"), claim(place, "made"))
    await until(so(lambda: around.volume_constraints(pod(place)).hindrance == ""))

    with pytest.raises(Unavailable, match="has got no volume on n1 in 0 s"):
        await bind_claims(around._driver, around.storage, pod(place), Node("n1"), seconds=0)

    seen = await Store(around._driver).get(Claim, "data", place)
    assert seen.metadata.annotations[SELECTED_NODE] == "n1"
    chosen = (((NodeSelectorRequirement("", "In", ("n1",)),),),)
    await until(so(lambda: around.volume_constraints(pod(place)).node == chosen))


async def test_claim_that_is_missing_hinders_until_it_comes(
    storing: Cluster, place: str, around: KubernetesSchedulingContext
) -> None:
    """The pod waits with a sentence; when the claim comes, whoever listens hears that its namespace is other."""
    told = asyncio.Event()
    around.listen(lambda namespace: told.set() if namespace == place else None)
    assert (
        around.volume_constraints(pod(place)).hindrance == "volume claim data does not exist; create it and this starts"
    )

    apply(storing, storage_class("soon", "example.com/disks"), claim(place, "soon"))

    async with asyncio.timeout(30):
        await told.wait()
    await until(so(lambda: around.volume_constraints(pod(place)).hindrance == ""))


def pod_groups() -> Json:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "podgroups.scheduling.run.ai"},
        "spec": {
            "group": "scheduling.run.ai", "scope": "Namespaced",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "versions": [
                {"name": "v2alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": free}},
            ],
        },
    }  # fmt: skip


async def test_pod_groups_of_kai_say_how_many(storing: Cluster, driver: KubernetesDriver, place: str) -> None:
    """Where the cluster has KAI's pod groups, their minMember is the gang's minimum, and changes are heard."""
    await install(driver, [pod_groups()])
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": place}, "spec": {"minMember": 4},
    }  # fmt: skip
    apply(storing, group)
    informers = Informers(driver)
    around = KubernetesSchedulingContext(driver, informers)

    async with running(*(informer.run() for informer in informers), *around.background_tasks()):
        await around.wait_synced()
        assert around.min_available(place, "podgroup:g") == 4
        assert around.min_available(place, "podgroup:other") is None
        assert around.min_available(place, "g") is None
        apply(storing, {**group, "spec": {"minMember": 2}})
        await until(so(lambda: around.min_available(place, "podgroup:g") == 2))
