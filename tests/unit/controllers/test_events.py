"""The event recorder writes each event once, and nothing while nothing changes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from aliquot.api import KINDS, DeviceShare, Event, Metadata, Namespace, Owner, Pod, Refusal, Workload, shares_text
from aliquot.api.pod import (
    ContainerState,
    ContainerStatus,
    PodCondition,
    PodStatus,
    Running,
    Waiting,
)
from aliquot.api.workload import Interruption, PodCounts, WorkloadStatus
from aliquot.controllers.events import EVENT_SECONDS, EventFacts, EventRecorder, events_of_pod, events_of_workload
from aliquot.labels import DEVICES, EVICTION_RECORD, WORKLOAD
from aliquot.scheduler.eviction_records import EvictionRecord, eviction_record_text
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.objects import pod, workload
from support.stores.namespace import StoreNamespace
from support.stores.running import running
from support.waiting import eventually

_POD = KINDS.of(Pod)
SPACE = "runai-a"
BUSY = Refusal(step="allocate", code="enough-gpu", text="no node has room for 1 GPU now: 2 nodes with no GPU free")
OVER_QUOTA = Refusal(step="allocate", code="over-quota", text="project a holds 4 and asks for 1 more: over its quota")


def labelled_pod(node: str = "", shares: tuple[DeviceShare, ...] = (), state: ContainerState | None = None) -> Pod:
    """A pod with the label of its workload."""
    statuses = (ContainerStatus(name="main", state=state),) if state else ()
    phase = "Running" if state else "Pending"
    return pod(labels={WORKLOAD: "w"}, node=node, shares=shares, phase=phase, container_statuses=statuses)


def share(index: int, milli: int = 1000) -> DeviceShare:
    return DeviceShare(index=index, milli=milli)


def test_scheduled_names_node_and_devices() -> None:
    """The event of a binding names the node and the GPUs."""
    for shares, text in (
        ((), "placed on n1"),
        ((share(3),), "placed on n1: GPU 3"),
        ((share(0), share(5)), "placed on n1: GPUs 0, 5"),
        ((share(2, 300),), "placed on n1: 0.3 of GPU 2"),
    ):
        assert list(events_of_pod(labelled_pod("n1", shares))) == [EventFacts("Scheduled", text)]


def test_a_waiting_pod_has_no_events() -> None:
    """A pod of a workload that waits has no events of its own."""
    assert list(events_of_pod(labelled_pod())) == []


def test_a_pod_without_a_workload_is_unschedulable() -> None:
    """A pod without a workload has the event itself. Its key stays the same when only numbers change."""
    facts: list[EventFacts] = []
    for free in (1, 2):
        condition = PodCondition(
            type="PodScheduled", status="False", reason="Unschedulable", message=f"{free} GPUs free"
        )
        waiting = replace(labelled_pod(), status=PodStatus(conditions=(condition,)))
        assert list(events_of_pod(waiting)) == []  # the workload has the event
        facts += events_of_pod(replace(waiting, metadata=Metadata(name="w-0-0", namespace=SPACE)))
    assert [(event.reason, event.message) for event in facts] == [
        ("Unschedulable", "1 GPUs free"),
        ("Unschedulable", "2 GPUs free"),
    ]
    assert facts[0].key == facts[1].key


def test_a_pod_without_a_workload_is_evicted() -> None:
    """A pod without a workload has no history: its eviction record becomes the event."""
    record = eviction_record_text(EvictionRecord("reclaim", "b/x", "reclaimed by b/x", 5.0))
    evicted = replace(
        labelled_pod(), metadata=Metadata(name="w-0-0", namespace=SPACE, annotations={EVICTION_RECORD: record})
    )
    assert list(events_of_pod(evicted)) == [EventFacts("Evicted", "reclaimed by b/x", warning=True, at=5.0)]


def test_eviction_names_the_preemptor() -> None:
    """The event of an eviction names the workload it was for."""
    evicted = workload(
        status=WorkloadStatus(interruptions=(Interruption(at=5.0, reason="reclaimed", by="team-d/d-2"),))
    )
    assert [(event.reason, event.message) for event in events_of_workload(evicted)] == [
        ("Evicted", "stopped for team-d/d-2 (reclaimed)")
    ]


def test_failures_count_attempts() -> None:
    """The event of a failed attempt has the number of the attempt."""
    failed = workload(
        status=WorkloadStatus(phase="Pending", message="exit status 3", last_failed_pod="p2", pods=PodCounts(failed=2))
    )
    assert [event.message for event in events_of_workload(failed)] == ["exit status 3; attempt 2 of 7"]


# --- written to the store


@asynccontextmanager
async def recording(store: Store, now: float = 0.0) -> AsyncIterator[None]:
    informers = Informers(store.driver)
    recorder = EventRecorder(store, informers.of(Workload), informers.of(Pod), lambda: now or time.time())
    async with running(*(informer.run() for informer in informers), recorder.controller.run()):
        await informers.wait()
        yield


async def events(store: Store) -> dict[str, tuple[str, int]]:
    return {event.reason: (event.message, event.count) for event in (await store.list(Event, SPACE)).items}


async def world(embedded: StoreNamespace) -> tuple[Store, Workload]:
    store = Store(embedded.driver)
    await store.create(Namespace(metadata=Metadata(name=SPACE)))
    return store, await store.create(workload())


async def recorded(store: Store, reason: str, count: int = 1) -> None:
    async def exists() -> bool:
        return (await events(store)).get(reason, ("", 0))[1] >= count

    await eventually(exists)


async def refused(store: Store, seen: Workload, *refusals: Refusal) -> Workload:
    status = replace(seen.status, phase="Pending", refusals=refusals)
    return await store.update_status(replace(seen, status=status), seen=seen)


async def completed(store: Store, seen: Workload) -> None:
    """Completes the workload. Events are written in order, so every earlier event is written when this returns."""
    await store.update_status(replace(seen, status=replace(seen.status, phase="Completed", refusals=())), seen=seen)
    await recorded(store, "Completed")


async def test_the_events_of_a_pod(embedded: StoreNamespace) -> None:
    """A pod is scheduled and started. Both events are about the pod, and carry the uid of its workload."""
    store, owner = await world(embedded)
    wanted = labelled_pod()
    reference = Owner(api_version="aliquot.dev/v1", kind="Workload", name="w", uid=owner.metadata.uid)
    waiting = await store.create(replace(wanted, metadata=replace(wanted.metadata, owners=(reference,))))
    async with recording(store):
        change = {"metadata": {"annotations": {DEVICES: shares_text((share(1),))}}, "spec": {"nodeName": "n1"}}
        await store.driver.patch(_POD, "w-0-0", SPACE, change)
        await recorded(store, "Scheduled")
        placed = await store.get(Pod, "w-0-0", SPACE)
        status = labelled_pod("n1", state=ContainerState(running=Running(started_at=time.time()))).status
        await store.update_status(replace(placed, status=status), seen=placed)
        await recorded(store, "Started")
    assert await events(store) == {"Scheduled": ("placed on n1: GPU 1", 1), "Started": ("the job has started", 1)}
    selected = (await store.list(Event, SPACE, labels=f"aliquot.dev/workload-uid={owner.metadata.uid}")).items
    assert {event.involved_object.uid for event in selected} == {waiting.metadata.uid}


async def test_unschedulable_counts_reasons(embedded: StoreNamespace) -> None:
    """One event says why a job waits. It counts up for another reason, not for other numbers in the same one."""
    store, seen = await world(embedded)
    async with recording(store):
        seen = await refused(store, seen, BUSY)
        await recorded(store, "Unschedulable")
        for free in (1, 2, 3):
            seen = await refused(store, seen, replace(BUSY, text=f"now {free} GPUs free"))
        seen = await refused(store, seen, OVER_QUOTA)
        await recorded(store, "Unschedulable", 2)
        await completed(store, seen)
    assert (await events(store))["Unschedulable"] == (OVER_QUOTA.text, 2)
    assert len((await store.list(Event, SPACE)).items) == 2


async def test_nothing_is_written_while_nothing_happens(embedded: StoreNamespace) -> None:
    """A job that waits has one event, however long it waits."""
    store, seen = await world(embedded)
    async with recording(store):
        seen = await refused(store, seen, BUSY)
        await recorded(store, "Unschedulable")
        (before,) = (await store.list(Event, SPACE)).items
        for wait in range(1, 20):
            status = replace(seen.status, wait_seconds=float(wait))
            seen = await store.update_status(replace(seen, status=status), seen=seen)
        await completed(store, seen)
    assert before in (await store.list(Event, SPACE)).items


async def test_a_restart_repeats_nothing(embedded: StoreNamespace) -> None:
    """After a restart no event is written twice, and missed events are written."""
    store, seen = await world(embedded)
    async with recording(store):
        seen = await refused(store, seen, BUSY)
        await recorded(store, "Unschedulable")
    stop = Interruption(at=time.time(), reason="reclaimed", by="team-d/d-2")
    seen = await store.update_status(replace(seen, status=replace(seen.status, interruptions=(stop,))), seen=seen)
    for _ in range(2):
        async with recording(store):
            await recorded(store, "Evicted")
    assert {reason: count for reason, (_, count) in (await events(store)).items()} == {"Unschedulable": 1, "Evicted": 1}


async def test_no_events_for_old_objects(embedded: StoreNamespace) -> None:
    """The events of objects older than an hour have expired: only new ones are written."""
    store, seen = await world(embedded)
    seen = await refused(store, seen, BUSY)
    async with recording(store, now=time.time() + EVENT_SECONDS + 60):
        await completed(store, seen)
    assert set(await events(store)) == {"Completed"}


async def test_a_crash_loop_counts_up(embedded: StoreNamespace) -> None:
    """A container that crashes again and again has one event that counts up."""
    store, _ = await world(embedded)
    seen = await store.create(labelled_pod())
    async with recording(store):
        for restarts in (1, 2, 3):
            waits = ContainerState(waiting=Waiting(reason="CrashLoopBackOff", message=f"back-off {restarts}"))
            container = ContainerStatus(name="main", state=waits, restart_count=restarts)
            status = replace(seen.status, container_statuses=(container,))
            seen = await store.update_status(replace(seen, status=status), seen=seen)
            await recorded(store, "CrashLoopBackOff", restarts)
    assert await events(store) == {"CrashLoopBackOff": ("back-off 3", 3)}
