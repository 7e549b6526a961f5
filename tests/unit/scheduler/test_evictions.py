"""An evicted pod gets a record, then an entry in the history, and is stopped once, also when the scheduler crashes."""

from __future__ import annotations

import time

import pytest

from aliquot import labels
from aliquot.errors import Conflict
from aliquot.scheduler.eviction_records import EvictionRecord, eviction_record_of, eviction_record_text
from aliquot.store.driver import AnyKind, Document
from support.scheduler.world import CrashingDriver, World
from support.stores.namespace import POD, StoreNamespace
from support.waiting import eventually

NEVER = 1 << 30  # writes


async def borrowed(namespace: StoreNamespace) -> World:
    """Two GPUs: project b has the quota, and project a has borrowed them for `old`, then `new`."""
    world = World(namespace)
    await world.node("n1", 2)
    await world.project("a", 0)
    await world.project("b", 2)
    async with world.platform():
        await world.submit("old")
        await world.until_running("old")
        await world.submit("new")
        await world.until_running("new")
    return world


async def submit_owner(world: World) -> None:
    await world.submit("owner", project="b")


async def test_borrower_is_evicted(embedded: StoreNamespace) -> None:
    """The owner of a quota reclaims its GPU from the newest borrower, which waits; the other borrower runs on."""
    world = await borrowed(embedded)
    before = await world.pod("old")
    async with world.platform():
        await submit_owner(world)
        await world.until_running("owner", project="b")
        await world.until_refused("new")
        after = await world.pod("old")
    assert before is not None
    assert after is not None
    assert after.metadata.uid == before.metadata.uid
    assert not (await world.workload("old")).status.interruptions


async def test_order_of_writes(embedded: StoreNamespace) -> None:
    """The record is on the pod and the interruption in the workload's history before the pod is deleted."""
    world = await borrowed(embedded)
    driver = CrashingDriver(embedded.driver, NEVER)
    async with world.platform(driver):
        await submit_owner(world)
        await world.until_running("owner", project="b")
    writes = [(verb, kind) for verb, kind, name in driver.written if name in ("new", "new-0-0")]
    assert writes[:3] == [("patch", "Pod"), ("patch", "Workload"), ("delete", "Pod")]


async def test_history(embedded: StoreNamespace) -> None:
    """The workload's history shows once why, for which workload and when it was stopped, and how much work was lost."""
    world = await borrowed(embedded)
    started = (await world.workload("new")).status.started_at
    async with world.platform():
        await submit_owner(world)
        await world.until_running("owner", project="b")
        await world.until_refused("new")
    status = (await world.workload("new")).status
    (stop,) = status.interruptions
    assert (stop.reason, stop.by, status.interruption_count) == ("reclaimed", "b/owner", 1)
    assert "b/owner" in stop.message
    assert "runai-b" not in stop.message
    assert started is not None
    assert 0 < stop.lost_seconds == pytest.approx(stop.at - started, abs=5)
    assert status.queued_at is not None
    assert status.queued_at >= stop.at
    assert status.run_seconds > 0


async def test_each_eviction_counts(embedded: StoreNamespace) -> None:
    """A workload that is evicted twice has two interruptions in its history."""
    world = await borrowed(embedded)
    async with world.platform():
        for round_ in (1, 2):
            await submit_owner(world)
            await world.until_running("owner", project="b")
            await world.until_refused("new")
            await world.store.delete(await world.workload("owner", "b"))
            await world.delete_pod("owner", "b")
            await world.until_running("new")
            status = (await world.workload("new")).status
            assert (len(status.interruptions), status.interruption_count) == (round_, round_)


@pytest.mark.parametrize("writes", range(8))
async def test_crash_between_any_two_writes(embedded: StoreNamespace, writes: int) -> None:
    """Wherever the scheduler crashes, the next one finishes the eviction, and nothing happens twice."""
    world = await borrowed(embedded)
    driver = CrashingDriver(embedded.driver, writes)
    async with world.platform(driver):
        await submit_owner(world)
        if writes < 4:  # record, history, deletion, nomination: after them the binding may be the last write
            await driver.until_crashed()
    async with world.platform():
        await world.until_running("owner", project="b")
        await world.until_refused("new")
        assert await world.bound_workloads() == {"old", "owner"}
    assert [len((await world.workload(name)).status.interruptions) for name in ("old", "new")] == [0, 1]


async def test_record_without_deletion(embedded: StoreNamespace) -> None:
    """A pod that has a record and was not deleted is stopped, even when no job needs its place any more."""
    world = await borrowed(embedded)
    text = eviction_record_text(EvictionRecord("reclaim", "b/owner", "reclaimed by b/owner", 1000.0))
    await embedded.driver.patch(
        POD, "new-0-0", "runai-a", {"metadata": {"annotations": {labels.EVICTION_RECORD: text}}}
    )
    before = await world.pod("new")
    assert before is not None
    async with world.platform():

        async def replaced() -> bool:
            pod = await world.pod("new")
            return pod is not None and pod.metadata.uid != before.metadata.uid and bool(pod.spec.node_name)

        await eventually(replaced)
    (stop,) = (await world.workload("new")).status.interruptions
    assert (stop.by, stop.at, stop.pod) == ("b/owner", 1000.0, before.metadata.uid)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"rule": "reclaim", "at": "soon"}'])
async def test_unreadable_record(embedded: StoreNamespace, text: str) -> None:
    """The scheduler did not write what it cannot read: no pod is stopped for it."""
    world = await borrowed(embedded)
    await embedded.driver.patch(
        POD, "old-0-0", "runai-a", {"metadata": {"annotations": {labels.EVICTION_RECORD: text}}}
    )
    async with world.platform():
        await submit_owner(world)
        await world.until_running("owner", project="b")
    pod = await world.pod("old")
    assert pod is not None
    assert eviction_record_of(pod) is None
    assert pod.metadata.deleted is None


async def test_conflict_on_the_workload(embedded: StoreNamespace) -> None:
    """A concurrent write of the workload's status costs a second attempt, and no interruption is lost."""
    world = await borrowed(embedded)

    class Contested(CrashingDriver):
        refused = 0

        async def patch(self, kind: AnyKind, name: str, *rest: object, **options: object) -> Document:
            if (kind.name, name) == ("Workload", "new") and "version" in options and not self.refused:
                self.refused += 1
                raise Conflict("another writer was faster")
            return await super().patch(kind, name, *rest, **options)

    driver = Contested(embedded.driver, NEVER)
    async with world.platform(driver):
        await submit_owner(world)
        await world.until_running("owner", project="b")
    assert driver.refused == 1
    assert len((await world.workload("new")).status.interruptions) == 1


async def test_pod_without_a_workload(embedded: StoreNamespace) -> None:
    """A pod that belongs to no workload can be evicted too."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 0)
    await world.project("b", 1)
    await world.submit("alone", pod=True)
    await world.store.delete(await world.workload("alone"))
    async with world.platform():
        await world.until_bound("alone")
        await submit_owner(world)
        await world.until_running("owner", project="b")
    assert await world.pod("alone") is None


async def test_restarts_before_younger_workloads(embedded: StoreNamespace) -> None:
    """An evicted workload keeps its age in the queue: it starts again before workloads that were submitted later."""
    world = await borrowed(embedded)
    created = (await world.workload("new")).metadata.created or 0

    async def a_second_later() -> bool:
        return time.time() >= created + 1

    await eventually(
        a_second_later
    )  # ages are whole seconds; at equal age the name decides, and junior comes before new
    async with world.platform():
        await world.submit("junior")
        await world.until_refused("junior")
        await submit_owner(world)
        await world.until_running("owner", project="b")
        await world.until_refused("new")
        await world.store.delete(await world.workload("owner", "b"))
        await world.delete_pod("owner", "b")
        await world.until_running("new")
        await world.until_refused("junior")


def test_reasons() -> None:
    """Each rule has one word in the history."""
    words = {
        rule: EvictionRecord(rule, "", "", 0).reason for rule in ("reclaim", "preempt", "stale-gang", "consolidate")
    }
    assert words == {"reclaim": "reclaimed", "preempt": "preempted", "stale-gang": "stale", "consolidate": "moved"}
    assert EvictionRecord("reclaim", "", "", 0, moved=True).reason == "moved"
