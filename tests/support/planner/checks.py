"""Invariants of every plan: nothing is allocated twice, no task is evicted in vain.

check   asserts all of them
after   the snapshot after a plan was applied
settle  plans and applies until nothing changes
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TypeVar

from aliquot.planner import Bind, Eviction, Job, Nomination, Plan, Policy, Snapshot, Task, TaskState, plan
from support.planner.reference import HOLDS_NOW, POOL, Location, ReferenceState, has_minimum, may_use

T = TypeVar("T")
_STANDS = (TaskState.PENDING, TaskState.NOMINATED)


def check(snapshot: Snapshot, policy: Policy, decided: Plan, now: float = 0) -> None:
    Check(snapshot, policy, decided, now).all()


class Check:
    def __init__(self, snapshot: Snapshot, policy: Policy, decided: Plan, now: float) -> None:
        self.now = now
        self.snapshot = snapshot
        self.policy = policy
        self.plan = decided
        self.jobs = {job.name: job for job in snapshot.jobs}
        self.tasks = {(job.name, task.name): task for job in snapshot.jobs for task in job.tasks}
        self.before = ReferenceState(snapshot)
        self.places: list[Bind | Nomination] = [*decided.binds, *decided.nominations]
        self.new = [placement for placement in self.places if self._task(placement).state is TaskState.PENDING]

    def _task(self, decision: Bind | Nomination | Eviction) -> Task:
        return self.tasks[decision.job, decision.task]

    def all(self) -> None:
        self.one_decision_per_task()
        self.placements_are_valid()
        self.evictions_are_allowed()
        self.fits_now()
        self.after_release = self.fits_after_release()
        self.queues_within_bounds()
        self.protected_jobs_keep_minimum()
        self.gangs_are_whole()
        self.satisfies_constraints()
        self.waiting_jobs_have_refusals()

    def one_decision_per_task(self) -> None:
        """The plan has at most one decision for a task."""
        decisions = Counter((decision.job, decision.task) for decision in (*self.places, *self.plan.evictions))
        assert all(count == 1 for count in decisions.values()), f"two decisions: {decisions.most_common(1)}"
        for placement in self.places:
            assert self._task(placement).state in _STANDS, (
                f"{placement.task} is placed and was {self._task(placement).state}"
            )

    def placements_are_valid(self) -> None:
        """A task is on a node that it may use, on existing devices, with the shares that it requested."""
        locations = [(placement.job, placement.task, (placement.node, placement.shares)) for placement in self.new]
        locations += [
            (eviction.job, eviction.task, (eviction.to.node, eviction.to.shares))
            for eviction in self.plan.evictions
            if eviction.to
        ]
        for job, name, (node, shares) in locations:
            task = self.tasks[job, name]
            request, devices = task.request, self.before.free[node].devices
            assert may_use(self.jobs[job], task, self.before.nodes[node]), f"{name} may not use {node}"
            assert len({share.index for share in shares}) == len(shares), f"{name} has a device twice"
            wanted = sum(count for _, count in request.mig) if request.mig else request.devices
            assert len(shares) == wanted, f"{name} has {len(shares)} of {wanted} devices"
            assert all(share == request.share_of(devices[share.index]) for share in shares), f"{name}: {shares}"
            profiles = Counter(devices[share.index].profile for share in shares)
            assert profiles == Counter(dict(request.mig) if request.mig else {"": wanted} if wanted else {})

    def evictions_are_allowed(self) -> None:
        """The named rule allows each eviction, and the job that it is for is placed."""
        served = {placement.job for placement in self.places}
        for eviction in self.plan.evictions:
            job, task = self.jobs[eviction.job], self._task(eviction)
            assert task.state is TaskState.RUNNING
            assert task.node == eviction.node
            if eviction.rule == "stale-gang":
                continue
            by = self.jobs[eviction.by]
            assert job.preemptible, f"{job.name} may not be stopped"
            assert eviction.by in served, f"{job.name} is stopped for {eviction.by}, which gets nothing"
            assert eviction.rule in self.policy.steps
            match eviction.rule:
                case "reclaim":
                    assert by.queue != job.queue, f"{job.name} is reclaimed inside {job.queue}"
                case "preempt":
                    assert by.queue == job.queue, f"{job.name} is preempted from another queue"
                    assert by.priority > job.priority, f"{job.name} is preempted by no higher priority"
                case "consolidate":
                    assert eviction.to is not None, f"{job.name} is stopped to move things together"
                case _:
                    raise AssertionError(f"no such rule: {eviction.rule}")

    def _moves(self, nominated: bool) -> list[tuple[str, str, Location]]:
        moved = [
            eviction for eviction in self.plan.evictions if eviction.to is not None and eviction.nominated is nominated
        ]
        return [
            (eviction.job, eviction.task, (eviction.to.node, eviction.to.shares)) for eviction in moved if eviction.to
        ]

    def fits_now(self) -> None:
        """What starts fits beside all tasks that still hold devices."""
        now = ReferenceState(self.snapshot, HOLDS_NOW)
        for job, task, (node, shares) in [
            *((bind.job, bind.task, (bind.node, bind.shares)) for bind in self.plan.binds),
            *self._moves(nominated=False),
        ]:
            now.free[node].add(self.tasks[job, task].request, shares, -1)
        for name, free in now.free.items():
            assert free.not_overallocated, f"more than there is on {name} now"

    def fits_after_release(self, pool: str = POOL) -> ReferenceState:
        """All placements fit after release. A nomination that the plan does not repeat is withdrawn."""
        after_release = ReferenceState(self.snapshot, pool=pool)
        for gone in self.plan.evictions:
            after_release.remove(self.jobs[gone.job], self._task(gone))
        for job in self.jobs.values():
            for task in job.tasks:
                if task.state is TaskState.NOMINATED and (job.name, task.name) in after_release.locations:
                    after_release.remove(job, task)
        for placement in self.places:
            after_release.place(self.jobs[placement.job], self._task(placement), (placement.node, placement.shares))
        for job_name, task_name, location in [*self._moves(False), *self._moves(True)]:
            after_release.place(self.jobs[job_name], self.tasks[job_name, task_name], location)
        for node, free in after_release.free.items():
            assert free.not_overallocated, f"more than there is on {node} after release"
        return after_release

    def queues_within_bounds(self) -> None:
        """No new task takes a queue over its limit, and nonpreemptible tasks stay within quota."""
        pools = {pool: self.fits_after_release(pool) for pool in {node.pool for node in self.snapshot.nodes}}
        for placement in self.new:
            after_release = pools[self.after_release.nodes[placement.node].pool]
            asked = after_release.amount(self._task(placement), (placement.node, placement.shares))
            over = after_release.over(self.jobs[placement.job], [r for r in range(3) if asked[r]])
            assert over is None, f"{placement.task}: {over}"

    def protected_jobs_keep_minimum(self) -> None:
        """A job that was evicted too often keeps its minimum of tasks in place. A job below its minimum runtime keeps
        it too, in place or moved."""
        for eviction in self.plan.evictions:
            job = self.jobs[eviction.job]
            if eviction.rule != "stale-gang" and self.before.evicted_too_often(job, self.policy, self.now):
                gone = Counter(self._task(other).subgroup for other in self.plan.evictions if other.job == eviction.job)
                stays = {subgroup: count - gone[subgroup] for subgroup, count in _count(job, self.before).items()}
                assert has_minimum(job, stays), f"{eviction.job} is stopped too often"
        lost = {
            eviction.job: eviction
            for eviction in self.plan.evictions
            if eviction.rule in ("reclaim", "preempt") and eviction.to is None
        }
        for name, eviction in lost.items():
            if self.before.below_min_runtime(self.jobs[name], self.jobs[eviction.by], self.now):
                assert has_minimum(self.jobs[name], _count(self.jobs[name], self.after_release)), (
                    f"{name} is stopped early"
                )

    def gangs_are_whole(self) -> None:
        """A job has its minimum or nothing, both of what will run and of what starts now."""
        for job in self.jobs.values():
            was = _count(job, self.before)
            if sum(was.values()) and not has_minimum(job, was):
                continue  # it was not whole before
            will = _count(job, self.after_release)
            there = {task for name, task in self.after_release.locations if name == job.name}
            pools = {
                self.after_release.nodes[self.after_release.locations[job.name, t.name][0]].pool
                for t in job.tasks
                if t.name in there
            }
            assert len(pools) < 2, f"{job.name} is in several pools"
            assert not sum(will.values()) or has_minimum(job, will), f"{job.name} will have {dict(will)}"
            bound = Counter(self._task(bind).subgroup for bind in self.plan.binds if bind.job == job.name)
            going = {eviction.task for eviction in self.plan.evictions if eviction.to is None or eviction.nominated}
            if bound:
                runs = Counter(t.subgroup for t in job.tasks if t.state is TaskState.RUNNING and t.name not in going)
                assert has_minimum(job, runs + bound), f"{job.name} starts {dict(bound)} beside {dict(runs)}"

    def satisfies_constraints(self) -> None:
        locations = [(placement.job, placement.task) for placement in self.new]
        locations += [(eviction.job, eviction.task) for eviction in self.plan.evictions if eviction.to is not None]
        for name, task in locations:
            job = self.jobs[name]
            assert self.after_release.satisfies_topology(job), f"{name} breaks its topology constraint"
            assert self.after_release.satisfies_anti_affinity(job, self.tasks[name, task]), (
                f"{task} breaks an anti-affinity"
            )

    def waiting_jobs_have_refusals(self) -> None:
        placed = {(placement.job, placement.task) for placement in self.places}
        for (name, task_name), task in self.tasks.items():
            if task.state is TaskState.PENDING and (name, task_name) not in placed:
                assert self.plan.refusals.get(name), f"{task_name} waits without a refusal"


def _count(job: Job, reference: ReferenceState) -> Counter[str]:
    return Counter(task.subgroup for task in job.tasks if (job.name, task.name) in reference.locations)


def _mix(things: tuple[T, ...], chance: Random) -> tuple[T, ...]:
    return tuple(chance.sample(things, len(things)))


def shuffled(snapshot: Snapshot, chance: Random) -> Snapshot:
    """The same snapshot, with all parts in another order."""
    jobs = tuple(
        replace(job, tasks=_mix(job.tasks, chance), subgroups=_mix(job.subgroups, chance)) for job in snapshot.jobs
    )
    nodes, queues = _mix(snapshot.nodes, chance), _mix(snapshot.queues, chance)
    return replace(snapshot, nodes=nodes, queues=queues, jobs=_mix(jobs, chance))


def after(snapshot: Snapshot, decided: Plan, lingering: bool = False, now: float = 0) -> Snapshot:
    """Bound tasks run, nominations stay, evicted tasks are pending again (`lingering`: they terminate for a round)."""
    placements: list[Bind | Nomination] = [*decided.binds, *decided.nominations]
    places = {(placement.job, placement.task): placement for placement in placements}
    stopped = {(eviction.job, eviction.task): eviction for eviction in decided.evictions}

    def moved(job: Job, task: Task) -> Task:
        key = (job.name, task.name)
        if place := places.get(key):
            state = TaskState.RUNNING if isinstance(place, Bind) else TaskState.NOMINATED
            return replace(task, state=state, node=place.node, shares=place.shares)
        if gone := stopped.get(key):
            if gone.to is not None:
                state = TaskState.NOMINATED if gone.nominated else TaskState.RUNNING
                return replace(task, state=state, node=gone.to.node, shares=gone.to.shares)
            return replace(task, state=TaskState.EVICTED) if lingering else _waiting(task)
        if task.state in (TaskState.EVICTED, TaskState.NOMINATED):
            return _waiting(task)
        return replace(task, state=TaskState.FAILED, node="") if task.state is TaskState.RELEASING else task

    def begun(job: Job, tasks: tuple[Task, ...]) -> float | None:
        if not any(task.state is TaskState.RUNNING for task in tasks):
            return None
        return job.started if any(task.state is TaskState.RUNNING for task in job.tasks) else now

    jobs = []
    for job in snapshot.jobs:
        tasks = tuple(moved(job, task) for task in job.tasks)
        jobs.append(replace(job, tasks=tasks, started=begun(job, tasks)))
    return replace(snapshot, jobs=tuple(jobs))


def _waiting(task: Task) -> Task:
    return replace(task, state=TaskState.PENDING, node="", shares=())


class NeverSettles(AssertionError):
    """Plans still change something after many rounds."""


def settle(snapshot: Snapshot, policy: Policy, now: float = 0, lingering: bool = False, rounds: int = 20) -> Snapshot:
    """Plan and apply until a round changes nothing. Each plan is checked."""
    count = 0
    for _ in range(rounds + 5):
        decided = plan(snapshot, policy, now)
        check(snapshot, policy, decided, now)
        then = after(snapshot, decided, lingering, now)
        if then == snapshot:
            return snapshot  # the same snapshot always has the same plan
        snapshot = then
        count += 1
    raise NeverSettles(f"still {decided.evictions or decided.binds or decided.nominations} after {count} rounds")


__all__ = ["Check", "NeverSettles", "after", "check", "settle", "shuffled"]
