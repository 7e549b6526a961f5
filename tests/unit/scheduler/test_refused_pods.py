"""A pod that its node refuses, because its device is no longer free, is replaced and is no failure of the job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from aliquot.api import Namespace, Pod, Workload
from aliquot.api.pod import PodStatus
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.controllers.workloads import WorkloadReconciler
from aliquot.errors import NotFound
from aliquot.scheduler.loop import Scheduler
from aliquot.store.informer import Informers, Key
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.stores.running import running

REFUSED = "UnexpectedAdmissionError"


class RefusingNode:
    """A kubelet that refuses so many pods and runs the others."""

    def __init__(self, world: World, informers: Informers, times: int) -> None:
        self._store, self._left = world.store, times
        self.refused: set[str] = set()
        self.controller = Controller("node", self._reconcile)
        self.controller.watch(informers.of(Pod))

    async def _reconcile(self, key: Key) -> None:
        try:
            pod = await self._store.get(Pod, key[1], key[0])
        except NotFound:
            return
        if not pod.spec.node_name or pod.status.phase:
            return
        status = PodStatus(phase="Running", start_time=1.0)
        if self._left:
            self._left -= 1
            self.refused.add(pod.metadata.uid)
            status = PodStatus(phase="Failed", reason=REFUSED, message="GPU 0 is not free")
        await self._store.update_status(replace(pod, status=status), seen=pod)


@asynccontextmanager
async def platform_with_refusing_node(world: World, times: int) -> AsyncIterator[RefusingNode]:
    informers = Informers(world.store.driver)
    node = RefusingNode(world, informers, times)
    scheduler = Scheduler(world.store, informers)
    workloads = WorkloadReconciler(world.store, informers.of(Workload), informers.of(Pod), informers.of(Namespace))
    loops = (scheduler.run(), workloads.controller.run(), node.controller.run())
    async with running(*(informer.run() for informer in informers), *loops):
        yield node


async def test_refusals_do_not_count(embedded: StoreNamespace) -> None:
    """A job that may not fail even once still starts after its node refused three of its pods."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 1)
    await world.submit("job", backoff_limit=0)
    async with platform_with_refusing_node(world, times=3) as node:
        await world.until_running("job")
    status = (await world.workload("job")).status
    assert len(node.refused) == 3
    assert (status.pods.failed, status.restarts, status.last_failed_pod) == (0, 0, "")
