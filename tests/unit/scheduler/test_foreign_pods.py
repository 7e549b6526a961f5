"""Pods that other controllers create or other schedulers bind: how they are bound, charged and left running."""

from __future__ import annotations

from typing import Any

from aliquot import labels
from aliquot.api import Metadata, Namespace, Owner, Pod, decode
from aliquot.controllers.usage import UsageTotals
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.waiting import eventually


def gpu_pod(name: str, namespace: str = "runai-a", *, scheduler: str = "runai-scheduler", **more: Any) -> Pod:
    """A pod with a whole GPU, as another controller writes it."""
    owner = Owner(api_version="batch/v1", kind="Job", name=more.pop("job", name), uid="u", controller=True)
    limits = {"limits": {labels.GPU_RESOURCE: "1"}}
    spec = {"schedulerName": scheduler, "containers": [{"name": "main", "resources": limits}], **more.pop("spec", {})}
    return Pod(
        metadata=Metadata(name=name, namespace=namespace, owners=(owner,), **more),
        spec=decode(Pod, {"metadata": {"name": name}, "spec": spec}).spec,
    )


async def two_gpus(namespace: StoreNamespace) -> World:
    world = World(namespace)
    await world.node("n1", 2)
    await world.project("a", 0)
    await world.project("b", 2)
    return world


async def node_of(world: World, name: str, namespace: str = "runai-a") -> str:
    return (await world.store.get(Pod, name, namespace)).spec.node_name


async def test_pods_of_a_job_start_one_by_one(embedded: StoreNamespace) -> None:
    """Of three pods of one Job two fit, and start without the third."""
    world = await two_gpus(embedded)
    for index in range(3):
        await world.store.create(gpu_pod(f"j-{index}", job="j"))

    async def two_run() -> bool:
        return sorted([await node_of(world, f"j-{index}") for index in range(3)]) == ["", "n1", "n1"]

    async with world.scheduler():
        await eventually(two_run)


async def test_gang_of_another_controller_starts_together(embedded: StoreNamespace) -> None:
    """Two pods of a pod group of three wait until the third exists and all of them fit."""
    world = await two_gpus(embedded)
    await world.node("n2", 1)
    annotations = {"pod-group-name": "g", labels.MIN_AVAILABLE: "3"}
    for index in range(2):
        await world.store.create(gpu_pod(f"g-{index}", annotations=annotations))
    async with world.scheduler():
        await world.submit("x", project="b", pod=True)
        await world.until_bound("x", project="b")  # so a plan has included the gang too
        assert [await node_of(world, f"g-{index}") for index in range(2)] == ["", ""]
        await world.delete_pod("x", project="b")
        await world.store.create(gpu_pod("g-2", annotations=annotations))

        async def all_run() -> bool:
            return all([await node_of(world, f"g-{index}") for index in range(3)])

        await eventually(all_run)


async def test_label_charges_a_project_elsewhere(embedded: StoreNamespace) -> None:
    """In a namespace without a project the pod's own label names the project to charge, and so the pod may start."""
    world = await two_gpus(embedded)
    await world.store.create(Namespace(metadata=Metadata(name="lab")))
    await world.store.create(gpu_pod("ours", "lab", labels={"kai.scheduler/queue": "b"}))
    await world.store.create(gpu_pod("unlabelled", "lab"))
    async with world.scheduler():

        async def labelled_bound() -> bool:
            return await node_of(world, "ours", "lab") == "n1"

        await eventually(labelled_bound)
        assert await node_of(world, "unlabelled", "lab") == ""


async def test_pods_of_other_schedulers_are_never_evicted(embedded: StoreNamespace) -> None:
    """The owner of a quota reclaims its GPU from a borrower of ours, not from another scheduler's pod."""
    world = await two_gpus(embedded)
    theirs = gpu_pod("theirs", scheduler="default-scheduler", spec={"nodeName": "n1"})
    await world.store.create(theirs)
    async with world.platform():
        await world.submit("borrower")
        await world.until_running("borrower")
        await world.submit("owner", project="b")
        await world.until_running("owner", project="b")
        await world.until_refused("borrower")
    assert (await world.store.get(Pod, "theirs", "runai-a")).metadata.deleted is None


def test_usage_is_charged_as_the_scheduler_charges() -> None:
    """Pods of other schedulers are charged only by their label. A label counts where the namespace has no project."""
    totals = UsageTotals(lambda key: None)
    for namespace, owner in (("runai-a", "a"), ("lab", "")):
        created = Namespace(metadata=Metadata(name=namespace, labels={labels.PROJECT: owner} if owner else {}))
        totals.namespace_changed(("", namespace), None, created)
    on_n1: dict[str, Any] = {"spec": {"nodeName": "n1"}}
    queue_b = {"runai/queue": "b"}
    for pod in (
        gpu_pod("ours", **on_n1),
        gpu_pod("theirs", scheduler="default-scheduler", **on_n1),
        gpu_pod("elsewhere", "lab", labels=queue_b, **on_n1),
        gpu_pod("not-b", labels=queue_b, **on_n1),
    ):
        totals.pod_changed((pod.metadata.namespace, pod.metadata.name), None, pod)

    assert (totals.of_project("a").gpu, totals.of_project("b").gpu) == (2000, 1000)

    owned = Namespace(metadata=Metadata(name="lab", labels={labels.PROJECT: "a"}))
    totals.namespace_changed(("", "lab"), None, owned)
    assert (totals.of_project("a").gpu, totals.of_project("b").gpu) == (3000, 0)
