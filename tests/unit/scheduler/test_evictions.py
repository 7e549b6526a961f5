"""Who is stopped for somebody else: noted, remembered, stopped once; whoever is killed meanwhile."""

from __future__ import annotations

import time

import pytest

from aliquot import labels
from aliquot.errors import Conflict
from aliquot.scheduler.eviction_records import EvictionRecord, eviction_record_of, eviction_record_text
from aliquot.store.driver import AnyKind, Document
from support.scheduler.world import Mortal, World
from support.stores.namespace import POD, StoreNamespace
from support.stores.running import until

NEVER = 1 << 30  # writes


async def lent(place: StoreNamespace) -> World:
    """Two GPUs: project b has the quota, and project a has borrowed them for `old`, then `new`."""
    world = World(place)
    await world.node("n1", 2)
    await world.project("a", 0)
    await world.project("b", 2)
    async with world.living():
        await world.submit("old")
        await world.runs("old")
        await world.submit("new")
        await world.runs("new")
    return world


async def owner_comes(world: World) -> None:
    await world.submit("owner", project="b")


async def test_borrower_makes_way(embedded: StoreNamespace) -> None:
    """The owner of a quota gets its GPU back from the newest borrower, who waits; the other one runs on."""
    world = await lent(embedded)
    before = await world.pod("old")
    async with world.living():
        await owner_comes(world)
        await world.runs("owner", project="b")
        await world.waits("new")
        after = await world.pod("old")
    assert before is not None
    assert after is not None
    assert after.metadata.uid == before.metadata.uid
    assert not (await world.workload("old")).status.interruptions


async def test_order_of_writes(embedded: StoreNamespace) -> None:
    """The notice is on the pod and the stop in the workload's history before the pod is deleted."""
    world = await lent(embedded)
    driver = Mortal(embedded.driver, NEVER)
    async with world.living(driver):  # type: ignore[arg-type]
        await owner_comes(world)
        await world.runs("owner", project="b")
    about = [(what, kind) for what, kind, name in driver.written if name in ("new", "new-0-0")]
    assert about[:3] == [("patch", "Pod"), ("patch", "Workload"), ("delete", "Pod")]


async def test_history(embedded: StoreNamespace) -> None:
    """The workload's history says why, for whom, when, and what it cost; once."""
    world = await lent(embedded)
    started = (await world.workload("new")).status.started_at
    async with world.living():
        await owner_comes(world)
        await world.runs("owner", project="b")
        await world.waits("new")
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


async def test_each_stop_counts(embedded: StoreNamespace) -> None:
    """Who is stopped twice has two stops in its history."""
    world = await lent(embedded)
    async with world.living():
        for round_ in (1, 2):
            await owner_comes(world)
            await world.runs("owner", project="b")
            await world.waits("new")
            await world.store.delete(await world.workload("owner", "b"))
            await world.gone("owner", "b")
            await world.runs("new")
            status = (await world.workload("new")).status
            assert (len(status.interruptions), status.interruption_count) == (round_, round_)


@pytest.mark.parametrize("writes", range(8))
async def test_killed_between_any_two_writes(embedded: StoreNamespace, writes: int) -> None:
    """Wherever the scheduler is killed, the next one finishes what it began, and nothing happens twice."""
    world = await lent(embedded)
    driver = Mortal(embedded.driver, writes)
    async with world.living(driver):  # type: ignore[arg-type]
        await owner_comes(world)
        if writes < 4:  # notice, history, deletion, promise: then the binding may be the last there is
            await driver.died()
    async with world.living():
        await world.runs("owner", project="b")
        await world.waits("new")
        assert await world.running() == {"old", "owner"}
    assert [len((await world.workload(name)).status.interruptions) for name in ("old", "new")] == [0, 1]


async def test_notice_without_deletion(embedded: StoreNamespace) -> None:
    """A pod that has its notice and was not deleted is stopped, also when nobody needs its place any more."""
    world = await lent(embedded)
    text = eviction_record_text(EvictionRecord("reclaim", "b/owner", "reclaimed by b/owner", 1000.0))
    await embedded.driver.patch(
        POD, "new-0-0", "runai-a", {"metadata": {"annotations": {labels.EVICTION_RECORD: text}}}
    )
    before = await world.pod("new")
    assert before is not None
    async with world.living():

        async def anew() -> bool:
            pod = await world.pod("new")
            return pod is not None and pod.metadata.uid != before.metadata.uid and bool(pod.spec.node_name)

        await until(anew)
    (stop,) = (await world.workload("new")).status.interruptions
    assert (stop.by, stop.at, stop.pod) == ("b/owner", 1000.0, before.metadata.uid)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"rule": "reclaim", "at": "soon"}'])
async def test_unreadable_notice(embedded: StoreNamespace, text: str) -> None:
    """What we cannot read we did not write: nobody is stopped for it."""
    world = await lent(embedded)
    await embedded.driver.patch(
        POD, "old-0-0", "runai-a", {"metadata": {"annotations": {labels.EVICTION_RECORD: text}}}
    )
    async with world.living():
        await owner_comes(world)
        await world.runs("owner", project="b")
    pod = await world.pod("old")
    assert pod is not None
    assert eviction_record_of(pod) is None
    assert pod.metadata.deleted is None


async def test_workload_changed_meanwhile(embedded: StoreNamespace) -> None:
    """Who writes the workload's status at the same moment costs a second try, and no stop is lost."""
    world = await lent(embedded)

    class Contested(Mortal):
        refused = 0

        async def patch(self, kind: AnyKind, name: str, *rest: object, **options: object) -> Document:
            if (kind.name, name) == ("Workload", "new") and "version" in options and not self.refused:
                self.refused += 1
                raise Conflict("somebody was faster")
            return await super().patch(kind, name, *rest, **options)

    driver = Contested(embedded.driver, NEVER)
    async with world.living(driver):  # type: ignore[arg-type]
        await owner_comes(world)
        await world.runs("owner", project="b")
    assert driver.refused == 1
    assert len((await world.workload("new")).status.interruptions) == 1


async def test_pod_of_nobody(embedded: StoreNamespace) -> None:
    """A pod that no workload made can be stopped too."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 0)
    await world.project("b", 1)
    await world.submit("alone", pod=True)
    await world.store.delete(await world.workload("alone"))
    async with world.living():
        await world.bound("alone")
        await owner_comes(world)
        await world.runs("owner", project="b")
    assert await world.pod("alone") is None


async def test_comes_back_before_younger_ones(embedded: StoreNamespace) -> None:
    """Who was stopped waits with the age of its workload: it starts again before whoever came after it."""
    world = await lent(embedded)
    created = (await world.workload("new")).metadata.created or 0

    async def later() -> bool:
        return time.time() >= created + 1

    await until(later)  # ages are whole seconds, and among equals the name would decide: the younger one's comes first
    async with world.living():
        await world.submit("junior")
        await world.waits("junior")
        await owner_comes(world)
        await world.runs("owner", project="b")
        await world.waits("new")
        await world.store.delete(await world.workload("owner", "b"))
        await world.gone("owner", "b")
        await world.runs("new")
        await world.waits("junior")


def test_reasons() -> None:
    """One word for each way to be stopped."""
    words = {
        rule: EvictionRecord(rule, "", "", 0).reason for rule in ("reclaim", "preempt", "stale-gang", "consolidate")
    }
    assert words == {"reclaim": "reclaimed", "preempt": "preempted", "stale-gang": "stale", "consolidate": "moved"}
    assert EvictionRecord("reclaim", "", "", 0, moved=True).reason == "moved"
