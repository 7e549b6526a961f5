"""How workloads are stopped for others: what is lost, how long it may take, and whether they come back."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from aliquot import labels
from aliquot.api import Metadata, Pod, SchedulingPolicy, Workload
from aliquot.api.pod import PodCondition, PodSpec, PodStatus
from aliquot.api.scheduling_policy import SchedulingPolicySpec
from aliquot.api.workload import Interruption, WorkloadSpec, WorkloadStatus
from aliquot.scheduler.eviction_records import EvictionRecord, eviction_times, grace_of, interruption_by
from aliquot.scheduler.policy import StopPolicy
from aliquot.scheduler.snapshot import job_of
from aliquot.workload_status import CheckpointSaved, next_status
from support.scheduler.world import CrashingDriver, World
from support.stores.namespace import StoreNamespace
from support.stores.running import until

AT = 1000.0
RUNNING = WorkloadStatus(phase="Running", started_at=900.0)
DEFAULT_POLICY = StopPolicy()
RECLAIM = EvictionRecord("reclaim", "b/owner", "reclaimed by b/owner", AT)
MOVE = EvictionRecord("reclaim", "b/owner", "moved", AT, moved=True)


def workload(status: WorkloadStatus = RUNNING, **spec: Any) -> Workload:
    return Workload(metadata=Metadata(name="w", namespace="runai-a"), spec=WorkloadSpec(**spec), status=status)


def pod(saved: float | None = None, uid: str = "p1") -> Pod:
    told = PodCondition(type=labels.CHECKPOINT_SAVED, status="True", last_transition_time=saved)
    status = PodStatus(phase="Running", conditions=() if saved is None else (told,))
    return Pod(metadata=Metadata(name="w-0-0", namespace="runai-a", uid=uid), status=status)


def stopped(
    of: Workload, by: EvictionRecord = RECLAIM, policy: StopPolicy = DEFAULT_POLICY, **more: Any
) -> WorkloadStatus:
    return next_status(of, interruption_by(by, pod(**more), policy))


# --- what is lost


@pytest.mark.parametrize(("saved", "lost"), [(None, 100), (850.0, 100), (990.0, 10), (1003.0, 0)])
def test_lost_since_the_last_checkpoint(saved: float | None, lost: float) -> None:
    """Lost is what was done since the last checkpoint, or since the start when there was none since."""
    assert stopped(workload(), saved=saved).interruptions[0].lost_seconds == lost


def test_nothing_is_lost_before_it_runs() -> None:
    """Who had not begun to run has lost nothing."""
    assert stopped(workload(WorkloadStatus(phase="Initializing"))).interruptions[0].lost_seconds == 0


def test_saved_when_told_to_stop() -> None:
    """Who saves its work in its grace has lost nothing; what another pod saves does not count, and twice is as once."""
    before = stopped(workload())
    assert next_status(workload(before), CheckpointSaved(pod(uid="p2", saved=1002.0))) == before
    after = next_status(workload(before), CheckpointSaved(pod(saved=1002.0)))
    assert after.interruptions[0].lost_seconds == 0
    assert next_status(workload(after), CheckpointSaved(pod(saved=1002.0))) == after


@pytest.mark.parametrize(("saved", "known"), [((5.0, 7.0), 5.0), ((5.0, None), None), ((None, None), None)])
def test_saved_by_all(saved: tuple[float | None, ...], known: float | None) -> None:
    """What a job has saved is what all of its pods have saved."""
    placed = [replace(pod(one, uid=str(at)), spec=PodSpec(node_name="n1")) for at, one in enumerate(saved)]
    assert job_of(("runai-a", "w"), placed, None, None, None, {}).saved == known


# --- for how long, and whether it comes back


@pytest.mark.parametrize(
    ("own", "pool", "grace"), [(None, None, None), (None, 45, 45), (7, 45, 7), (7, None, 7), (0, None, 1), (None, 0, 1)]
)
def test_grace(own: int | None, pool: int | None, grace: int | None) -> None:
    """A workload's own grace counts, then its pool's, then its pod's; and nobody vanishes before its process does."""
    assert grace_of(workload(preemption_grace=own), StopPolicy(grace=pool)) == grace


@pytest.mark.parametrize(
    ("spec", "ends", "final"),
    [
        ({}, False, False),
        ({"terminate_after_preemption": True}, False, True),
        ({}, True, True),
        ({"terminate_after_preemption": False}, True, False),
        ({"type": "interactive"}, True, False),
        ({"type": "interactive", "terminate_after_preemption": True}, False, True),
    ],
)
def test_ends_when_preempted(spec: dict[str, Any], ends: bool, final: bool) -> None:
    """A workload says itself whether it ends when it is preempted; for training that does not say, its pool does."""
    assert stopped(workload(**spec), policy=StopPolicy(ends=ends)).interruptions[0].final is final


def test_limit() -> None:
    """It comes back as often as its limit says; the next time it ends. Being moved does not count."""
    status = RUNNING
    finals = []
    for number, notice in enumerate([RECLAIM, MOVE, RECLAIM, MOVE, RECLAIM]):
        status = stopped(workload(status, preemption_limit=2), notice, uid=str(number))
        finals.append(status.interruptions[-1].final)
    assert finals == [False, False, False, False, True]
    assert (status.interruption_count, status.preemption_count) == (5, 3)


def test_moved_never_ends() -> None:
    """To be moved is not to be preempted."""
    assert not stopped(workload(terminate_after_preemption=True), MOVE).interruptions[0].final


def test_stops_for_others() -> None:
    """Those that count are for others: a gang that fell apart was not stopped for anybody."""
    stops = [(30.0, "moved"), (10.0, "reclaimed"), (20.0, "preempted"), (40.0, "stale"), (50.0, "node-lost")]
    status = WorkloadStatus(interruptions=tuple(Interruption(at=at, reason=word) for at, word in stops))
    assert eviction_times(status) == (10.0, 20.0, 30.0)


# --- live


async def lent(place: StoreNamespace, *, policy: dict[str, Any] | None = None, **spec: Any) -> World:
    """One GPU of project b's quota, lent to project a's `job`."""
    world = World(place)
    await world.node("n1", 1)
    await world.project("a", 0)
    await world.project("b", 1)
    if policy is not None:
        made = SchedulingPolicySpec(**policy)
        await world.store.create(SchedulingPolicy(metadata=Metadata(name="p"), spec=made))
    await world.submit("job", **spec)
    return world


async def taken_back(world: World, name: str) -> None:
    """The owner comes, gets its GPU, and goes."""
    await world.submit(name, project="b")
    await world.until_running(name, project="b")


async def ended(world: World) -> WorkloadStatus:
    async def over() -> bool:
        return (await world.workload("job")).status.phase in ("Failed", "Completed")

    await until(over)
    return (await world.workload("job")).status


async def test_ends_live(embedded: StoreNamespace) -> None:
    """Who ends when preempted is over, says so, and never starts again."""
    world = await lent(embedded, terminate_after_preemption=True)
    async with world.platform():
        await world.until_running("job")
        await taken_back(world, "owner")
        status = await ended(world)
        await world.store.delete(await world.workload("owner", "b"))
        await world.delete_pod("owner", "b")
        await world.submit("next")
        await world.until_running("next")
        assert await world.pod("job") is None
    assert (status.phase, status.reason, status.allocated.gpu) == ("Failed", "Preempted", None)
    assert status.message == "reclaimed by b/owner; it ends when preempted (terminateAfterPreemption)"


@pytest.mark.parametrize("writes", range(4))
async def test_ends_once_however_often_killed(embedded: StoreNamespace, writes: int) -> None:
    """Wherever the scheduler is killed on the way, it has ended once, and its GPU is its owner's."""
    world = await lent(embedded, terminate_after_preemption=True)
    async with world.platform():
        await world.until_running("job")
    driver = CrashingDriver(embedded.driver, writes)
    async with world.platform(driver):  # type: ignore[arg-type]
        await world.submit("owner", project="b")
        await driver.until_crashed()
    async with world.platform():
        await world.until_running("owner", project="b")
        status = await ended(world)
    assert (status.reason, status.interruption_count, status.preemption_count) == ("Preempted", 1, 1)
    assert await world.bound_workloads() == {"owner"}


async def test_limit_live(embedded: StoreNamespace) -> None:
    """With a limit of one it comes back once."""
    world = await lent(embedded, preemption_limit=1)
    async with world.platform():
        await world.until_running("job")
        await taken_back(world, "first")
        await world.until_refused("job")
        await world.store.delete(await world.workload("first", "b"))
        await world.delete_pod("first", "b")
        await world.until_running("job")
        assert (await world.workload("job")).status.restarts == 1
        await taken_back(world, "second")
        status = await ended(world)
    assert (status.reason, status.message) == (
        "Preempted", "reclaimed by b/second; stopped 2 times, and preemptionLimit is 1",
    )  # fmt: skip


@pytest.mark.parametrize(("spec", "grace"), [({}, 77), ({"preemption_grace": 5}, 5)])
async def test_grace_live(embedded: StoreNamespace, spec: dict[str, Any], grace: int) -> None:
    """The policy's grace holds for those who do not have their own."""
    world = await lent(embedded, policy={"preemption_grace": 77}, **spec)
    async with world.platform(hold_deleted=True):
        await world.until_running("job")
        await world.submit("owner", project="b")
        await world.until_stopping("job")
        found = await world.pod("job")
    assert found is not None
    assert found.metadata.grace_seconds == grace


async def test_stopped_too_often(embedded: StoreNamespace) -> None:
    """Who was stopped as often in the last hour as the policy allows is left alone, also when it has just come back."""
    world = await lent(embedded, policy={"restarts_per_hour": 1})
    async with world.platform():
        await world.until_running("job")
        await taken_back(world, "first")
        await world.store.delete(await world.workload("first", "b"))
        await world.delete_pod("first", "b")
        await world.until_running("job")
        await world.submit("second", project="b")
        await world.until_refused("second", "b", "no-arrangement")
        assert (await world.workload("job")).status.phase == "Running"


async def test_saved_in_its_grace_live(embedded: StoreNamespace) -> None:
    """What a job saves after it was told to stop is in its history as not lost, although its pod goes at once."""
    world = await lent(embedded)
    async with world.platform(hold_deleted=True):
        await world.until_running("job")
        await world.submit("owner", project="b")
        await world.until_stopping("job")
        (stop,) = (await world.workload("job")).status.interruptions
        assert stop.lost_seconds > 0
        seen = await world.pod("job")
        assert seen is not None
        told = PodCondition(type=labels.CHECKPOINT_SAVED, status="True", last_transition_time=stop.at + 1)
        await world.store.update_status(replace(seen, status=replace(seen.status, conditions=(told,))), seen=seen)
        await world.delete_pod("job")

        async def known() -> bool:
            (stop,) = (await world.workload("job")).status.interruptions
            return stop.lost_seconds == 0

        await until(known)


async def test_least_work_lost_goes(embedded: StoreNamespace) -> None:
    """Of two borrowers the one that has just saved its work makes way, although it is the older one."""
    world = World(embedded)
    await world.node("n1", 2)
    await world.project("a", 0)
    await world.project("b", 1)
    async with world.platform():
        for name, saved in (("older", time.time()), ("newer", time.time() - 400)):
            await world.submit(name)
            await world.until_running(name)
            seen = await world.pod(name)
            assert seen is not None
            told = PodCondition(type=labels.CHECKPOINT_SAVED, status="True", last_transition_time=saved)
            status = replace(seen.status, start_time=time.time() - 500, conditions=(told,))
            await world.store.update_status(replace(seen, status=status), seen=seen)
        await taken_back(world, "owner")
        await world.until_refused("older")
        assert (await world.workload("newer")).status.phase == "Running"
