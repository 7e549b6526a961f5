"""The entry points: `plan` for one snapshot, `IncrementalPlanner` for one snapshot after another.

The incremental planner keeps the cycle states of the last plan, one for each node pool. Nodes, queues, jobs and batches
stay, and a job that was added, removed or changed is taken out and put in again. So the cost of a plan grows with what
changed. A cycle is a trial in these states, which is rolled back before the next one: what became of the plan is in the
changes that follow. Planning from scratch is the same with nothing kept, so both give the same plan for a snapshot.

Nodes, queues and policies seldom change. When they do, all states are built again.
"""

from __future__ import annotations

import gc
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from aliquot.planner.cycle import pool_names, route, run_cycle
from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import PENDING, PRESENT, JobState
from aliquot.planner.model import Job, Policy, Snapshot
from aliquot.planner.plan import Plan
from aliquot.planner.queues.queue_order import Batch

_DEFAULT_POLICY = Policy()
_NO_POLICIES: Mapping[str, Policy] = {}


def plan(
    snapshot: Snapshot,
    policy: Policy = _DEFAULT_POLICY,
    now: float = 0,
    policies: Mapping[str, Policy] = _NO_POLICIES,
) -> Plan:
    """Plan from scratch. `policies` replace `policy` in the node pools that they name."""
    with gc_paused():
        planner = IncrementalPlanner()
        decided = planner.plan(snapshot, policy, now, policies)
        planner.close()
    return decided


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector. All that a plan allocates lives until its end, so that collections in between would
    find nothing and double its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class IncrementalPlanner:
    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._pools: dict[str, _CachedPool] = {}
        self._pool_of_node: dict[str, str] = {}
        self._routes: dict[str, list[str]] = {}  # by job; empty where there is one pool

    def plan(
        self,
        snapshot: Snapshot,
        policy: Policy,
        now: float,
        policies: Mapping[str, Policy] = _NO_POLICIES,
        changed: Mapping[str, Job | None] | None = None,
    ) -> Plan:
        """The plan for a snapshot. `changed`: the jobs that differ from the last snapshot, None for those that were
        removed; without it everything is built again."""
        with gc_paused():
            if changed is None or not self._can_continue(snapshot, policy, policies, changed):
                self._rebuild(snapshot, policy, now, policies)
            else:
                self._continue(now, changed)
            self._snapshot = snapshot
            for pool in self._pools.values():
                pool.begin_trial()
            return run_cycle(
                {name: pool.state for name, pool in self._pools.items()},
                {name: pool.batches.values() for name, pool in self._pools.items()},
                self._routes,
            )

    def close(self) -> None:
        """Free the memory of the cycle states at once."""
        for pool in self._pools.values():
            pool.state.close()
        self._pools, self._snapshot = {}, None

    def _can_continue(
        self, snapshot: Snapshot, policy: Policy, policies: Mapping[str, Policy], changed: Mapping[str, Job | None]
    ) -> bool:
        last = self._snapshot
        return (
            last is not None
            and last.nodes is snapshot.nodes
            and last.queues is snapshot.queues
            and last.topologies is snapshot.topologies
            and last.claims is snapshot.claims
            and all(
                pool.state.policy == policies.get(name, policy)
                and pool.state.policy.terminating_grace is None  # with one, a task becomes stuck as time passes
                and all(pool.can_change(name, job) for name, job in changed.items())
                for name, pool in self._pools.items()
            )
        )

    def _rebuild(self, snapshot: Snapshot, policy: Policy, now: float, policies: Mapping[str, Policy]) -> None:
        self.close()
        self._pool_of_node = {node.name: node.pool for node in snapshot.nodes}
        names = pool_names(snapshot)
        jobs = sorted(snapshot.jobs, key=lambda job: job.name)
        self._routes = {job.name: route(job, self._pool_of_node, names) for job in jobs} if len(names) > 1 else {}
        for name in names:
            state = CycleState(snapshot, policies.get(name, policy), now, name)
            here = [job for job in jobs if self._routes[job.name][0] == name] if self._routes else jobs
            self._pools[name] = _CachedPool(state, here)

    def _continue(self, now: float, changed: Mapping[str, Job | None]) -> None:
        for pool in self._pools.values():
            pool.roll_back_trial()
        for name, job in changed.items():
            self._change(name, job)
        for pool in self._pools.values():
            pool.state.now = now
            pool.state.costs.set_time(now)
            pool.state.compute_fair_shares()

    def _change(self, name: str, job: Job | None) -> None:
        if len(self._pools) == 1:
            (pool,) = self._pools.values()
            pool.remove(name)
        else:
            before = self._routes.pop(name, None)
            if before is not None:
                self._pools[before[0]].remove(name)
            if job is not None:
                self._routes[name] = route(job, self._pool_of_node, list(self._pools))
                pool = self._pools[self._routes[name][0]]
        if job is not None:
            pool.add(job)


class _CachedPool:
    """The state of one node pool, with the jobs that try this pool first."""

    def __init__(self, state: CycleState, jobs: Iterable[Job]) -> None:
        self.state = state
        state.add_jobs(jobs)
        self.batches: dict[object, Batch] = state.pending_batches(state.jobs)

    # ---------------------------------------------------------------- trials

    def begin_trial(self) -> None:
        self._savepoint = self.state.pool.savepoint()
        self._own_jobs = len(self.state.jobs)
        self._pending = [list(leaf.pending) for leaf in self.state.tree.leaves]

    def roll_back_trial(self) -> None:
        """Restore the state before the last cycle."""
        state = self.state
        state.pool.rollback(self._savepoint)
        state.pool.merge_views()
        state.candidate_heaps = {}
        state.reservation = None
        for batch in self.batches.values():
            batch.served = 0
        self._remove_jobs_of_other_pools()

    def _remove_jobs_of_other_pools(self) -> None:
        """Remove the jobs that other pools refused and that tried this one. They are pending, and hold nothing."""
        state = self.state
        for job in state.jobs[self._own_jobs :]:
            self._forget(job)
            for member in job.members:
                state.count_shape(member, -1)
                del member.job
        del state.jobs[self._own_jobs :]
        for leaf, pending in zip(state.tree.leaves, self._pending, strict=True):
            leaf.pending = pending

    # ---------------------------------------------------------------- changes

    def can_change(self, name: str, job: Job | None) -> bool:
        """Whether a job can be changed in this state: its pod affinity terms are counted already, and both versions
        belong to a project or hold nothing."""
        if name in self.state.queueless_jobs:
            return False
        if job is None:
            return True
        if job.queue not in self.state.tree.queues and any(task.node for task in job.tasks):
            return False
        pod_affinity = self.state.pool.pod_affinity
        return (job.pod_affinity is None or job.pod_affinity in pod_affinity.terms) and (
            job.pod_anti_affinity is None or pod_affinity.watches_anti_affinity(job.pod_anti_affinity)
        )

    def remove(self, name: str) -> None:
        state = self.state
        position = bisect_left(state.jobs, name, key=_name)
        if position < len(state.jobs) and state.jobs[position].name == name:
            job = state.jobs[position]
            self._remove_from_batch(job)
            self._count(job, -1)
            del state.jobs[position]
            self._forget(job)
            for member in job.members:
                del member.job
        state.unschedulable.pop(name, None)

    def add(self, source: Job) -> None:
        state = self.state
        job = state.make_job(source)
        if job is None:
            return
        self._count(job, 1)
        insort(state.jobs, job, key=_name)
        if not job.single_task:
            state.gangs[job.name] = job
        self._add_to_batch(job)

    def _forget(self, job: JobState) -> None:
        self.state.gangs.pop(job.name, None)
        self.state.nominated.pop(job, None)
        for member in job.members:
            self.state.costs.forget(member)

    def _count(self, job: JobState, sign: int) -> None:
        """Count a job in the pool, in its queue and among the victims; with sign -1 take it out."""
        state = self.state
        if sign < 0:
            state.victims.count(job, sign)
        for member in job.members:
            state.count_shape(member, sign)
            if member.state is PENDING:
                amount = state.placer.task_class(member).amount
                for r in range(3):
                    job.queue.pending[r] += sign * amount[r]
            elif member.origin is not None:
                if sign > 0:
                    state.pool.add_sorted(member)
                else:
                    state.pool.remove_sorted(member)
                if member.state in PRESENT:
                    job.queue.add_usage(member.amount, job.nonpreemptible, sign)
        if sign > 0:
            state.victims.count(job)

    def _add_to_batch(self, job: JobState) -> None:
        key = self.state.batch_key_of(job)
        if key is not None:
            batch = self.batches.setdefault(key, Batch([]))
            insort(batch.jobs, job, key=JobState.order)

    def _remove_from_batch(self, job: JobState) -> None:
        key = self.state.batch_key_of(job)
        if key is not None:
            batch = self.batches[key]
            del batch.jobs[bisect_left(batch.jobs, job.order(), key=JobState.order)]
            if not batch.jobs:
                del self.batches[key]


def _name(job: JobState) -> str:
    return job.name


def changes(before: Snapshot, after: Snapshot) -> dict[str, Job | None]:
    """The jobs that differ between two snapshots."""
    old = {job.name: job for job in before.jobs}
    changed: dict[str, Job | None] = {job.name: job for job in after.jobs if old.pop(job.name, None) != job}
    return changed | dict.fromkeys(old)
