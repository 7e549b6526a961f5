"""Pods that others made or placed, beside our own: they are placed, charged and left alone as they should be."""

from __future__ import annotations

from typing import Any

from aliquot import labels
from aliquot.api import Metadata, Namespace, Owner, Pod, decode
from aliquot.controllers.usage import UsageTotals
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.stores.running import until


def gpu_pod(name: str, namespace: str = "runai-a", *, scheduler: str = "runai-scheduler", **more: Any) -> Pod:
    """One with a whole GPU, as somebody else's controller would write it."""
    owner = Owner(api_version="batch/v1", kind="Job", name=more.pop("job", name), uid="u", controller=True)
    limits = {"limits": {labels.GPU_RESOURCE: "1"}}
    spec = {"schedulerName": scheduler, "containers": [{"name": "main", "resources": limits}], **more.pop("spec", {})}
    return Pod(
        metadata=Metadata(name=name, namespace=namespace, owners=(owner,), **more),
        spec=decode(Pod, {"metadata": {"name": name}, "spec": spec}).spec,
    )


async def two_gpus(place: StoreNamespace) -> World:
    world = World(place)
    await world.node("n1", 2)
    await world.project("a", 0)
    await world.project("b", 2)
    return world


async def place_of(world: World, name: str, namespace: str = "runai-a") -> str:
    return (await world.store.get(Pod, name, namespace)).spec.node_name


async def test_pods_of_a_job_start_one_by_one(embedded: StoreNamespace) -> None:
    """Of three pods of one Job two find room, and do not wait for the third."""
    world = await two_gpus(embedded)
    for index in range(3):
        await world.store.create(gpu_pod(f"j-{index}", job="j"))

    async def two_run() -> bool:
        return sorted([await place_of(world, f"j-{index}") for index in range(3)]) == ["", "n1", "n1"]

    async with world.scheduling():
        await until(two_run)


async def test_gang_of_others_starts_together_or_not(embedded: StoreNamespace) -> None:
    """Two pods of a pod group of three wait until the third is there and all have room."""
    world = await two_gpus(embedded)
    await world.node("n2", 1)
    marks = {"pod-group-name": "g", labels.MIN_AVAILABLE: "3"}
    for index in range(2):
        await world.store.create(gpu_pod(f"g-{index}", annotations=marks))
    async with world.scheduling():
        await world.submit("x", project="b", pod=True)
        await world.bound("x", project="b")  # so the scheduler has looked at the gang too
        assert [await place_of(world, f"g-{index}") for index in range(2)] == ["", ""]
        await world.gone("x", project="b")
        await world.store.create(gpu_pod("g-2", annotations=marks))

        async def all_run() -> bool:
            return all([await place_of(world, f"g-{index}") for index in range(3)])

        await until(all_run)


async def test_label_charges_a_project_elsewhere(embedded: StoreNamespace) -> None:
    """In a namespace of no project the pod's own label says who pays, and so it may start."""
    world = await two_gpus(embedded)
    await world.store.create(Namespace(metadata=Metadata(name="lab")))
    await world.store.create(gpu_pod("ours", "lab", labels={"kai.scheduler/queue": "b"}))
    await world.store.create(gpu_pod("nobodys", "lab"))
    async with world.scheduling():

        async def placed() -> bool:
            return await place_of(world, "ours", "lab") == "n1"

        await until(placed)
        assert await place_of(world, "nobodys", "lab") == ""


async def test_what_others_placed_is_never_stopped(embedded: StoreNamespace) -> None:
    """The owner of a quota gets its GPU from our borrower, not from another scheduler's pod."""
    world = await two_gpus(embedded)
    theirs = gpu_pod("theirs", scheduler="default-scheduler", spec={"nodeName": "n1"})
    await world.store.create(theirs)
    async with world.living():
        await world.submit("borrower")
        await world.runs("borrower")
        await world.submit("owner", project="b")
        await world.runs("owner", project="b")
        await world.waits("borrower")
    assert (await world.store.get(Pod, "theirs", "runai-a")).metadata.deleted is None


def test_books_charge_as_the_scheduler_does() -> None:
    """Other schedulers' pods are nobody's unless they say whose; a label counts where the namespace is nobody's."""
    totals = UsageTotals(lambda place: None)
    for namespace, owner in (("runai-a", "a"), ("lab", "")):
        found = Namespace(metadata=Metadata(name=namespace, labels={labels.PROJECT: owner} if owner else {}))
        totals.namespace_changed(("", namespace), None, found)
    on_n1 = {"spec": {"nodeName": "n1"}}
    queue_b = {"runai/queue": "b"}
    for pod in (
        gpu_pod("ours", **on_n1),
        gpu_pod("theirs", scheduler="default-scheduler", **on_n1),
        gpu_pod("elsewhere", "lab", labels=queue_b, **on_n1),
        gpu_pod("not-b", labels=queue_b, **on_n1),
    ):
        totals.pod_changed((pod.metadata.namespace, pod.metadata.name), None, pod)

    assert (totals.of_project("a").gpu, totals.of_project("b").gpu) == (2000, 1000)

    given = Namespace(metadata=Metadata(name="lab", labels={labels.PROJECT: "a"}))
    totals.namespace_changed(("", "lab"), None, given)
    assert (totals.of_project("a").gpu, totals.of_project("b").gpu) == (3000, 0)
