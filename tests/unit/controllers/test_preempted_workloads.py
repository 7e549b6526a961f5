"""Preempted workloads: how much work is lost, how long they get to stop, and whether they go back to the queue."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from aliquot import labels
from aliquot.api import Metadata, Pod, SchedulingPolicy, Workload
from aliquot.api.pod import PodCondition, PodSpec
from aliquot.api.scheduling_policy import SchedulingPolicySpec
from aliquot.api.workload import Interruption, WorkloadStatus
from aliquot.scheduler.eviction_records import EvictionRecord, eviction_times, grace_of, interruption_by
from aliquot.scheduler.policy import StopPolicy
from aliquot.scheduler.snapshot import job_of
from aliquot.workload_status import CheckpointSaved, next_status
from support.objects import pod, workload
from support.scheduler.world import CrashingDriver, World
from support.stores.namespace import StoreNamespace
from support.waiting import eventually

AT = 1000.0
RUNNING = WorkloadStatus(phase="Running", started_at=900.0)
DEFAULT_POLICY = StopPolicy()
RECLAIM = EvictionRecord("reclaim", "b/owner", "reclaimed by b/owner", AT)
MOVE = EvictionRecord("reclaim", "b/owner", "moved", AT, moved=True)


def saved_pod(saved: float | None = None, uid: str = "p1") -> Pod:
    """A running pod; `saved` is when its checkpoint was written."""
    condition = PodCondition(type=labels.CHECKPOINT_SAVED, status="True", last_transition_time=saved)
    return pod(uid=uid, phase="Running", conditions=() if saved is None else (condition,))


def running_workload(status: WorkloadStatus = RUNNING, **spec: Any) -> Workload:
    return workload(status=status, **spec)


def stopped(
    of: Workload, by: EvictionRecord = RECLAIM, policy: StopPolicy = DEFAULT_POLICY, **more: Any
) -> WorkloadStatus:
    return next_status(of, interruption_by(by, saved_pod(**more), policy))


# --- lost work


@pytest.mark.parametrize(("saved", "lost"), [(None, 100), (850.0, 100), (990.0, 10), (1003.0, 0)])
def test_lost_since_the_last_checkpoint(saved: float | None, lost: float) -> None:
    """The work since the last checkpoint is lost, or since the start if there was no checkpoint since."""
    assert stopped(running_workload(), saved=saved).interruptions[0].lost_seconds == lost


def test_nothing_is_lost_before_it_runs() -> None:
    """A job that has not started to run loses nothing."""
    assert stopped(running_workload(WorkloadStatus(phase="Initializing"))).interruptions[0].lost_seconds == 0


def test_checkpoint_in_the_grace_period() -> None:
    """A job that saves its work in the grace period loses nothing. Checkpoints of other pods do not count."""
    before = stopped(running_workload())
    assert next_status(running_workload(before), CheckpointSaved(saved_pod(uid="p2", saved=1002.0))) == before
    after = next_status(running_workload(before), CheckpointSaved(saved_pod(saved=1002.0)))
    assert after.interruptions[0].lost_seconds == 0
    assert next_status(running_workload(after), CheckpointSaved(saved_pod(saved=1002.0))) == after


@pytest.mark.parametrize(("saved", "known"), [((5.0, 7.0), 5.0), ((5.0, None), None), ((None, None), None)])
def test_checkpoint_of_several_pods(saved: tuple[float | None, ...], known: float | None) -> None:
    """A job's checkpoint is as old as that of its pod with the oldest; without one in every pod there is none."""
    placed = [replace(saved_pod(at, uid=str(index)), spec=PodSpec(node_name="n1")) for index, at in enumerate(saved)]
    assert job_of(("runai-a", "w"), placed, None, None, None, {}).saved == known


# --- grace period, and whether it goes back to the queue


@pytest.mark.parametrize(
    ("own", "pool", "grace"), [(None, None, None), (None, 45, 45), (7, 45, 7), (7, None, 7), (0, None, 1), (None, 0, 1)]
)
def test_grace(own: int | None, pool: int | None, grace: int | None) -> None:
    """The workload's own grace period counts, then its pool's, then its pod's. It is at least a second."""
    assert grace_of(running_workload(preemption_grace=own), StopPolicy(grace=pool)) == grace


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
    """The workload decides whether it ends when preempted. For training that does not say, the pool's policy does."""
    assert stopped(running_workload(**spec), policy=StopPolicy(ends=ends)).interruptions[0].final is final


def test_limit() -> None:
    """A workload ends with the first preemption over its limit. Moves do not count."""
    status = RUNNING
    finals = []
    for number, record in enumerate([RECLAIM, MOVE, RECLAIM, MOVE, RECLAIM]):
        status = stopped(running_workload(status, preemption_limit=2), record, uid=str(number))
        finals.append(status.interruptions[-1].final)
    assert finals == [False, False, False, False, True]
    assert (status.interruption_count, status.preemption_count) == (5, 3)


def test_moved_never_ends() -> None:
    """A move is not a preemption."""
    assert not stopped(running_workload(terminate_after_preemption=True), MOVE).interruptions[0].final


def test_evictions_for_others() -> None:
    """Only evictions for other jobs count towards the limit per hour, not stale gangs or lost nodes."""
    stops = [(30.0, "moved"), (10.0, "reclaimed"), (20.0, "preempted"), (40.0, "stale"), (50.0, "node-lost")]
    status = WorkloadStatus(interruptions=tuple(Interruption(at=at, reason=reason) for at, reason in stops))
    assert eviction_times(status) == (10.0, 20.0, 30.0)


# --- with the scheduler and the controller running


async def borrowed_gpu(embedded: StoreNamespace, *, policy: dict[str, Any] | None = None, **spec: Any) -> World:
    """One GPU, in the quota of project b, borrowed by `job` of project a."""
    world = World(embedded)
    await world.node("n1", 1)
    await world.project("a", 0)
    await world.project("b", 1)
    if policy is not None:
        policy_spec = SchedulingPolicySpec(**policy)
        await world.store.create(SchedulingPolicy(metadata=Metadata(name="p"), spec=policy_spec))
    await world.submit("job", **spec)
    return world


async def reclaim(world: World, name: str) -> None:
    """Project b submits a job, which gets the GPU back."""
    await world.submit(name, project="b")
    await world.until_running(name, project="b")


async def ended(world: World) -> WorkloadStatus:
    async def has_ended() -> bool:
        return (await world.workload("job")).status.phase in ("Failed", "Completed")

    await eventually(has_ended)
    return (await world.workload("job")).status


async def test_ends_live(embedded: StoreNamespace) -> None:
    """A workload that ends when preempted fails with that reason and never starts again."""
    world = await borrowed_gpu(embedded, terminate_after_preemption=True)
    async with world.platform():
        await world.until_running("job")
        await reclaim(world, "owner")
        status = await ended(world)
        await world.store.delete(await world.workload("owner", "b"))
        await world.delete_pod("owner", "b")
        await world.submit("next")
        await world.until_running("next")
        assert await world.pod("job") is None
    assert (status.phase, status.reason, status.allocated.gpu) == ("Failed", "Preempted", None)
    assert status.message == "reclaimed by b/owner; it ends when preempted (terminateAfterPreemption)"


@pytest.mark.parametrize("writes", range(4))
async def test_ends_once_after_a_crash(embedded: StoreNamespace, writes: int) -> None:
    """After whichever write the scheduler is killed, the preemption counts once, and project b has its GPU."""
    world = await borrowed_gpu(embedded, terminate_after_preemption=True)
    async with world.platform():
        await world.until_running("job")
    driver = CrashingDriver(embedded.driver, writes)
    async with world.platform(driver):
        await world.submit("owner", project="b")
        await driver.until_crashed()
    async with world.platform():
        await world.until_running("owner", project="b")
        status = await ended(world)
    assert (status.reason, status.interruption_count, status.preemption_count) == ("Preempted", 1, 1)
    assert await world.bound_workloads() == {"owner"}


async def test_limit_live(embedded: StoreNamespace) -> None:
    """With a limit of one the workload goes back to the queue once."""
    world = await borrowed_gpu(embedded, preemption_limit=1)
    async with world.platform():
        await world.until_running("job")
        await reclaim(world, "first")
        await world.until_refused("job")
        await world.store.delete(await world.workload("first", "b"))
        await world.delete_pod("first", "b")
        await world.until_running("job")
        assert (await world.workload("job")).status.restarts == 1
        await reclaim(world, "second")
        status = await ended(world)
    assert (status.reason, status.message) == (
        "Preempted", "reclaimed by b/second; stopped 2 times, and preemptionLimit is 1",
    )  # fmt: skip


@pytest.mark.parametrize(("spec", "grace"), [({}, 77), ({"preemption_grace": 5}, 5)])
async def test_grace_live(embedded: StoreNamespace, spec: dict[str, Any], grace: int) -> None:
    """The policy's grace period applies to workloads without their own."""
    world = await borrowed_gpu(embedded, policy={"preemption_grace": 77}, **spec)
    async with world.platform(hold_deleted=True):
        await world.until_running("job")
        await world.submit("owner", project="b")
        await world.until_stopping("job")
        evicted = await world.pod("job")
    assert evicted is not None
    assert evicted.metadata.grace_seconds == grace


async def test_restarts_per_hour(embedded: StoreNamespace) -> None:
    """A workload that was evicted as often in the last hour as the policy allows is not evicted again."""
    world = await borrowed_gpu(embedded, policy={"restarts_per_hour": 1})
    async with world.platform():
        await world.until_running("job")
        await reclaim(world, "first")
        await world.store.delete(await world.workload("first", "b"))
        await world.delete_pod("first", "b")
        await world.until_running("job")
        await world.submit("second", project="b")
        await world.until_refused("second", "b", "no-arrangement")
        assert (await world.workload("job")).status.phase == "Running"


async def test_checkpoint_in_the_grace_period_live(embedded: StoreNamespace) -> None:
    """A checkpoint in the grace period is in the workload's history, although its pod is deleted right after it."""
    world = await borrowed_gpu(embedded)
    async with world.platform(hold_deleted=True):
        await world.until_running("job")
        await world.submit("owner", project="b")
        await world.until_stopping("job")
        (stop,) = (await world.workload("job")).status.interruptions
        assert stop.lost_seconds > 0
        seen = await world.pod("job")
        assert seen is not None
        saved = PodCondition(type=labels.CHECKPOINT_SAVED, status="True", last_transition_time=stop.at + 1)
        await world.store.update_status(replace(seen, status=replace(seen.status, conditions=(saved,))), seen=seen)
        await world.delete_pod("job")

        async def nothing_lost() -> bool:
            (stop,) = (await world.workload("job")).status.interruptions
            return stop.lost_seconds == 0

        await eventually(nothing_lost)


async def test_the_victim_loses_the_least_work(embedded: StoreNamespace) -> None:
    """Of two borrowers the one that has just saved a checkpoint is evicted, although it is the older one."""
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
            condition = PodCondition(type=labels.CHECKPOINT_SAVED, status="True", last_transition_time=saved)
            status = replace(seen.status, start_time=time.time() - 500, conditions=(condition,))
            await world.store.update_status(replace(seen, status=status), seen=seen)
        await reclaim(world, "owner")
        await world.until_refused("older")
        assert (await world.workload("newer")).status.phase == "Running"
