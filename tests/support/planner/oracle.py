"""A search through everything the written rules allow, for small clusters: is there a way in which a job could run?

Written from the rules, not from the scheduler. It answers for a cluster at rest, in which nobody is leaving and no
promise stands. Where the rules leave room it takes the narrow reading, so that a way it finds is one that the scheduler
should have found:

  - who stops is one task above its job's minimum, the last first, or all of the job;
  - in reclaim and preempt whoever stops is counted as lost, though it might find another place;
  - in consolidation whoever is touched counts as moved, though it might come back to where it was;
  - an amount of GPU memory must pass the queues by the smallest device it may use, and by the one it gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product

from aliquot.planner.model import Amount, Bound, Job, Policy, Queue, Snapshot, Task, TaskState
from aliquot.planner.plan import Plan
from support.planner.ground import POOL, Ground, beyond, enough, least, may_go, within

Unit = tuple[Job, tuple[Task, ...]]
_WORK = 20_000  # places tried for one question before it is given up


class TooMuch(Exception):
    """The search is longer than it is worth."""


@dataclass
class Oracle:
    snapshot: Snapshot
    policy: Policy
    shares: Mapping[str, Amount]  # fair shares by queue
    now: float = 0
    work: int = 0

    def ways(self) -> Iterator[str]:
        """For every job that waits, a way in which it could run; nothing for a job that has none."""
        for job in sorted(self.snapshot.jobs, key=lambda one: one.name):
            self.work = _WORK
            try:
                if found := self.way(job):
                    yield found
            except TooMuch:
                continue

    def way(self, job: Job) -> str | None:
        steps = (("allocate", self._free), ("reclaim", self._reclaim), ("preempt", self._preempt))
        for tasks in starts(job):
            for step, search in (*steps, ("consolidate", self._consolidate)):
                if step in self.policy.steps and (found := search(job, tasks)):
                    return f"{job.name} could run by {step}: {found}"
        return None

    def unfair(self, decided: Plan) -> str | None:
        """What a plan took back and should not have. Answers only where one job took, and nothing else was done."""
        lost = [one for one in decided.evictions if one.to is None]
        takers = {one.by for one in decided.evictions} | {one.job for one in decided.nominations}
        if not lost or decided.binds or len(takers) != 1 or {one.rule for one in lost} != {"reclaim"}:
            return None
        ground = Ground(self.snapshot)
        job = ground.jobs[takers.pop()]
        placed = {one.task for one in decided.nominations}
        tasks = [task for task in job.tasks if task.name in placed]
        if not any(placed == {task.name for task in some} for some in starts(job)):
            return None  # in more than one go
        asked = self._asked(ground, job, tasks)
        if not within(ground.used[job.queue], asked, self.shares[job.queue]):
            return f"{job.name} takes, and its queue is above its share then"
        units = [
            (ground.jobs[name], tuple(t for t in ground.jobs[name].tasks if t.name in {one.task for one in lost}))
            for name in {one.job for one in lost}
        ]
        return None if self._fair(ground, job, asked, units) else f"{job.name} takes from who may keep it"

    # ---------------------------------------------------------------- the four steps

    def _free(self, job: Job, tasks: Sequence[Task]) -> str | None:
        return self._try(job, tasks, ())

    def _preempt(self, job: Job, tasks: Sequence[Task]) -> str | None:
        """Lower priority in the same queue makes way."""
        ground = Ground(self.snapshot)
        victims = [one for one in self._others(job) if one.queue == job.queue and one.priority < job.priority]
        return self._take(job, tasks, [one for one in victims if not ground.too_new(one, job, self.now)])

    def _reclaim(self, job: Job, tasks: Sequence[Task]) -> str | None:
        """Who stays within its share takes from queues that hold more than they may keep."""
        ground = Ground(self.snapshot)
        asked = self._asked(ground, job, tasks)
        quota = ground.queues[job.queue].pool_quota(POOL).quota
        if not within(ground.used[job.queue], asked, self.shares[job.queue]):
            return None
        if not job.preemptible and not within(ground.fixed[job.queue], asked, quota):
            return None
        victims = [one for one in self._others(job) if one.queue != job.queue]
        return self._take(job, tasks, [one for one in victims if not ground.too_new(one, job, self.now)], fair=True)

    def _consolidate(self, job: Job, tasks: Sequence[Task]) -> str | None:
        """Others move, and all of them find a place."""
        ground = Ground(self.snapshot)
        asked = self._asked(ground, job, tasks)
        idle = sum(sum(free.milli.values()) for free in ground.free.values())
        if not job.preemptible or idle < asked[0]:
            return None
        for units in self._sets_of_units(self._others(job)):
            if units and self._bounded(ground, asked, units) and (found := self._try(job, tasks, units, moving=True)):
                return found
        return None

    def _take(self, job: Job, tasks: Sequence[Task], victims: list[Job], fair: bool = False) -> str | None:
        ground = Ground(self.snapshot)
        asked = self._asked(ground, job, tasks)
        owed = all(
            within(self._held(ground, job, queue, fair), asked, queue.pool_quota(POOL).quota)
            for queue in ground.path(job.queue)
        )
        for units in self._sets_of_units(victims):
            if not units or not (owed or self._bounded(ground, asked, units)):
                continue
            if not (self._fair if fair else self._within_itself)(ground, job, asked, units):
                continue
            if found := self._try(job, tasks, units):
                return found
        return None

    def _held(self, ground: Ground, job: Job, queue: Queue, fair: bool) -> list[int]:
        return ground.used[queue.name] if fair or job.preemptible else ground.fixed[queue.name]

    # ---------------------------------------------------------------- who may be stopped

    def _others(self, job: Job) -> list[Job]:
        ground = Ground(self.snapshot)
        found = [
            one
            for one in self.snapshot.jobs
            if one.preemptible and one.name != job.name and any(t.state is TaskState.RUNNING for t in one.tasks)
        ]
        return [one for one in found if not ground.left_alone(one, self.policy, self.now)]

    def _sets_of_units(self, victims: Sequence[Job]) -> Iterator[tuple[Unit, ...]]:
        """Everything that could stop together, few jobs first."""
        for count in range(1, len(victims) + 1):
            for some in combinations(victims, count):
                for units in product(*(list(stops(one)) for one in some)):
                    self._spend()
                    yield units

    def _bounded(self, ground: Ground, asked: Amount, units: Iterable[Unit]) -> bool:
        """Not too many GPUs are disturbed for what is gained."""
        bound = self.policy.disruption_bound
        if bound is None:
            return True
        moved = sum(ground.amount(t, ground.spots[job.name, t.name])[0] for job, tasks in units for t in tasks)
        return moved <= bound * asked[0]

    def _fair(self, ground: Ground, job: Job, asked: Amount, units: Sequence[Unit]) -> bool:
        """Each queue gives, piece by piece in some order, only while it has more than it may keep; and in the end
        nobody has changed places with those it took from."""
        pieces: dict[tuple[str, str], list[Amount]] = {}
        for victim, tasks in units:
            ours, theirs = ground.apart_at(job.queue, victim.queue)
            for piece in chunks(victim, tasks):
                amounts = [ground.amount(task, ground.spots[victim.name, task.name]) for task in piece]
                pieces.setdefault((ours.name, theirs.name), []).append(added(amounts))
        for (ours_name, theirs_name), amounts in pieces.items():
            ours, theirs = ground.queues[ours_name], ground.queues[theirs_name]
            in_quota = within(ground.used[ours_name], asked, ours.pool_quota(POOL).quota)
            bounds = [self._keeps(theirs)] + ([theirs.pool_quota(POOL).quota] if in_quota else [])
            if not any(_gives(ground.used[theirs_name], order, bounds) for order in permutations(amounts)):
                return False
            taken = added(amounts)
            for r in range(3):
                if not (asked[r] or taken[r]) or not self.shares[theirs_name][r]:
                    continue
                due, held = self.shares[ours_name][r], ground.used[ours_name][r] + asked[r]
                high = held / due if due else float("inf") if held else 0.0
                low = (ground.used[theirs_name][r] - taken[r]) / self.shares[theirs_name][r]
                if high > 1 and self.policy.saturation_multiplier * high >= low:
                    return False
        return True

    def _within_itself(self, ground: Ground, job: Job, asked: Amount, units: Sequence[Unit]) -> bool:
        """A queue that makes room inside itself does not grow by it beyond its share while another is short of its
        own."""
        freed = added(
            ground.amount(task, ground.spots[victim.name, task.name]) for victim, tasks in units for task in tasks
        )
        parents = {queue.parent for queue in ground.queues.values()}
        others = [name for name in ground.queues if name not in parents and name != job.queue]
        for r in range(3):
            if asked[r] <= freed[r] or all(ground.used[name][r] >= self.shares[name][r] for name in others):
                continue
            for queue in ground.path(job.queue):
                if ground.used[queue.name][r] - freed[r] + asked[r] > self.shares[queue.name][r]:
                    return False
        return True

    def _keeps(self, queue: Queue) -> Bound:
        """What nobody may take from it."""
        terms, share = queue.pool_quota(POOL), self.shares[queue.name]
        kept: list[int | None] = []
        for quota, limit, due in zip(terms.quota, terms.limit, share, strict=True):
            most = None if quota is None else max(quota, due)
            kept.append(limit if most is None else most if limit is None else min(limit, most))
        return (kept[0], kept[1], kept[2])

    # ---------------------------------------------------------------- places

    def _asked(self, ground: Ground, job: Job, tasks: Iterable[Task]) -> Amount:
        return added(ground.waiting_amount(job, task) for task in tasks)

    def _try(self, job: Job, tasks: Sequence[Task], units: Iterable[Unit], moving: bool = False) -> str | None:
        """Stop these, and look for places; with `moving` for all of them too."""
        ground = Ground(self.snapshot)
        stopped = [(victim, task) for victim, some in units for task in some]
        asked = self._asked(ground, job, tasks)
        if moving and not self._passes(ground, job, asked):
            return None
        for victim, task in stopped:
            ground.take(victim, task)
        if not self._passes(ground, job, asked):
            return None
        wanted = [*((job, task) for task in tasks), *(stopped if moving else ())]
        if not self._place(ground, wanted) or any(ground.over(one, _asks(asked)) for one, _ in wanted):
            return None
        places = {task.name: ground.spots[one.name, task.name][0] for one, task in wanted}
        return f"{places}" + (f" after stopping {[task.name for _, task in stopped]}" if stopped else "")

    def _passes(self, ground: Ground, job: Job, asked: Amount) -> bool:
        """Whether its queues may hold this much more."""
        for queue in ground.path(job.queue):
            terms, name = queue.pool_quota(POOL), queue.name
            for r in _asks(asked):
                held, fixed = ground.used[name][r] + asked[r], ground.fixed[name][r] + asked[r]
                if beyond(held, terms.limit[r]) or (not terms.over_quota and beyond(held, terms.quota[r])):
                    return False
                if not job.preemptible and beyond(fixed, terms.quota[r]):
                    return False
        return True

    def _place(self, ground: Ground, wanted: Sequence[tuple[Job, Task]]) -> bool:
        if not wanted:
            return True
        job, task = wanted[0]
        for name, node in ground.nodes.items():
            if not may_go(job, task, node):
                continue
            for shares in ground.free[name].choices(task.request):
                self._spend()
                ground.put(job, task, (name, shares))
                fine = ground.near_enough(job) and ground.neighbourly(job, task) and ground.has_company(job, task)
                if fine and self._place(ground, wanted[1:]):
                    return True
                ground.take(job, task)
        return False

    def _spend(self) -> None:
        self.work -= 1
        if self.work < 0:
            raise TooMuch


def _asks(asked: Amount) -> list[int]:
    return [r for r in range(3) if asked[r]]


def starts(job: Job) -> Iterator[list[Task]]:
    """Which tasks of a job would start together: those that its minimum lacks, or one more."""
    waiting: dict[str, list[Task]] = {}
    present = dict.fromkeys(least(job), 0)
    for task in sorted(job.tasks, key=lambda one: (-one.order, one.name)):
        present[task.subgroup] += task.state is TaskState.RUNNING
        if task.state is TaskState.PENDING:
            waiting.setdefault(task.subgroup, []).append(task)
    lacking = {name: minimum - present[name] for name, minimum in least(job).items()}
    fillable = [name for name, count in lacking.items() if 0 < count <= len(waiting.get(name, ()))]
    if enough(job, present):
        for name, tasks in waiting.items():
            if lacking[name] <= 0 or name in fillable:
                yield tasks[: max(lacking[name], 1)]
        return
    found: list[tuple[str, ...]] = []
    for count in range(1, len(fillable) + 1):
        for names in combinations(fillable, count):
            filled = {**present, **{name: present[name] + lacking[name] for name in names}}
            if enough(job, filled) and not any(set(one) < set(names) for one in found):
                found.append(names)
                yield [task for name in names for task in waiting[name][: lacking[name]]]


def stops(job: Job) -> Iterator[Unit]:
    """Which tasks of a job could stop: some above its minimum, or all."""
    running = sorted((t for t in job.tasks if t.state is TaskState.RUNNING), key=lambda one: (-one.order, one.name))
    minimum = least(job)
    spare = {name: [t for t in running if t.subgroup == name][minimum[name] :] for name in minimum}
    for counts in product(*(range(len(tasks) + 1) for tasks in spare.values())):
        some = [
            task for count, tasks in zip(counts, spare.values(), strict=True) for task in tasks[len(tasks) - count :]
        ]
        if some:
            yield job, tuple(some)
    yield job, tuple(running)


def chunks(job: Job, tasks: Sequence[Task]) -> Iterator[tuple[Task, ...]]:
    """Tasks above the minimum count one by one, the rest at once."""
    running = [task for task in job.tasks if task.state is TaskState.RUNNING]
    if len(tasks) < len(running):
        yield from ((task,) for task in tasks)
        return
    *_, (_, spare) = [(job, ()), *((one, some) for one, some in stops(job) if len(some) < len(running))]
    yield from ((task,) for task in spare)
    yield tuple(task for task in tasks if task not in spare)


def _gives(used: Sequence[int], pieces: Sequence[Amount], bounds: Sequence[Bound]) -> bool:
    left = list(used)
    for piece in pieces:
        if not any(beyond(left[r], bound[r]) for bound in bounds for r in range(3)):
            return False
        left = [have - gone for have, gone in zip(left, piece, strict=True)]
    return True


def added(amounts: Iterable[Amount]) -> Amount:
    gpu = cpu = memory = 0
    for amount in amounts:
        gpu, cpu, memory = gpu + amount[0], cpu + amount[1], memory + amount[2]
    return (gpu, cpu, memory)
