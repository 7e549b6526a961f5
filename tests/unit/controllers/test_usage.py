"""The usage controller keeps the status of projects and departments true, and writes only what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aliquot import labels
from aliquot.api import KINDS, Amounts, Department, Metadata, Namespace, Pod, Project
from aliquot.api.pod import Container, PodSpec, Resources
from aliquot.controllers.usage import UsageReconciler
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.stores.namespace import POD, StoreNamespace
from support.stores.running import running
from support.waiting import eventually

_PROJECT = KINDS.of(Project)
SPACE = "runai-a"
NOTHING = Amounts(gpu=0, cpu=0, memory=0)


async def world(embedded: StoreNamespace) -> Store:
    store = Store(embedded.driver)
    await store.create(Department(metadata=Metadata(name="default")))
    await store.create(Project(metadata=Metadata(name="a")))
    await store.create(Project(metadata=Metadata(name="idle")))
    await store.create(Namespace(metadata=Metadata(name=SPACE, labels={labels.PROJECT: "a"})))
    return store


async def create_pod(store: Store, name: str, fraction: str) -> None:
    container = Container(name="main", image="x", resources=Resources(requests={"cpu": "2", "memory": "1Ki"}))
    metadata = Metadata(name=name, namespace=SPACE, annotations={labels.GPU_FRACTION: fraction})
    await store.create(Pod(metadata=metadata, spec=PodSpec(containers=(container,))))


async def place_on(store: Store, name: str) -> None:
    await store.driver.patch(POD, name, SPACE, {"spec": {"nodeName": "n1"}})


@asynccontextmanager
async def counting(store: Store) -> AsyncIterator[None]:
    informers = Informers(store.driver)
    usage = UsageReconciler(store, informers)
    async with running(*(informer.run() for informer in informers), usage.run()):
        yield


async def reaches(store: Store, allocated: Amounts, requested: Amounts) -> None:
    """Until the status of project and department both have these amounts."""

    async def both() -> bool:
        project, department = await store.get(Project, "a"), await store.get(Department, "default")
        return all(
            (status.allocated, status.requested) == (allocated, requested)
            for status in (project.status, department.status)
        )

    await eventually(both)


def amounts(gpu: int, pods: int) -> Amounts:
    return Amounts(gpu=gpu, cpu=2000 * pods, memory=1024 * pods)


async def test_the_status_follows_the_pods(embedded: StoreNamespace) -> None:
    """A pod is requested when it is created, allocated when it is bound, and neither when it is gone."""
    store = await world(embedded)
    async with counting(store):
        await create_pod(store, "x", "0.5")
        await reaches(store, NOTHING, amounts(500, 1))
        await place_on(store, "x")
        await create_pod(store, "y", "0.3")
        await reaches(store, amounts(500, 1), amounts(800, 2))
        for name in ("x", "y"):
            await store.driver.delete(POD, name, SPACE, grace_seconds=0)
        await reaches(store, NOTHING, NOTHING)
    assert (await store.get(Department, "default")).status.projects == 2


async def test_it_is_true_after_a_restart(embedded: StoreNamespace) -> None:
    """Changes while the controller did not run are counted at its next start."""
    store = await world(embedded)
    async with counting(store):
        await create_pod(store, "x", "0.5")
        await reaches(store, NOTHING, amounts(500, 1))
    await place_on(store, "x")
    await create_pod(store, "y", "0.3")
    async with counting(store):
        await reaches(store, amounts(500, 1), amounts(800, 2))


async def test_a_foreign_status_is_put_right(embedded: StoreNamespace) -> None:
    """Wrong numbers that another writer wrote are corrected."""
    store = await world(embedded)
    async with counting(store):
        await create_pod(store, "x", "0.5")
        await reaches(store, NOTHING, amounts(500, 1))
        wrong = {"status": {"allocated": {"gpu": 7}}}
        await store.driver.patch(_PROJECT, "a", "", wrong, status=True)
        await reaches(store, NOTHING, amounts(500, 1))


async def test_only_what_changed_is_written(embedded: StoreNamespace) -> None:
    """A change of a pod writes only its own project, and only if an amount changes."""
    store = await world(embedded)
    async with counting(store):
        await create_pod(store, "x", "0.5")
        await reaches(store, NOTHING, amounts(500, 1))

        async def idle_is_written() -> bool:
            return (await store.get(Project, "idle")).status.allocated == NOTHING

        await eventually(idle_is_written)
        start = (await store.list(Project)).version
        idle = await store.get(Project, "idle")
        for number in range(10):
            await store.driver.patch(POD, "x", SPACE, {"metadata": {"labels": {"number": str(number)}}})
        await place_on(store, "x")
        await reaches(store, amounts(500, 1), amounts(500, 1))
        written = []
        async with asyncio.timeout(30):
            async for change in store.driver.watch(_PROJECT, version=start):
                assert change.document is not None
                written.append(change.document.name)
                if change.document.data["status"]["allocated"]["gpu"]:
                    break
        assert await store.get(Project, "idle") == idle
    assert written == ["a"]
