"""One cycle of the scheduler. `run_cycle` has its steps as a numbered list.

The same snapshot gives the same plan, whatever the order of its parts. Each node pool is a cluster of its own, with its
own fair shares. A job that is refused in one pool is tried in the next pool that it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from aliquot.planner.allocate import allocate, restore_nominations
from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import JobState
from aliquot.planner.model import DEFAULT_POOL, Job, Snapshot, TaskState
from aliquot.planner.plan import Plan
from aliquot.planner.plan_builder import PlanBuilder
from aliquot.planner.preemption.driver import make_room
from aliquot.planner.preemption.stale_gangs import stop_stale_gangs
from aliquot.planner.queues.queue_order import Batch

_HOLDS_OR_NOMINATED = (TaskState.RUNNING, TaskState.NOMINATED, TaskState.RELEASING, TaskState.EVICTED)


def run_cycle(
    states: Mapping[str, CycleState], batches: Mapping[str, Collection[Batch]], routes: Mapping[str, Sequence[str]]
) -> Plan:
    """Decide, and write the decisions to the states.

    `states` and `batches` are by node pool. The batches are the pending jobs that try the pool first, without those
    that have nominated tasks. `routes` are the pools that a job tries, in order; without an entry it tries one.
    """
    builder = PlanBuilder()

    def run_steps(state: CycleState, nominated: Collection[JobState], pending: Iterable[Batch]) -> list[Batch]:
        """Run steps 1 to 5 in one pool. Returns the batches that still wait."""
        # 1. Nominations: a task starts on the devices it was nominated for, once they are free.
        lost = restore_nominations(state, nominated)
        unplaced = [job for job in nominated if job in lost or job.pending]
        waiting = [*pending, *state.batches(filter(state.is_schedulable, unplaced)).values()]
        builder.record_attempt(state, waiting)
        # 2. Allocate: in queue order, pending jobs start on free devices. Nothing is evicted.
        if "allocate" in state.policy.steps:
            waiting = allocate(state, waiting, builder)
        # 3. Consolidate: where only fragmentation is in the way, running jobs are moved.
        # 4. Reclaim: a queue below its fair share takes devices back from queues above theirs.
        # 5. Preempt: within one project, a job of higher priority evicts jobs of lower priority.
        for step in ("consolidate", "reclaim", "preempt"):
            if step in state.policy.steps and waiting:
                waiting = make_room(state, waiting, step, builder)
        return waiting

    waiting = {name: run_steps(state, state.nominated, batches[name]) for name, state in states.items()}
    refused = [job for name in states for job in _tries_another_pool(waiting[name], routes)]
    attempt = 1
    while jobs := sorted((job for job in refused if len(routes[job.name]) > attempt), key=lambda job: job.name):
        refused = []
        for name, state in states.items():
            if here := [job for job in jobs if routes[job.name][attempt] == name]:
                added = state.add_jobs(here)
                nominated = [job for job in added if job in state.nominated]
                still = run_steps(state, nominated, state.pending_batches(added).values())
                refused += _tries_another_pool(still, routes)
        attempt += 1
    # 6. Stale gangs: a gang that has run with too few tasks for too long is evicted.
    for state in states.values():
        stop_stale_gangs(state, builder)
    # 7. Refusals: each job that still waits gets the reasons.
    return builder.plan(states.values())


def _tries_another_pool(batches: Iterable[Batch], routes: Mapping[str, Sequence[str]]) -> list[Job]:
    """The jobs of these batches that may try another pool. A job that has tasks in a pool stays there."""
    if not routes:
        return []
    return [
        job.source
        for batch in batches
        for job in batch.remaining()
        if len(routes.get(job.name, ())) > 1 and not job.present
    ]


def pool_names(snapshot: Snapshot) -> list[str]:
    return sorted({node.pool for node in snapshot.nodes} | {DEFAULT_POOL})


def route(job: Job, pool_of_node: Mapping[str, str], pools: Sequence[str]) -> list[str]:
    """The pools that a job tries, in order. A job that holds something in a pool stays there."""
    held = [
        pool_of_node[task.node] for task in job.tasks if task.state in _HOLDS_OR_NOMINATED and task.node in pool_of_node
    ]
    wanted = held[:1] or list(job.pools) or [DEFAULT_POOL]
    return [name for name in wanted if name in pools] or [pools[0]]
