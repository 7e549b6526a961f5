"""What holds of every plan, whatever the cluster: nothing is given out twice, nobody is stopped for nothing.

check   asserts all of it
after   the snapshot once a plan was carried out
settle  plans and carries out until nothing changes
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TypeVar

from aliquot.planner import Bind, Eviction, Job, Nomination, Plan, Policy, Snapshot, Task, TaskState, plan
from support.planner.ground import HOLDS_NOW, POOL, Ground, Spot, enough, may_go

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
        self.before = Ground(snapshot)
        self.places: list[Bind | Nomination] = [*decided.binds, *decided.nominations]
        self.new = [one for one in self.places if self._task(one).state is TaskState.PENDING]

    def _task(self, one: Bind | Nomination | Eviction) -> Task:
        return self.tasks[one.job, one.task]

    def all(self) -> None:
        self.once()
        self.placed_well()
        self.evicted_for_somebody()
        self.fits_now()
        self.soon = self.fits_soon()
        self.queues_keep_their_bounds()
        self.long_enough()
        self.gangs_are_whole()
        self.near_and_apart()
        self.who_waits_knows_why()

    def once(self) -> None:
        """A task has one fate."""
        fates = Counter((one.job, one.task) for one in (*self.places, *self.plan.evictions))
        assert all(count == 1 for count in fates.values()), f"two fates: {fates.most_common(1)}"
        for one in self.places:
            assert self._task(one).state in _STANDS, f"{one.task} is placed and was {self._task(one).state}"

    def placed_well(self) -> None:
        """On a node it may use, on devices that are there, with as much of them as it asked for."""
        spots = [(one.job, one.task, (one.node, one.shares)) for one in self.new]
        spots += [(one.job, one.task, (one.to.node, one.to.shares)) for one in self.plan.evictions if one.to]
        for job, name, (node, shares) in spots:
            task = self.tasks[job, name]
            request, devices = task.request, self.before.free[node].devices
            assert may_go(self.jobs[job], task, self.before.nodes[node]), f"{name} may not go to {node}"
            assert len({share.index for share in shares}) == len(shares), f"{name} has a device twice"
            wanted = sum(count for _, count in request.mig) if request.mig else request.devices
            assert len(shares) == wanted, f"{name} has {len(shares)} of {wanted} devices"
            assert all(share == request.share_of(devices[share.index]) for share in shares), f"{name}: {shares}"
            profiles = Counter(devices[share.index].profile for share in shares)
            assert profiles == Counter(dict(request.mig) if request.mig else {"": wanted} if wanted else {})

    def evicted_for_somebody(self) -> None:
        """Whoever stops or moves may be, by the rule that is named, and makes room for somebody who gets it now."""
        served = {one.job for one in self.places}
        for one in self.plan.evictions:
            job, task = self.jobs[one.job], self._task(one)
            assert task.state is TaskState.RUNNING
            assert task.node == one.node
            if one.rule == "stale-gang":
                continue
            by = self.jobs[one.by]
            assert job.preemptible, f"{job.name} may not be stopped"
            assert one.by in served, f"{job.name} is stopped for {one.by}, which gets nothing"
            assert one.rule in self.policy.steps
            match one.rule:
                case "reclaim":
                    assert by.queue != job.queue, f"{job.name} is reclaimed inside {job.queue}"
                case "preempt":
                    assert by.queue == job.queue, f"{job.name} is preempted from another queue"
                    assert by.priority > job.priority, f"{job.name} is preempted by no higher priority"
                case "consolidate":
                    assert one.to is not None, f"{job.name} is stopped to move things together"
                case _:
                    raise AssertionError(f"no such rule: {one.rule}")

    def _moves(self, nominated: bool) -> list[tuple[str, str, Spot]]:
        moved = [one for one in self.plan.evictions if one.to is not None and one.nominated is nominated]
        return [(one.job, one.task, (one.to.node, one.to.shares)) for one in moved if one.to]

    def fits_now(self) -> None:
        """What starts fits beside all who are still there."""
        now = Ground(self.snapshot, HOLDS_NOW)
        for job, task, (node, shares) in [
            *((one.job, one.task, (one.node, one.shares)) for one in self.plan.binds),
            *self._moves(nominated=False),
        ]:
            now.free[node].add(self.tasks[job, task].request, shares, -1)
        for name, free in now.free.items():
            assert free.sound, f"more than there is on {name} now"

    def fits_soon(self, pool: str = POOL) -> Ground:
        """What is promised fits once those who leave have left; a promise that is not repeated is withdrawn."""
        soon = Ground(self.snapshot, pool=pool)
        for gone in self.plan.evictions:
            soon.take(self.jobs[gone.job], self._task(gone))
        for job in self.jobs.values():
            for task in job.tasks:
                if task.state is TaskState.NOMINATED and (job.name, task.name) in soon.spots:
                    soon.take(job, task)
        for one in self.places:
            soon.put(self.jobs[one.job], self._task(one), (one.node, one.shares))
        for name, task, spot in [*self._moves(False), *self._moves(True)]:
            soon.put(self.jobs[name], self.tasks[name, task], spot)
        for node, free in soon.free.items():
            assert free.sound, f"more than there is on {node} soon"
        return soon

    def queues_keep_their_bounds(self) -> None:
        """Nobody new takes a queue beyond its limit; what cannot be stopped stays within quota."""
        pools = {pool: self.fits_soon(pool) for pool in {node.pool for node in self.snapshot.nodes}}
        for one in self.new:
            soon = pools[self.soon.nodes[one.node].pool]
            asked = soon.amount(self._task(one), (one.node, one.shares))
            over = soon.over(self.jobs[one.job], [r for r in range(3) if asked[r]])
            assert over is None, f"{one.task}: {over}"

    def long_enough(self) -> None:
        """Who was stopped too often of late keeps its minimum of tasks where they are; who has not run for its minimum
        time keeps it too, unless it is moved."""
        for one in self.plan.evictions:
            job = self.jobs[one.job]
            if one.rule != "stale-gang" and self.before.left_alone(job, self.policy, self.now):
                gone = Counter(self._task(other).subgroup for other in self.plan.evictions if other.job == one.job)
                stays = {subgroup: count - gone[subgroup] for subgroup, count in _count(job, self.before).items()}
                assert enough(job, stays), f"{one.job} is stopped too often"
        lost = {one.job: one for one in self.plan.evictions if one.rule in ("reclaim", "preempt") and one.to is None}
        for name, one in lost.items():
            if self.before.too_new(self.jobs[name], self.jobs[one.by], self.now):
                assert enough(self.jobs[name], _count(self.jobs[name], self.soon)), f"{name} is stopped too soon"

    def gangs_are_whole(self) -> None:
        """All of a minimum or nothing: of what will be there, and of what starts now."""
        for job in self.jobs.values():
            was = _count(job, self.before)
            if sum(was.values()) and not enough(job, was):
                continue  # it was not whole before
            will = _count(job, self.soon)
            there = {task for name, task in self.soon.spots if name == job.name}
            pools = {self.soon.nodes[self.soon.spots[job.name, t.name][0]].pool for t in job.tasks if t.name in there}
            assert len(pools) < 2, f"{job.name} is in several pools"
            assert not sum(will.values()) or enough(job, will), f"{job.name} will have {dict(will)}"
            bound = Counter(self._task(one).subgroup for one in self.plan.binds if one.job == job.name)
            going = {one.task for one in self.plan.evictions if one.to is None or one.nominated}
            if bound:
                runs = Counter(t.subgroup for t in job.tasks if t.state is TaskState.RUNNING and t.name not in going)
                assert enough(job, runs + bound), f"{job.name} starts {dict(bound)} beside {dict(runs)}"

    def near_and_apart(self) -> None:
        spots = [(one.job, one.task) for one in self.new]
        spots += [(one.job, one.task) for one in self.plan.evictions if one.to is not None]
        for name, task in spots:
            job = self.jobs[name]
            assert self.soon.near_enough(job), f"{name} is not close together"
            assert self.soon.neighbourly(job, self.tasks[name, task]), f"{task} has a neighbour that it or they refuse"

    def who_waits_knows_why(self) -> None:
        placed = {(one.job, one.task) for one in self.places}
        for (name, task), one in self.tasks.items():
            if one.state is TaskState.PENDING and (name, task) not in placed:
                assert self.plan.refusals.get(name), f"{task} waits and is not told why"


def _count(job: Job, ground: Ground) -> Counter[str]:
    return Counter(task.subgroup for task in job.tasks if (job.name, task.name) in ground.spots)


def _mix(things: tuple[T, ...], chance: Random) -> tuple[T, ...]:
    return tuple(chance.sample(things, len(things)))


def shuffled(snapshot: Snapshot, chance: Random) -> Snapshot:
    """The same, in another order."""

    jobs = tuple(
        replace(job, tasks=_mix(job.tasks, chance), subgroups=_mix(job.subgroups, chance)) for job in snapshot.jobs
    )
    nodes, queues = _mix(snapshot.nodes, chance), _mix(snapshot.queues, chance)
    return replace(snapshot, nodes=nodes, queues=queues, jobs=_mix(jobs, chance))


def after(snapshot: Snapshot, decided: Plan, lingering: bool = False, now: float = 0) -> Snapshot:
    """Bound tasks run, promises stand, who was evicted waits again (`lingering`: is on its way for one round more)."""
    places = {(one.job, one.task): one for one in (*decided.binds, *decided.nominations)}
    stopped = {(one.job, one.task): one for one in decided.evictions}

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


class Restless(AssertionError):
    """It never came to rest."""


def settle(snapshot: Snapshot, policy: Policy, now: float = 0, lingering: bool = False, rounds: int = 20) -> Snapshot:
    """Until a round changes nothing, each plan checked; then nothing changes in five more."""
    calm = 0
    for _ in range(rounds + 5):
        decided = plan(snapshot, policy, now)
        check(snapshot, policy, decided, now)
        then = after(snapshot, decided, lingering, now)
        if then == snapshot:
            return snapshot  # planning is a function: the same snapshot has the same plan for ever
        snapshot = then
        calm += 1
    raise Restless(f"still {decided.evictions or decided.binds or decided.nominations} after {calm} rounds")


__all__ = ["Check", "Restless", "after", "check", "settle", "shuffled"]
