"""Pods with a minimum start together, in the live scheduler."""

from __future__ import annotations

from dataclasses import replace

from aliquot import labels
from aliquot.api import Metadata, Pod
from aliquot.api.pod import Container, PodSpec
from aliquot.store.typed_store import Store
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.waiting import eventually


def member(index: int, min_available: str) -> Pod:
    return Pod(
        metadata=Metadata(
            name=f"g-{index}",
            namespace="runai-a",
            labels={labels.WORKLOAD: "g"},
            annotations={labels.MIN_AVAILABLE: min_available, labels.GPU_FRACTION: "1"},
        ),
        spec=PodSpec(containers=(Container(name="main", image="x"),), scheduler_name=labels.SCHEDULER_NAMES[0]),
    )


async def nodes_of_members(store: Store) -> list[str]:
    return [
        pod.spec.node_name for pod in (await store.list(Pod, "runai-a")).items if pod.metadata.name.startswith("g-")
    ]


async def test_all_or_none(embedded: StoreNamespace) -> None:
    """Two of three wait although they would fit; with the third all of them are bound."""
    world = World(embedded)
    await world.node("n1", 2)
    await world.node("n2", 2)
    await world.project("a", 4)
    async with world.scheduler():
        for index in range(2):
            await world.store.create(member(index, "3"))
        await world.submit("other", pod=True)  # submitted later and bound, so a plan has included the gang
        await world.until_bound("other")
        assert await nodes_of_members(world.store) == ["", ""]
        await world.store.create(member(2, "3"))

        async def all_bound() -> bool:
            return all(await nodes_of_members(world.store))

        await eventually(all_bound)


async def test_minimum_that_is_not_a_number(embedded: StoreNamespace) -> None:
    """The annotation is ignored, and the pod is scheduled like any other."""
    world = World(embedded)
    await world.node("n1", 2)
    await world.project("a", 4)
    unreadable = member(0, "many")
    await world.store.create(replace(unreadable, metadata=replace(unreadable.metadata, name="g-7")))
    async with world.scheduler():

        async def bound() -> bool:
            return await nodes_of_members(world.store) == ["n1"]

        await eventually(bound)
