"""The positions of waiting jobs, in the order in which the scheduler considers them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from aliquot.planner.cycle import pool_names, route
from aliquot.planner.cycle_state import CycleState
from aliquot.planner.incremental import gc_paused
from aliquot.planner.jobs import JobState
from aliquot.planner.model import DEFAULT_POOL, Policy, Snapshot
from aliquot.planner.plan import Plan, Verdict
from aliquot.planner.queues.queue_order import Batch, QueueOrder


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A job's position, counted from 1, among the waiting jobs of its node pool and of its queue."""

    position: int
    waiting: int
    position_in_queue: int
    waiting_in_queue: int
    pool: str = DEFAULT_POOL


def queue_positions(
    snapshot: Snapshot, policy: Policy, now: float, decided: Plan, policies: Mapping[str, Policy] | None = None
) -> dict[str, QueuePosition]:
    """The position of each job that still waits after a plan. Each is counted as if the jobs before it had started,
    because a job that starts changes the order of the queues. Jobs that can never start have no position."""
    pools = pool_names(snapshot)
    pool_of_node = {node.name: node.pool for node in snapshot.nodes}
    jobs = sorted(snapshot.jobs, key=lambda job: job.name)
    first_pool = {job.name: route(job, pool_of_node, pools)[0] for job in jobs}
    positions: dict[str, QueuePosition] = {}
    with gc_paused():
        for pool in pools:
            state = CycleState(snapshot, (policies or {}).get(pool, policy), now, pool)
            state.add_jobs(job for job in jobs if first_pool[job.name] == pool)
            positions |= _positions(state, decided)
            state.close()
    return positions


def _positions(state: CycleState, decided: Plan) -> dict[str, QueuePosition]:
    _apply(state, decided)
    waiting = [Batch([job]) for job in state.jobs if _waits(job, decided)]
    queue_order = QueueOrder(waiting, state.placer.next_request)
    order: list[JobState] = []
    while batch := queue_order.pop():
        job = batch.head
        order.append(job)
        job.queue.add_usage(state.placer.next_request(job), job.nonpreemptible)
        queue_order.touch(job.queue)
    by_queue: Counter[str] = Counter()
    in_queue = []
    for job in order:
        by_queue[job.queue.name] += 1
        in_queue.append(by_queue[job.queue.name])
    return {
        job.name: QueuePosition(position, len(order), own, by_queue[job.queue.name], state.pool_name)
        for position, (job, own) in enumerate(zip(order, in_queue, strict=True), start=1)
    }


def _waits(job: JobState, decided: Plan) -> bool:
    refusals = decided.refusals.get(job.name)
    if not refusals or all(refusal.verdict is Verdict.NEVER for refusal in refusals):
        return False
    return bool(job.next_tasks())


def _apply(state: CycleState, decided: Plan) -> None:
    """Counts what the plan gives and takes, so that the positions are those of the jobs that are left."""
    placed = {bind.job for bind in decided.binds} | {nomination.job for nomination in decided.nominations}
    evicted = {(eviction.job, eviction.task) for eviction in decided.evictions if eviction.to is None}
    for job in state.jobs:
        if job.name in placed:
            job.queue.add_usage(state.placer.next_request(job), job.nonpreemptible)
        for member in job.members:
            if (job.name, member.task.name) in evicted:
                job.queue.add_usage(member.amount, job.nonpreemptible, -1)
