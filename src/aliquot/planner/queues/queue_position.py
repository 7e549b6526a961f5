"""Who comes after whom: the line of those who wait, by the order in which the scheduler itself goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aliquot.planner.cycle import no_collection, pool_routes
from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import JobState
from aliquot.planner.model import DEFAULT_POOL, Policy, Snapshot
from aliquot.planner.plan import Plan, Verdict
from aliquot.planner.queues.queue_order import Batch, QueueOrder


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A job's place, counted from 1: among those of its queue, and among all that wait in its node pool."""

    position: int
    waiting: int
    position_in_queue: int
    waiting_in_queue: int
    pool: str = DEFAULT_POOL


def queue_positions(
    snapshot: Snapshot, policy: Policy, now: float, decided: Plan, policies: Mapping[str, Policy] | None = None
) -> dict[str, QueuePosition]:
    """The turns of all that go on waiting after a plan, each counted as if those before it had started: who starts
    brings its queue nearer to its due, and then it may be another's turn. Who can never start is in no line."""
    pools = sorted({node.pool for node in snapshot.nodes} | {DEFAULT_POOL})
    jobs = sorted(snapshot.jobs, key=lambda job: job.name)
    first = {name: route[0] for name, route in pool_routes(jobs, snapshot, pools).items()}
    found: dict[str, QueuePosition] = {}
    with no_collection():
        for pool in pools:
            state = CycleState(snapshot, (policies or {}).get(pool, policy), now, pool)
            state.admit(job for job in jobs if first[job.name] == pool)
            found |= _turns(state, decided)
            state.close()
    return found


def _turns(state: CycleState, decided: Plan) -> dict[str, QueuePosition]:
    _carry_out(state, decided)
    waiting = [Batch([job]) for job in state.jobs if _waits(job, decided)]
    turns = QueueOrder(waiting, state.placer.next_request)
    order: list[JobState] = []
    while batch := turns.pop():
        job = batch.head
        order.append(job)
        job.queue.add_usage(state.placer.next_request(job), job.nonpreemptible)
        turns.touch(job.queue)
    ahead: dict[str, int] = {}
    places = []
    for job in order:
        ahead[job.queue.name] = ahead.get(job.queue.name, 0) + 1
        places.append(ahead[job.queue.name])
    return {
        job.name: QueuePosition(place, len(order), own, ahead[job.queue.name], state.pool_name)
        for place, (job, own) in enumerate(zip(order, places, strict=True), start=1)
    }


def _waits(job: JobState, decided: Plan) -> bool:
    reasons = decided.refusals.get(job.name)
    if not reasons or all(one.verdict is Verdict.NEVER for one in reasons):
        return False
    return bool(job.next_tasks())


def _carry_out(state: CycleState, decided: Plan) -> None:
    """Count what the plan gives and takes: the line is that of those who are left."""
    given = {one.job for one in decided.binds} | {one.job for one in decided.nominations}
    taken = {(one.job, one.task) for one in decided.evictions if one.to is None}
    for job in state.jobs:
        if job.name in given:
            job.queue.add_usage(state.placer.next_request(job), job.nonpreemptible)
        for member in job.members:
            if (job.name, member.task.name) in taken:
                job.queue.add_usage(member.amount, job.nonpreemptible, -1)
