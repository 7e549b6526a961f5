"""Plans for one cluster, one after the other, at a cost that grows with what changed.

A session keeps the scenes of the last plan, one for each node pool: devices, queues, jobs and batches stay, and a job
that came, went or changed is taken out and put in again. A plan is a trial in these scenes, taken back when it has been
written down: what becomes of it is told by the changes that follow. So a session gives the very plan that `plan` would
give for the same snapshot.

Nodes, queues and policies change seldom: then everything is made anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from aliquot.planner.allocate import restore_nominations
from aliquot.planner.cycle import no_collection, route, run_steps, still_waiting, try_elsewhere
from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import PENDING, RUNNING, JobState
from aliquot.planner.model import DEFAULT_POOL, Job, Policy, Snapshot
from aliquot.planner.placement.pool_state import Savepoint
from aliquot.planner.plan import Plan
from aliquot.planner.plan_builder import PlanBuilder
from aliquot.planner.preemption.stale_gangs import stop_stale_gangs
from aliquot.planner.queues.queue_order import Batch

_NO_POLICIES: Mapping[str, Policy] = {}


class IncrementalPlanner:
    def __init__(self) -> None:
        self._seen: Snapshot | None = None
        self._pools: dict[str, _Pool] = {}
        self._pool_of: dict[str, str] = {}  # by node
        self._routes: dict[str, list[str]] = {}  # by job, where there are several pools
        self._restless: set[str] = set()  # jobs that may have a turn in another pool

    def plan(
        self,
        snapshot: Snapshot,
        policy: Policy,
        now: float,
        policies: Mapping[str, Policy] = _NO_POLICIES,
        changed: Mapping[str, Job | None] | None = None,
    ) -> Plan:
        """The plan for a snapshot. `changed`: the jobs that are other than in the last one, None for those that are
        gone; without it everything is looked at."""
        with no_collection():
            if changed is None or not self._goes_on(snapshot, policy, policies, changed):
                self._begin(snapshot, policy, now, policies)
            else:
                for name, job in changed.items():
                    self._change(name, job)
                for pool in self._pools.values():
                    pool.state.now = now
                    pool.state.costs.set_time(now)
                    pool.state.compute_fair_shares()
            self._seen = snapshot
            return self._decide()

    def _goes_on(
        self, snapshot: Snapshot, policy: Policy, policies: Mapping[str, Policy], changed: Mapping[str, Job | None]
    ) -> bool:
        seen = self._seen
        return (
            seen is not None
            and seen.nodes is snapshot.nodes
            and seen.queues is snapshot.queues
            and seen.topologies is snapshot.topologies
            and seen.claims is snapshot.claims
            and all(
                pool.state.policy == policies.get(name, policy)
                and pool.state.policy.terminating_grace is None  # who is stuck is a matter of time
                and all(pool.knows(name, job) for name, job in changed.items())
                for name, pool in self._pools.items()
            )
        )

    def _begin(self, snapshot: Snapshot, policy: Policy, now: float, policies: Mapping[str, Policy]) -> None:
        for pool in self._pools.values():
            pool.state.close()
        self._pool_of = {node.name: node.pool for node in snapshot.nodes}
        names = sorted({*self._pool_of.values(), DEFAULT_POOL})
        jobs = sorted(snapshot.jobs, key=lambda job: job.name)
        self._routes = {job.name: route(job, self._pool_of, names) for job in jobs} if len(names) > 1 else {}
        self._restless = {name for name, found in self._routes.items() if len(found) > 1}
        self._pools = {}
        for name in names:
            state = CycleState(snapshot, policies.get(name, policy), now, name)
            here = [job for job in jobs if self._routes[job.name][0] == name] if self._routes else jobs
            self._pools[name] = _Pool(state, here)

    def _change(self, name: str, job: Job | None) -> None:
        if len(self._pools) == 1:
            pool = next(iter(self._pools.values()))
            pool.take_out(name)
        else:
            self._restless.discard(name)
            before = self._routes.pop(name, None)
            if before is not None:
                self._pools[before[0]].take_out(name)
            if job is not None:
                self._routes[name] = found = route(job, self._pool_of, list(self._pools))
                pool = self._pools[found[0]]
                if len(found) > 1:
                    self._restless.add(name)
        if job is not None:
            pool.put_in(job)

    def _decide(self) -> Plan:
        builder = PlanBuilder()
        pools = list(self._pools.values())
        savepoints = [pool.state.pool.savepoint() for pool in pools]
        waiting = [batch for pool in pools for batch in pool.run(builder)]
        if len(pools) > 1:
            for pool in pools:
                pool.await_guests()
            states = {name: pool.state for name, pool in self._pools.items()}
            left = still_waiting(waiting, self._restless) if self._restless else []
            try_elsewhere(states, left, self._routes, builder)
        for pool in pools:
            stop_stale_gangs(pool.state, builder)
        decided = builder.plan(pool.state for pool in pools)
        for pool, savepoint in zip(pools, savepoints, strict=True):
            pool.rest(savepoint)
            if len(pools) > 1:
                pool.send_away()
        return decided


class _Pool:
    """One node pool, with the jobs that have their first turn in it."""

    def __init__(self, state: CycleState, jobs: Iterable[Job]) -> None:
        self.state = state
        state.admit(jobs)
        self._states = {job.name: job for job in state.jobs}
        self._batches: dict[object, Batch] = {}
        self._batch_of: dict[str, object] = {}
        self._own = 0
        self._waits: list[list[int]] = []
        for job in state.jobs:
            self._line_up(job)

    def knows(self, name: str, job: Job | None) -> bool:
        """Whether it can be changed here: the rules about neighbours that it brings are looked at already, and it is
        and was of some project, or holds nothing."""
        if name in self.state.queueless_jobs:
            return False
        if job is None:
            return True
        if job.queue not in self.state.tree.queues and any(task.node for task in job.tasks):
            return False
        watched = self.state.pool.pod_affinity.watched
        return (job.pod_affinity is None or job.pod_affinity in watched) and (
            job.pod_anti_affinity is None or self.state.pool.pod_affinity.refuses(job.pod_anti_affinity)
        )

    def run(self, builder: PlanBuilder) -> list[Batch]:
        """All steps for its own jobs. Returns who still waits."""
        state = self.state
        void = restore_nominations(state, state.nominated)
        begun = [job for job in state.nominated if job in void or job.waits]
        extra = state.batches(job for job in begun if job.name not in state.unschedulable and job.next_tasks())
        return run_steps(state, [*self._batches.values(), *extra], builder)

    def rest(self, savepoint: Savepoint) -> None:
        """Everything as it was before the plan."""
        self.state.pool.rollback(savepoint)
        self.state.pool.rest()
        self.state.candidate_heaps = {}
        self.state.reservation = None
        for batch in self._batches.values():
            batch.served = 0

    def await_guests(self) -> None:
        """Jobs of other pools may come for the rest of this plan."""
        self._own = len(self.state.jobs)
        self._waits = [list(leaf.pending) for leaf in self.state.tree.leaves]

    def send_away(self) -> None:
        """They waited, and hold nothing."""
        state = self.state
        for job_state in state.jobs[self._own :]:
            self._forget(job_state)
            for member in job_state.members:
                state.sample(member, -1)
                del member.job
        del state.jobs[self._own :]
        for leaf, waits in zip(state.tree.leaves, self._waits, strict=True):
            leaf.pending = waits

    # ---------------------------------------------------------------- changes

    def take_out(self, name: str) -> None:
        job_state = self._states.pop(name, None)
        self.state.unschedulable.pop(name, None)
        if job_state is None:
            return
        state = self.state
        self._count(job_state, -1)
        del state.jobs[bisect_left(state.jobs, job_state.name, key=lambda one: one.name)]
        self._forget(job_state)
        key = self._batch_of.pop(job_state.name, None)
        if key is not None:
            batch = self._batches[key]
            del batch.jobs[bisect_left(batch.jobs, job_state.order(), key=JobState.order)]
            if not batch.jobs:
                del self._batches[key]
        for member in job_state.members:
            del member.job

    def put_in(self, job: Job) -> None:
        state = self.state
        job_state = state.make(job)
        if job_state is None:
            return
        self._states[job.name] = job_state
        self._count(job_state, 1)
        insort(state.jobs, job_state, key=lambda one: one.name)
        if not job_state.alone:
            state.gangs[job.name] = job_state
        self._line_up(job_state)

    def _forget(self, job_state: JobState) -> None:
        state = self.state
        state.gangs.pop(job_state.name, None)
        state.nominated.pop(job_state, None)
        for member in job_state.members:
            state.costs.forget(member)

    def _count(self, job_state: JobState, sign: int) -> None:
        state = self.state
        if sign < 0:
            state.victims.count(job_state, sign)
        for member in job_state.members:
            state.sample(member, sign)
            if member.state == PENDING:
                amount = state.placer.task_class(member).amount
                for r in range(3):
                    job_state.queue.pending[r] += sign * amount[r]
            elif member.origin is not None:
                state.pool.enter(member, sign)
                if member.state <= RUNNING:
                    job_state.queue.add_usage(member.amount, job_state.nonpreemptible, sign)
        if sign > 0:
            state.victims.count(job_state)

    def _line_up(self, job: JobState) -> None:
        """Into its batch. Who has a promise is judged anew each time, once it is known whether it can be kept."""
        state = self.state
        if job in state.nominated or not job.waits or job.name in state.unschedulable:
            return
        members = job.next_tasks()
        if not members:
            return
        key = (job.queue.name, state.signature(job, members))
        batch = self._batches.get(key)
        if batch is None:
            self._batches[key] = Batch([job])
        else:
            insort(batch.jobs, job, key=JobState.order)
        self._batch_of[job.name] = key


def changes(before: Snapshot, after: Snapshot) -> dict[str, Job | None]:
    """The jobs that differ between two snapshots."""
    old = {job.name: job for job in before.jobs}
    found: dict[str, Job | None] = {job.name: job for job in after.jobs if old.pop(job.name, None) != job}
    return found | dict.fromkeys(old)
