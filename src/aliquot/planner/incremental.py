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
                    pool.scene.now = now
                    pool.scene.costs.set_time(now)
                    pool.scene.share_out()
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
                pool.scene.policy == policies.get(name, policy)
                and pool.scene.policy.terminating_grace is None  # who is stuck is a matter of time
                and all(pool.knows(name, job) for name, job in changed.items())
                for name, pool in self._pools.items()
            )
        )

    def _begin(self, snapshot: Snapshot, policy: Policy, now: float, policies: Mapping[str, Policy]) -> None:
        for pool in self._pools.values():
            pool.scene.close()
        self._pool_of = {node.name: node.pool for node in snapshot.nodes}
        names = sorted({*self._pool_of.values(), DEFAULT_POOL})
        jobs = sorted(snapshot.jobs, key=lambda job: job.name)
        self._routes = {job.name: route(job, self._pool_of, names) for job in jobs} if len(names) > 1 else {}
        self._restless = {name for name, found in self._routes.items() if len(found) > 1}
        self._pools = {}
        for name in names:
            scene = CycleState(snapshot, policies.get(name, policy), now, name)
            here = [job for job in jobs if self._routes[job.name][0] == name] if self._routes else jobs
            self._pools[name] = _Pool(scene, here)

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
        outcome = PlanBuilder()
        pools = list(self._pools.values())
        marks = [pool.scene.room.mark() for pool in pools]
        waiting = [batch for pool in pools for batch in pool.run(outcome)]
        if len(pools) > 1:
            for pool in pools:
                pool.await_guests()
            scenes = {name: pool.scene for name, pool in self._pools.items()}
            left = still_waiting(waiting, self._restless) if self._restless else []
            try_elsewhere(scenes, left, self._routes, outcome)
        for pool in pools:
            stop_stale_gangs(pool.scene, outcome)
        decided = outcome.plan(pool.scene for pool in pools)
        for pool, mark in zip(pools, marks, strict=True):
            pool.rest(mark)
            if len(pools) > 1:
                pool.send_away()
        return decided


class _Pool:
    """One node pool, with the jobs that have their first turn in it."""

    def __init__(self, scene: CycleState, jobs: Iterable[Job]) -> None:
        self.scene = scene
        scene.admit(jobs)
        self._states = {job.name: job for job in scene.jobs}
        self._batches: dict[object, Batch] = {}
        self._batch_of: dict[str, object] = {}
        self._own = 0
        self._waits: list[list[int]] = []
        for job in scene.jobs:
            self._line_up(job)

    def knows(self, name: str, job: Job | None) -> bool:
        """Whether it can be changed here: the rules about neighbours that it brings are looked at already, and it is
        and was of some project, or holds nothing."""
        if name in self.scene.strangers:
            return False
        if job is None:
            return True
        if job.queue not in self.scene.tree.queues and any(task.node for task in job.tasks):
            return False
        watched = self.scene.room.neighbours.watched
        return (job.near is None or job.near in watched) and (
            job.apart is None or self.scene.room.neighbours.refuses(job.apart)
        )

    def run(self, outcome: PlanBuilder) -> list[Batch]:
        """All steps for its own jobs. Returns who still waits."""
        scene = self.scene
        void = restore_nominations(scene, scene.promised)
        begun = [job for job in scene.promised if job in void or job.waits]
        extra = scene.batches(job for job in begun if job.name not in scene.unready and job.next_tasks())
        return run_steps(scene, [*self._batches.values(), *extra], outcome)

    def rest(self, mark: Savepoint) -> None:
        """Everything as it was before the plan."""
        self.scene.room.undo(mark)
        self.scene.room.rest()
        self.scene.candidate_heaps = {}
        self.scene.kept = None
        for batch in self._batches.values():
            batch.served = 0

    def await_guests(self) -> None:
        """Jobs of other pools may come for the rest of this plan."""
        self._own = len(self.scene.jobs)
        self._waits = [list(leaf.pending) for leaf in self.scene.tree.leaves]

    def send_away(self) -> None:
        """They waited, and hold nothing."""
        scene = self.scene
        for state in scene.jobs[self._own :]:
            self._forget(state)
            for member in state.members:
                scene.sample(member, -1)
                del member.job
        del scene.jobs[self._own :]
        for leaf, waits in zip(scene.tree.leaves, self._waits, strict=True):
            leaf.pending = waits

    # ---------------------------------------------------------------- changes

    def take_out(self, name: str) -> None:
        state = self._states.pop(name, None)
        self.scene.unready.pop(name, None)
        if state is None:
            return
        scene = self.scene
        self._count(state, -1)
        del scene.jobs[bisect_left(scene.jobs, state.name, key=lambda one: one.name)]
        self._forget(state)
        key = self._batch_of.pop(state.name, None)
        if key is not None:
            batch = self._batches[key]
            del batch.jobs[bisect_left(batch.jobs, state.order(), key=JobState.order)]
            if not batch.jobs:
                del self._batches[key]
        for member in state.members:
            del member.job

    def put_in(self, job: Job) -> None:
        scene = self.scene
        state = scene.make(job)
        if state is None:
            return
        self._states[job.name] = state
        self._count(state, 1)
        insort(scene.jobs, state, key=lambda one: one.name)
        if not state.alone:
            scene.gangs[job.name] = state
        self._line_up(state)

    def _forget(self, state: JobState) -> None:
        scene = self.scene
        scene.gangs.pop(state.name, None)
        scene.promised.pop(state, None)
        for member in state.members:
            scene.costs.forget(member)

    def _count(self, state: JobState, sign: int) -> None:
        scene = self.scene
        if sign < 0:
            scene.victims.count(state, sign)
        for member in state.members:
            scene.sample(member, sign)
            if member.state == PENDING:
                amount = scene.placer.kind(member).amount
                for r in range(3):
                    state.queue.pending[r] += sign * amount[r]
            elif member.home is not None:
                scene.room.enter(member, sign)
                if member.state <= RUNNING:
                    state.queue.add_usage(member.amount, state.fixed, sign)
        if sign > 0:
            scene.victims.count(state)

    def _line_up(self, job: JobState) -> None:
        """Into its batch. Who has a promise is judged anew each time, once it is known whether it can be kept."""
        scene = self.scene
        if job in scene.promised or not job.waits or job.name in scene.unready:
            return
        members = job.next_tasks()
        if not members:
            return
        key = (job.queue.name, scene.signature(job, members))
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
