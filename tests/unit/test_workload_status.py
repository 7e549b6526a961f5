"""The status that follows from each fact, and concurrent writers that do not overwrite each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aliquot.api import Metadata, Namespace, Owner, Pod, Refusal, Workload
from aliquot.api.workload import PodCounts, WorkloadStatus
from aliquot.errors import Conflict
from aliquot.store.driver import AnyKind, Document
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.typed_store import Store
from aliquot.workload_status import (
    CheckpointSaved,
    Fact,
    Interrupted,
    Reconciled,
    Refused,
    WorkloadStatusWriter,
    next_status,
    with_fact,
)

NAMESPACE = "runai-a"
RUNNING = WorkloadStatus(phase="Running", started_at=900.0)
REFUSED = Refused((Refusal(step="allocate", code="no-gpu", text="no GPU is free"),))


class RacingDriver(MemoryDriver):
    """Another writer changes the workload before each of the first writes; every patch is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.races: list[Fact] = []
        self.versions: list[str] = []

    async def patch(self, kind: AnyKind, name: str, *rest: Any, **options: Any) -> Document:
        self.versions.append(options.get("version", ""))
        if self.races:
            (fact, *races), self.races = self.races, []  # nothing races with the other writer
            await WorkloadStatusWriter(Store(self)).write(await read(self), fact)
            self.races = races
        return await super().patch(kind, name, *rest, **options)


async def read(driver: MemoryDriver) -> Workload:
    return await Store(driver).get(Workload, "w", NAMESPACE)


async def created(driver: MemoryDriver, status: WorkloadStatus = RUNNING) -> Workload:
    await Store(driver).create(Namespace(metadata=Metadata(name=NAMESPACE)))
    await Store(driver).create(Workload(metadata=Metadata(name="w", namespace=NAMESPACE)))
    await WorkloadStatusWriter(Store(driver)).write(await read(driver), Reconciled(status))
    return await read(driver)


def interruption(owner: Workload, pod: str = "p1", at: float = 1000.0) -> Interrupted:
    meta = owner.metadata
    owners = (Owner(api_version="aliquot.dev/v1", kind="Workload", name=meta.name, uid=meta.uid),)
    stopped = Pod(metadata=Metadata(name="w-0-0", namespace=NAMESPACE, uid=pod, owners=owners))
    return Interrupted(stopped, at, "reclaimed", "b/x", "reclaimed by b/x")


# --- what follows from a fact


def test_refusals_change_nothing_else() -> None:
    """Refusals replace one field of the status; the others stay."""
    before = Workload(metadata=Metadata(name="w"), status=replace(RUNNING, message="so far"))
    assert next_status(before, REFUSED) == replace(before.status, refusals=REFUSED.refusals)


def test_an_interruption_counts_once() -> None:
    """An interruption counts once for each pod, however often it is applied."""
    before = Workload(metadata=Metadata(name="w", uid="u"), status=RUNNING)
    once = with_fact(before, interruption(before))
    assert once.status.interruption_count == once.status.preemption_count == 1
    assert with_fact(once, interruption(before, at=1005.0)) == once
    assert next_status(once, interruption(before, pod="p2")).interruption_count == 2


def test_history_is_bounded() -> None:
    """Only the latest interruptions are kept, but all are counted."""
    workload = Workload(metadata=Metadata(name="w", uid="u"), status=RUNNING)
    for number in range(120):
        workload = with_fact(workload, interruption(workload, pod=f"p{number}"))
    assert len(workload.status.interruptions) == 100
    assert workload.status.interruptions[-1].pod == "p119"
    assert workload.status.interruption_count == 120


# --- several writers


async def test_every_write_carries_its_version() -> None:
    """Each kind of fact is written with the version it was decided from."""
    driver = RacingDriver()
    writer = WorkloadStatusWriter(Store(driver))
    first = await created(driver)
    driver.versions.clear()
    await writer.write(first, REFUSED)
    second = await read(driver)
    await writer.write(second, Reconciled(replace(second.status, phase="Pending")))
    third = await read(driver)
    await writer.record(interruption(third))
    assert driver.versions == [first.metadata.version, second.metadata.version, third.metadata.version]


async def test_a_stale_refusal_does_not_overwrite() -> None:
    """Refusals decided before the workload started to run are dropped, and do not overwrite its status."""
    driver = MemoryDriver()
    writer = WorkloadStatusWriter(Store(driver))
    seen = await created(driver, WorkloadStatus(phase="Pending"))
    await writer.write(seen, Reconciled(RUNNING))
    with pytest.raises(Conflict):
        await writer.write(seen, REFUSED)
    assert (await read(driver)).status == RUNNING


@pytest.mark.parametrize("races", [1, 3])
async def test_an_interruption_survives_other_writers(races: int) -> None:
    """An interruption that meets a conflict is applied again to the new status, and both changes are in it."""
    driver = RacingDriver()
    workload = await created(driver)
    driver.races = [Reconciled(replace(RUNNING, pods=PodCounts(running=n + 1))) for n in range(races)]
    await WorkloadStatusWriter(Store(driver)).record(interruption(workload))
    status = (await read(driver)).status
    assert status.pods.running == races
    assert [stop.pod for stop in status.interruptions] == ["p1"]


async def test_refusal_and_interruption_both_survive() -> None:
    """Refusals that are written at the same time as an interruption are kept, and so is the interruption."""
    driver = RacingDriver()
    workload = await created(driver)
    driver.races = [REFUSED]
    await WorkloadStatusWriter(Store(driver)).record(interruption(workload))
    status = (await read(driver)).status
    assert status.refusals == REFUSED.refusals
    assert status.interruption_count == 1


async def test_attempts_are_bounded() -> None:
    """After a few conflicts the caller gets the Conflict and tries again later."""
    driver = RacingDriver()
    workload = await created(driver)
    driver.races = [Reconciled(replace(RUNNING, pods=PodCounts(running=n + 1))) for n in range(100)]
    with pytest.raises(Conflict):
        await WorkloadStatusWriter(Store(driver)).record(interruption(workload))
    assert (await read(driver)).status.interruption_count == 0


async def test_the_workload_that_was_read_is_returned() -> None:
    """`record` returns the workload that it read; None if the pod has no workload or the workload is gone."""
    driver = MemoryDriver()
    writer = WorkloadStatusWriter(Store(driver))
    workload = await created(driver)
    fact = interruption(workload)
    assert await writer.record(fact) == workload
    assert await writer.record(replace(fact, pod=replace(fact.pod, metadata=Metadata(name="p")))) is None
    other = replace(workload, metadata=replace(workload.metadata, uid="another"))
    assert await writer.record(interruption(other)) is None
    await Store(driver).delete(workload)
    assert await writer.record(fact) is None


async def test_no_write_without_a_change() -> None:
    """A fact that changes nothing costs no write."""
    driver = RacingDriver()
    workload = await created(driver)
    driver.versions.clear()
    await WorkloadStatusWriter(Store(driver)).write(workload, Reconciled(workload.status))
    await WorkloadStatusWriter(Store(driver)).write(workload, CheckpointSaved(interruption(workload).pod))
    assert driver.versions == []


async def test_a_field_can_be_cleared() -> None:
    """Empty refusals remove the field from the status."""
    driver = MemoryDriver()
    writer = WorkloadStatusWriter(Store(driver))
    await writer.write(await created(driver), REFUSED)
    await writer.write(await read(driver), Refused(()))
    assert (await read(driver)).status == RUNNING
