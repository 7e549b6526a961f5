"""Evictions on a real API server, and PodDisruptionBudgets that forbid them."""

from __future__ import annotations

import pytest

from aliquot.api import Pod
from aliquot.backends.kubernetes.unstructured_kinds import DISRUPTION_BUDGET
from aliquot.errors import Conflict, NotFound, Unavailable
from aliquot.store.driver import Document
from support.kubernetes.cluster import Cluster
from support.kubernetes.gpu_sharing import SharingHarness, sharing
from support.kubernetes.kinds import POD
from support.waiting import eventually

pytestmark = pytest.mark.kube


async def create_budget(harness: SharingHarness, namespace: str, allowed: int) -> None:
    """Creates a budget for the pod that allows so many disruptions. Its controller does not run here."""
    metadata = {"name": "keep", "namespace": namespace}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}}
    created = await harness.driver.create(DISRUPTION_BUDGET, Document({"metadata": metadata, "spec": spec}))
    counts = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    status = {"status": {**counts, "observedGeneration": created.metadata["generation"]}}
    await harness.driver.patch(DISRUPTION_BUDGET, "keep", namespace, status, status=True)


async def create_running_pod(harness: SharingHarness, namespace: str) -> Pod:
    pod = await harness.create_pod(namespace, "p")
    await harness.driver.bind("p", namespace, "nowhere", {})
    await harness.set_phase(pod)
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await harness.driver.patch(POD, "p", namespace, ready, status=True)
    return await harness.store.get(Pod, "p", namespace)


async def test_evict(cluster: Cluster, namespace: str) -> None:
    """A pod without a budget is evicted with the requested grace period."""
    async with sharing(cluster) as harness:
        pod = await create_running_pod(harness, namespace)
        assert await harness.binder.eviction_blocker(pod) == ""

        await harness.binder.evict(pod, 7)

        stopped = await harness.store.get(Pod, "p", namespace)
        assert stopped.metadata.deleted is not None
        assert stopped.metadata.grace_seconds == 7
        await harness.remove(pod)


async def test_budget_forbids(cluster: Cluster, namespace: str) -> None:
    """A pod that its budget protects is not evicted, and the reason quotes the budget."""
    async with sharing(cluster) as harness:
        pod = await create_running_pod(harness, namespace)
        await create_budget(harness, namespace, allowed=0)
        await eventually(lambda: harness.binder._budgets.covers(pod))

        assert (
            "The disruption budget keep needs 1 healthy pods and has 1 currently"
            in await harness.binder.eviction_blocker(pod)
        )
        with pytest.raises(Unavailable, match=r"must not be stopped now: The disruption budget keep needs 1"):
            await harness.binder.evict(pod, None)
        assert not await harness.is_deleted(pod)


async def test_budget_allows(cluster: Cluster, namespace: str) -> None:
    """A budget with disruptions left allows the eviction; asking for it changes nothing."""
    async with sharing(cluster) as harness:
        pod = await create_running_pod(harness, namespace)
        await create_budget(harness, namespace, allowed=1)
        await eventually(lambda: harness.binder._budgets.covers(pod))

        for _ in range(2):
            assert await harness.binder.eviction_blocker(pod) == ""
        assert not await harness.is_deleted(pod)
        await harness.binder.evict(pod, None)
        assert await harness.is_deleted(pod)


async def test_gone_already(cluster: Cluster, namespace: str) -> None:
    """A deleted pod cannot be evicted, and nothing blocks the eviction."""
    async with sharing(cluster) as harness:
        pod = await create_running_pod(harness, namespace)
        await harness.remove(pod)

        assert await harness.binder.eviction_blocker(pod) == ""
        with pytest.raises(NotFound):
            await harness.binder.evict(pod, None)


async def test_successor_is_not_evicted(cluster: Cluster, namespace: str) -> None:
    """An eviction means this pod, not a later one of the same name."""
    async with sharing(cluster) as harness:
        first = await create_running_pod(harness, namespace)
        await harness.remove(first)
        second = await create_running_pod(harness, namespace)

        with pytest.raises(Conflict):
            await harness.binder.evict(first, None)
        assert not await harness.is_deleted(second)
