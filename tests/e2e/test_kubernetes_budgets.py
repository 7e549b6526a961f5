"""Stops on a real API server, and disruption budgets that forbid them."""

from __future__ import annotations

import pytest

from aliquot.api import Pod
from aliquot.backends.kubernetes.unstructured_kinds import DISRUPTION_BUDGET
from aliquot.errors import Conflict, NotFound, Unavailable
from aliquot.store.driver import Document
from support.kubernetes.cluster import Cluster
from support.kubernetes.gpu_sharing import SharingHarness, sharing
from support.kubernetes.kinds import POD

pytestmark = pytest.mark.kube


async def budget(harness: SharingHarness, namespace: str, allowed: int) -> None:
    """One that is about the pod, and lets so many go; its controller, which counts, does not run here."""
    place = {"name": "keep", "namespace": namespace}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}}
    made = await harness.driver.create(DISRUPTION_BUDGET, Document({"metadata": place, "spec": spec}))
    counts = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    status = {"status": {**counts, "observedGeneration": made.metadata["generation"]}}
    await harness.driver.patch(DISRUPTION_BUDGET, "keep", namespace, status, status=True)


async def runs(harness: SharingHarness, namespace: str) -> Pod:
    pod = await harness.create_pod(namespace, "p")
    await harness.driver.bind("p", namespace, "nowhere", {})
    await harness.set_phase(pod)
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await harness.driver.patch(POD, "p", namespace, ready, status=True)
    return await harness.store.get(Pod, "p", namespace)


async def test_stop(cluster: Cluster, namespace: str) -> None:
    """A pod that no budget is about is stopped, with the grace that was asked for."""
    async with sharing(cluster) as harness:
        pod = await runs(harness, namespace)
        assert await harness.binder.eviction_blocker(pod) == ""

        await harness.binder.evict(pod, 7)

        stopped = await harness.store.get(Pod, "p", namespace)
        assert stopped.metadata.deleted is not None
        assert stopped.metadata.grace_seconds == 7
        await harness.remove(pod)


async def test_budget_forbids(cluster: Cluster, namespace: str) -> None:
    """A pod that its budget keeps is not stopped, and the reason has the budget's own words."""
    async with sharing(cluster) as harness:
        pod = await runs(harness, namespace)
        await budget(harness, namespace, allowed=0)
        await harness.wait_for(lambda: harness.binder._budgets.covers(pod))

        assert (
            "The disruption budget keep needs 1 healthy pods and has 1 currently"
            in await harness.binder.eviction_blocker(pod)
        )
        with pytest.raises(Unavailable, match=r"must not be stopped now: The disruption budget keep needs 1"):
            await harness.binder.evict(pod, None)
        assert not await harness.is_deleted(pod)


async def test_budget_allows(cluster: Cluster, namespace: str) -> None:
    """A budget with room lets a pod go, and to ask changes nothing."""
    async with sharing(cluster) as harness:
        pod = await runs(harness, namespace)
        await budget(harness, namespace, allowed=1)
        await harness.wait_for(lambda: harness.binder._budgets.covers(pod))

        for _ in range(2):
            assert await harness.binder.eviction_blocker(pod) == ""
        assert not await harness.is_deleted(pod)
        await harness.binder.evict(pod, None)
        assert await harness.is_deleted(pod)


async def test_gone_already(cluster: Cluster, namespace: str) -> None:
    """A pod that is gone cannot be stopped, and nothing speaks against it."""
    async with sharing(cluster) as harness:
        pod = await runs(harness, namespace)
        await harness.remove(pod)

        assert await harness.binder.eviction_blocker(pod) == ""
        with pytest.raises(NotFound):
            await harness.binder.evict(pod, None)


async def test_successor_is_not_stopped(cluster: Cluster, namespace: str) -> None:
    """A stop means this very pod, not the next one of its name."""
    async with sharing(cluster) as harness:
        first = await runs(harness, namespace)
        await harness.remove(first)
        second = await runs(harness, namespace)

        with pytest.raises(Conflict):
            await harness.binder.evict(first, None)
        assert not await harness.is_deleted(second)
