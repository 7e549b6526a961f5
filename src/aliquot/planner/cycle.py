"""One cycle of the scheduler, as a numbered list.

 1. Promises: whoever was promised a place that is free now starts there.
 2. Allocate: waiting jobs, whoever's turn it is, get what is free; nobody is disturbed.
 3. Consolidate: where only fragmentation is in the way, running jobs are moved together.
 4. Reclaim: who is due more takes it back from those who hold more than they are due.
 5. Preempt: inside one project, lower priority makes way for higher.
 6. Stale gangs: a gang that has run with too few members for too long is stopped.
 7. Whoever still waits is told why.

The same snapshot gives the same plan, whatever the order of its parts. Each node pool is a cluster of its own, with its
own shares; a job that is refused in one pool has its turn in the next that it names.
"""

from __future__ import annotations

import gc
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager

from aliquot.planner.allocate import allocate, restore_nominations
from aliquot.planner.cycle_state import CycleState
from aliquot.planner.model import DEFAULT_POOL, Job, Policy, Snapshot, TaskState
from aliquot.planner.plan import Plan
from aliquot.planner.plan_builder import PlanBuilder
from aliquot.planner.preemption.driver import make_room
from aliquot.planner.preemption.stale_gangs import stop_stale_gangs
from aliquot.planner.queues.queue_order import Batch

_HOLDING = (TaskState.RUNNING, TaskState.NOMINATED, TaskState.RELEASING, TaskState.EVICTED)
_DEFAULT = Policy()
_SAME: Mapping[str, Policy] = {}


def plan(snapshot: Snapshot, policy: Policy = _DEFAULT, now: float = 0, policies: Mapping[str, Policy] = _SAME) -> Plan:
    """Decide. `policies` holds for the node pools it names instead of `policy`."""
    with no_collection():
        return _plan(snapshot, policy, now, policies)


@contextmanager
def no_collection() -> Iterator[None]:
    """All that a plan allocates lives until it is done: to look for garbage meanwhile would double its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _plan(snapshot: Snapshot, policy: Policy, now: float, policies: Mapping[str, Policy]) -> Plan:
    jobs = sorted(snapshot.jobs, key=lambda job: job.name)
    names = sorted({node.pool for node in snapshot.nodes} | {DEFAULT_POOL})
    builder = PlanBuilder()
    states = {name: CycleState(snapshot, policies.get(name, policy), now, name) for name in names}
    routes = pool_routes(jobs, snapshot, names)
    restless = {name for name, found in routes.items() if len(found) > 1}
    left: list[Job] = []
    for name, state in states.items():
        here = [job for job in jobs if routes[job.name][0] == name] if len(names) > 1 else jobs
        waiting = _run(state, here, builder)
        left += still_waiting(waiting, restless) if restless else []
    try_elsewhere(states, left, routes, builder)
    for state in states.values():
        stop_stale_gangs(state, builder)
    decided = builder.plan(states.values())
    for state in states.values():
        state.close()
    return decided


def pool_routes(jobs: list[Job], snapshot: Snapshot, names: list[str]) -> dict[str, list[str]]:
    """The pools each job tries, in order."""
    if len(names) == 1:
        return dict.fromkeys((job.name for job in jobs), names)
    pool_of = {node.name: node.pool for node in snapshot.nodes}
    return {job.name: route(job, pool_of, names) for job in jobs}


def route(job: Job, pool_of: Mapping[str, str], names: list[str]) -> list[str]:
    """The pools a job tries, in order. Who holds something in a pool stays there."""
    held = [pool_of[task.node] for task in job.tasks if task.state in _HOLDING and task.node in pool_of]
    wished = held[:1] or list(job.pools) or [DEFAULT_POOL]
    return [name for name in wished if name in names] or [names[0]]


def try_elsewhere(
    states: Mapping[str, CycleState], left: list[Job], routes: Mapping[str, list[str]], builder: PlanBuilder
) -> None:
    """Whoever was refused in one pool has its turn in the next that it names."""
    turn = 1
    while jobs := sorted((job for job in left if len(routes[job.name]) > turn), key=lambda job: job.name):
        left = []
        for name, state in states.items():
            here = [job for job in jobs if routes[job.name][turn] == name]
            if here:
                left += still_waiting(_run(state, here, builder), routes)
        turn += 1


def _run(state: CycleState, jobs: list[Job], builder: PlanBuilder) -> list[Batch]:
    """All steps for these jobs in one pool. Returns who still waits."""
    came = state.admit(jobs)
    void = restore_nominations(state, [job for job in came if job in state.nominated] if state.nominated else [])
    ready = {**dict.fromkeys(state.ready(came)), **dict.fromkeys(job for job in void if job.next_tasks())}
    return run_steps(state, state.batches(ready), builder)


def still_waiting(batches: list[Batch], names: Container[str]) -> list[Job]:
    """Who of these may have a turn in another pool: who has something here stays here."""
    return [job.source for batch in batches for job in batch.remaining() if job.name in names and not job.present]


def run_steps(state: CycleState, batches: list[Batch], builder: PlanBuilder) -> list[Batch]:
    """Steps 2 to 5. Returns who still waits."""
    builder.tried(state, batches)
    steps, waiting = state.policy.steps, batches
    if "allocate" in steps:
        waiting = allocate(state, waiting, builder)
    for step in ("consolidate", "reclaim", "preempt"):
        if step in steps and waiting:
            waiting = make_room(state, waiting, step, builder)
    return waiting
