"""Plans for one cluster, one after the other, at a cost that grows with what changed.

A session keeps the scene of the last plan: devices, queues, jobs and batches stay, and a job that came, went or changed
is taken out and put in again. A plan is a trial in that scene, taken back when it has been written down: what becomes
of it is told by the changes that follow. So a session gives the very plan that `plan` would give for the same snapshot.

Nodes, queues and the policy change seldom: then everything is made anew, and so it is for clusters of several node
pools, whose jobs may be refused in one and served in another.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

from aliquot.core.allocate import keep_promises
from aliquot.core.cycle import no_collection, plan, run_steps
from aliquot.core.jobs import PENDING, RUNNING, JobState
from aliquot.core.model import DEFAULT_POOL, Job, Policy, Snapshot
from aliquot.core.outcome import Outcome
from aliquot.core.plan import Plan
from aliquot.core.scene import Scene
from aliquot.core.stale import stop_stale_gangs
from aliquot.core.turns import Batch

_NO_POLICIES: Mapping[str, Policy] = {}


class Session:
    def __init__(self) -> None:
        self._scene: Scene | None = None
        self._seen: Snapshot | None = None
        self._states: dict[str, JobState] = {}
        self._batches: dict[object, Batch] = {}
        self._batch_of: dict[str, object] = {}

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
        pools = {node.pool for node in snapshot.nodes} | {DEFAULT_POOL}
        if len(pools) > 1:
            self._scene = None
            return plan(snapshot, policy, now, policies)
        policy = policies.get(DEFAULT_POOL, policy)
        with no_collection():
            scene = self._scene
            if scene is None or changed is None or not self._goes_on(scene, snapshot, policy, changed):
                scene = self._begin(snapshot, policy, now)
            else:
                scene.now = now
                for name, job in changed.items():
                    self._change(scene, name, job)
                scene.share_out()
            self._seen = snapshot
            return self._decide(scene)

    def _goes_on(self, scene: Scene, snapshot: Snapshot, policy: Policy, changed: Mapping[str, Job | None]) -> bool:
        seen = self._seen
        return (
            seen is not None
            and seen.nodes is snapshot.nodes
            and seen.queues is snapshot.queues
            and seen.topologies is snapshot.topologies
            and seen.claims is snapshot.claims
            and scene.policy == policy
            and policy.terminating_grace is None  # who is stuck is a matter of time
            and all(job is None or self._knows(scene, job) for job in changed.values())
        )

    def _knows(self, scene: Scene, job: Job) -> bool:
        """Whether the rules about neighbours that a job brings are looked at already."""
        watched = scene.room.neighbours.watched
        return (job.near is None or job.near in watched) and (
            job.apart is None or scene.room.neighbours.refuses(job.apart)
        )

    def _begin(self, snapshot: Snapshot, policy: Policy, now: float) -> Scene:
        if self._scene is not None:
            self._scene.close()
        self._scene = scene = Scene(snapshot, policy, now)
        scene.admit(sorted(snapshot.jobs, key=lambda job: job.name))
        self._states = {job.name: job for job in scene.jobs}
        self._batches, self._batch_of = {}, {}
        for job in scene.jobs:
            self._line_up(scene, job)
        return scene

    def _decide(self, scene: Scene) -> Plan:
        outcome = Outcome()
        mark = scene.room.mark()
        void = keep_promises(scene, scene.promised)
        begun = [job for job in scene.promised if job in void or job.waits]
        extra = scene.batches(job for job in begun if job.name not in scene.unready and job.next_tasks())
        run_steps(scene, [*self._batches.values(), *extra], outcome)
        stop_stale_gangs(scene, outcome)
        decided = outcome.plan([scene])
        scene.room.undo(mark)
        scene.room.rest()
        scene.ledgers = {}
        for batch in self._batches.values():
            batch.at = 0
        return decided

    # ---------------------------------------------------------------- changes

    def _change(self, scene: Scene, name: str, job: Job | None) -> None:
        old = self._states.pop(name, None)
        scene.unready.pop(name, None)
        if old is not None:
            self._take_out(scene, old)
        if job is None:
            return
        state = scene.make(job)
        if state is None:
            return
        self._states[name] = state
        self._count(scene, state, 1)
        insort(scene.jobs, state, key=lambda one: one.name)
        if len(state.members) > 1:
            scene.gangs[name] = state
        self._line_up(scene, state)

    def _take_out(self, scene: Scene, state: JobState) -> None:
        self._count(scene, state, -1)
        del scene.jobs[bisect_left(scene.jobs, state.name, key=lambda one: one.name)]
        scene.gangs.pop(state.name, None)
        scene.promised.pop(state, None)
        key = self._batch_of.pop(state.name, None)
        if key is not None:
            batch = self._batches[key]
            del batch.jobs[bisect_left(batch.jobs, state.order(), key=JobState.order)]
            if not batch.jobs:
                del self._batches[key]
        for member in state.members:
            scene.costs.forget(member)
            del member.job

    def _count(self, scene: Scene, state: JobState, sign: int) -> None:
        if sign < 0:
            scene.tenants.enter(state, sign)
        for member in state.members:
            if member.state == PENDING:
                amount = scene.placer.kind(member).amount
                for r in range(3):
                    state.queue.waits[r] += sign * amount[r]
            elif member.home is not None:
                scene.room.enter(member, sign)
                if member.state <= RUNNING:
                    state.queue.hold(member.amount, state.fixed, sign)
        if sign > 0:
            scene.tenants.enter(state)

    def _line_up(self, scene: Scene, job: JobState) -> None:
        """Into its batch. Who has a promise is judged anew each time, once it is known whether it can be kept."""
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
