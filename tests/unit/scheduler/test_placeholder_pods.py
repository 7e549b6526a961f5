"""Pods that hold a device on behalf of the pods that share it: the sharing pods are counted, the placeholder is not."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot import labels
from aliquot.api import Metadata, Namespace, Pod, decode
from aliquot.controllers.usage import UsageTotals
from aliquot.planner import TaskState
from aliquot.scheduler.cache import SchedulerCache
from aliquot.scheduler.device_accounting import device_indices
from aliquot.scheduler.scheduling_context import SchedulingContext
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.stores.running import running
from support.waiting import eventually


class PlaceholderContext(SchedulingContext):
    """Takes the pods of namespace `held` for placeholders."""

    def is_placeholder(self, pod: Pod) -> bool:
        return pod.metadata.namespace == "held"

    def held_device(self, pod: Pod) -> int | None:
        return next(iter(device_indices(pod) or ()), None)


def gpu_pod(name: str, namespace: str, devices: str = '[{"index":0,"milli":500}]') -> Pod:
    limits = {"limits": {labels.GPU_RESOURCE: "1"}}
    data: dict[str, Any] = {
        "metadata": {"name": name, "namespace": namespace, "annotations": {labels.DEVICES: devices}},
        "spec": {"nodeName": "n1", "schedulerName": "aliquot", "containers": [{"name": "c", "resources": limits}]},
        "status": {"phase": "Running"},
    }
    return decode(Pod, data)


@pytest.mark.parametrize("devices", ['[{"index":0,"milli":500}]', "unreadable"])
async def test_device_is_released_when_the_last_sharing_pod_ends(devices: str) -> None:
    """While pods share the device only they are jobs. Afterwards the placeholder is one that is being released."""
    driver = MemoryDriver()
    store, informers = Store(driver), Informers(driver)
    cache = SchedulerCache(informers, lambda: None, PlaceholderContext())

    def states() -> dict[str, list[TaskState]]:
        return {job.name: [task.state for task in job.tasks] for job in cache.snapshot(0).jobs}

    async def shows(expected: dict[str, list[TaskState]]) -> None:
        async def as_expected() -> bool:
            return states() == expected

        await eventually(as_expected)

    released = {"held/placeholder": [TaskState.RELEASING]}
    readable = devices != "unreadable"
    for name in ("held", "runai-a"):
        await store.create(Namespace(metadata=Metadata(name=name)))
    async with running(*(informer.run() for informer in informers)):
        await store.create(gpu_pod("placeholder", "held", devices))
        await shows(released)
        sharing = await store.create(gpu_pod("sharing", "runai-a"))
        # A placeholder whose device cannot be read is never in use.
        await shows({"runai-a/sharing": [TaskState.RUNNING]} | ({} if readable else released))
        await store.delete(sharing, grace_seconds=0)
        await shows(released)


def test_usage_counts_only_the_sharing_pods() -> None:
    """A project is charged for its parts of a GPU, and no project for the placeholder."""
    totals = UsageTotals(lambda key: None, PlaceholderContext())
    for namespace in ("held", "runai-a"):
        created = Namespace(metadata=Metadata(name=namespace, labels={labels.PROJECT: "a"}))
        totals.namespace_changed(("", namespace), None, created)
        pod = gpu_pod("p", namespace)
        totals.pod_changed((namespace, "p"), None, pod)
    assert totals.of_project("a").gpu == 1000
