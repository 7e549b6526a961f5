"""Pods that say how many of them start together do so live."""

from __future__ import annotations

from dataclasses import replace

from aliquot import labels
from aliquot.api import Metadata, Pod
from aliquot.api.pod import Container, PodSpec
from aliquot.store.typed_store import Store
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.stores.running import until


def member(index: int, together: str) -> Pod:
    return Pod(
        metadata=Metadata(
            name=f"g-{index}",
            namespace="runai-a",
            labels={labels.WORKLOAD: "g"},
            annotations={labels.MIN_AVAILABLE: together, labels.GPU_FRACTION: "1"},
        ),
        spec=PodSpec(containers=(Container(name="main", image="x"),), scheduler_name=labels.SCHEDULER_NAMES[0]),
    )


async def places(store: Store) -> list[str]:
    return [
        pod.spec.node_name for pod in (await store.list(Pod, "runai-a")).items if pod.metadata.name.startswith("g-")
    ]


async def test_all_or_none(embedded: StoreNamespace) -> None:
    """Two of three wait although there is room; with the third all have their place."""
    world = World(embedded)
    await world.node("n1", 2)
    await world.node("n2", 2)
    await world.project("a", 4)
    async with world.scheduling():
        for index in range(2):
            await world.store.create(member(index, "3"))
        await world.submit("other", pod=True)  # comes later and is served: so they had their turn
        await world.bound("other")
        assert await places(world.store) == ["", ""]
        await world.store.create(member(2, "3"))

        async def all_placed() -> bool:
            return all(await places(world.store))

        await until(all_placed)


async def test_what_is_no_number_is_nothing(embedded: StoreNamespace) -> None:
    """The pod is scheduled like any other."""
    world = World(embedded)
    await world.node("n1", 2)
    await world.project("a", 4)
    strange = member(0, "many")
    await world.store.create(replace(strange, metadata=replace(strange.metadata, name="g-7")))
    async with world.scheduling():

        async def placed() -> bool:
            return await places(world.store) == ["n1"]

        await until(placed)
