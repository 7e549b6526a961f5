"""What happened is written down once, and what does not change costs nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from aliquot.api import KINDS, DeviceShare, Event, Metadata, Namespace, Owner, Pod, Refusal, Workload, shares_text
from aliquot.api.pod import (
    Container,
    ContainerState,
    ContainerStatus,
    PodCondition,
    PodSpec,
    PodStatus,
    Running,
    Waiting,
)
from aliquot.api.workload import Interruption, PodCounts, WorkloadSpec, WorkloadStatus
from aliquot.controllers.events import EVENT_SECONDS, EventFacts, EventRecorder, events_of_pod, events_of_workload
from aliquot.labels import DEVICES, EVICTION_RECORD, WORKLOAD
from aliquot.scheduler.eviction_records import EvictionRecord, eviction_record_text
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.stores.namespace import StoreNamespace
from support.stores.running import running, until

_POD = KINDS.of(Pod)
SPACE = "runai-a"
BUSY = Refusal(step="allocate", code="enough-gpu", text="1 GPU fits on no node now (2 nodes with 0 GPUs free)")
POOR = Refusal(step="allocate", code="over-quota", text="project a holds 4 and asks for 1 more: over its quota")


def workload(**status: object) -> Workload:
    place = Metadata(name="w", namespace=SPACE)
    return Workload(metadata=place, spec=WorkloadSpec(image="python"), status=WorkloadStatus(**status))  # type: ignore[arg-type]


def pod(node: str = "", shares: tuple[DeviceShare, ...] = (), state: ContainerState | None = None) -> Pod:
    marks = {DEVICES: shares_text(shares)} if shares else {}
    containers = (ContainerStatus(name="main", state=state),) if state else ()
    return Pod(
        metadata=Metadata(name="w-0-0", namespace=SPACE, labels={WORKLOAD: "w"}, annotations=marks),
        spec=PodSpec(node_name=node, containers=(Container(name="main", image="python"),)),
        status=PodStatus(phase="Running" if state else "Pending", container_statuses=containers),
    )


def share(index: int, milli: int = 1000) -> DeviceShare:
    return DeviceShare(index=index, milli=milli)


def test_placing_names_node_and_devices() -> None:
    """Where a pod went, and which GPUs it got."""
    for shares, text in (
        ((), "placed on n1"),
        ((share(3),), "placed on n1: GPU 3"),
        ((share(0), share(5)), "placed on n1: GPUs 0, 5"),
        ((share(2, 300),), "placed on n1: 0.3 of GPU 2"),
    ):
        assert list(events_of_pod(pod("n1", shares))) == [EventFacts("Scheduled", text)]


def test_a_waiting_pod_has_no_story() -> None:
    """Nothing happened to it yet."""
    assert list(events_of_pod(pod())) == []


def test_a_pod_of_nobody_says_why_it_waits() -> None:
    """Where no workload tells it, and as one reason however the numbers change."""
    notes = []
    for free in (1, 2):
        told = PodCondition(type="PodScheduled", status="False", reason="Unschedulable", message=f"{free} GPUs free")
        waits = replace(pod(), status=PodStatus(conditions=(told,)))
        assert list(events_of_pod(waits)) == []  # its workload tells it
        notes += events_of_pod(replace(waits, metadata=Metadata(name="w-0-0", namespace=SPACE)))
    assert [(note.reason, note.message) for note in notes] == [
        ("Unschedulable", "1 GPUs free"),
        ("Unschedulable", "2 GPUs free"),
    ]
    assert notes[0].key == notes[1].key


def test_a_pod_of_nobody_says_for_whom_it_was_stopped() -> None:
    """It has no history; what is written on it is told as long as events are kept."""
    notice = eviction_record_text(EvictionRecord("reclaim", "b/x", "reclaimed by b/x", 5.0))
    found = replace(pod(), metadata=Metadata(name="w-0-0", namespace=SPACE, annotations={EVICTION_RECORD: notice}))
    assert list(events_of_pod(found)) == [EventFacts("Evicted", "reclaimed by b/x", warning=True, at=5.0)]


def test_eviction_says_for_whom() -> None:
    """Whoever stops a workload for another writes it to its status, and it is told."""
    found = workload(interruptions=(Interruption(at=5.0, reason="reclaimed", by="team-d/d-2"),))
    assert [(note.reason, note.message) for note in events_of_workload(found)] == [
        ("Evicted", "stopped for team-d/d-2 (reclaimed)")
    ]


def test_failures_count_attempts() -> None:
    """Each failed attempt is told with its number."""
    found = workload(phase="Pending", message="exit status 3", last_failed_pod="p2", pods=PodCounts(failed=2))
    assert [note.message for note in events_of_workload(found)] == ["exit status 3; attempt 2 of 7"]


# --- written down


@asynccontextmanager
async def telling(store: Store, now: float = 0.0) -> AsyncIterator[None]:
    informers = Informers(store.driver)
    chronicle = EventRecorder(store, informers.of(Workload), informers.of(Pod), lambda: now or time.time())
    async with running(*(informer.run() for informer in informers), chronicle.controller.run()):
        await informers.wait()
        yield


async def events(store: Store) -> dict[str, tuple[str, int]]:
    return {event.reason: (event.message, event.count) for event in (await store.list(Event, SPACE)).items}


async def world(place: StoreNamespace) -> tuple[Store, Workload]:
    store = Store(place.driver)
    await store.create(Namespace(metadata=Metadata(name=SPACE)))
    return store, await store.create(workload())


async def told(store: Store, reason: str, count: int = 1) -> None:
    async def there() -> bool:
        return (await events(store)).get(reason, ("", 0))[1] >= count

    await until(there)


async def refused(store: Store, seen: Workload, *refusals: Refusal) -> Workload:
    status = replace(seen.status, phase="Pending", refusals=refusals)
    return await store.update_status(replace(seen, status=status), seen=seen)


async def completed(store: Store, seen: Workload) -> None:
    """The last thing that happens: when it is told, everything before it is."""
    await store.update_status(replace(seen, status=replace(seen.status, phase="Completed", refusals=())), seen=seen)
    await told(store, "Completed")


async def test_the_life_of_a_pod(embedded: StoreNamespace) -> None:
    """Placed, then started; both are about the pod, and found by its workload."""
    store, owner = await world(embedded)
    made = pod()
    reference = Owner(api_version="aliquot.dev/v1", kind="Workload", name="w", uid=owner.metadata.uid)
    waiting = await store.create(replace(made, metadata=replace(made.metadata, owners=(reference,))))
    async with telling(store):
        change = {"metadata": {"annotations": {DEVICES: shares_text((share(1),))}}, "spec": {"nodeName": "n1"}}
        await store.driver.patch(_POD, "w-0-0", SPACE, change)
        await told(store, "Scheduled")
        placed = await store.get(Pod, "w-0-0", SPACE)
        status = pod("n1", state=ContainerState(running=Running(started_at=time.time()))).status
        await store.update_status(replace(placed, status=status), seen=placed)
        await told(store, "Started")
    assert await events(store) == {"Scheduled": ("placed on n1: GPU 1", 1), "Started": ("the job has started", 1)}
    found = (await store.list(Event, SPACE, labels=f"aliquot.dev/workload-uid={owner.metadata.uid}")).items
    assert {event.involved_object.uid for event in found} == {waiting.metadata.uid}


async def test_numbers_do_not_count_a_reason_do(embedded: StoreNamespace) -> None:
    """One event says why a job waits. It counts up for another reason, not for other numbers in the same."""
    store, seen = await world(embedded)
    async with telling(store):
        seen = await refused(store, seen, BUSY)
        await told(store, "Unschedulable")
        for free in (1, 2, 3):
            seen = await refused(store, seen, replace(BUSY, text=f"now {free} GPUs free"))
        seen = await refused(store, seen, POOR)
        await told(store, "Unschedulable", 2)
        await completed(store, seen)
    assert (await events(store))["Unschedulable"] == (POOR.text, 2)
    assert len((await store.list(Event, SPACE)).items) == 2


async def test_nothing_is_written_while_nothing_happens(embedded: StoreNamespace) -> None:
    """A job that waits, and waits, is written about once."""
    store, seen = await world(embedded)
    async with telling(store):
        seen = await refused(store, seen, BUSY)
        await told(store, "Unschedulable")
        (before,) = (await store.list(Event, SPACE)).items
        for wait in range(1, 20):
            status = replace(seen.status, wait_seconds=float(wait))
            seen = await store.update_status(replace(seen, status=status), seen=seen)
        await completed(store, seen)
    assert before in (await store.list(Event, SPACE)).items


async def test_a_restart_repeats_nothing(embedded: StoreNamespace) -> None:
    """After a restart what was told is not told again, and what was missed is."""
    store, seen = await world(embedded)
    async with telling(store):
        seen = await refused(store, seen, BUSY)
        await told(store, "Unschedulable")
    stop = Interruption(at=time.time(), reason="reclaimed", by="team-d/d-2")
    seen = await store.update_status(replace(seen, status=replace(seen.status, interruptions=(stop,))), seen=seen)
    for _ in range(2):
        async with telling(store):
            await told(store, "Evicted")
    assert {reason: count for reason, (_, count) in (await events(store)).items()} == {"Unschedulable": 1, "Evicted": 1}


async def test_old_stories_are_not_dug_up(embedded: StoreNamespace) -> None:
    """What began more than an hour before the start was told and dropped; only what happens from now on is told."""
    store, seen = await world(embedded)
    seen = await refused(store, seen, BUSY)
    async with telling(store, now=time.time() + EVENT_SECONDS + 60):
        await completed(store, seen)
    assert set(await events(store)) == {"Completed"}


async def test_a_crash_loop_counts_up(embedded: StoreNamespace) -> None:
    """A container that fails to start again and again has one event for it."""
    store, _ = await world(embedded)
    seen = await store.create(pod())
    async with telling(store):
        for restarts in (1, 2, 3):
            waits = ContainerState(waiting=Waiting(reason="CrashLoopBackOff", message=f"back-off {restarts}"))
            container = ContainerStatus(name="main", state=waits, restart_count=restarts)
            status = replace(seen.status, container_statuses=(container,))
            seen = await store.update_status(replace(seen, status=status), seen=seen)
            await told(store, "CrashLoopBackOff", restarts)
    assert await events(store) == {"CrashLoopBackOff": ("back-off 3", 3)}
