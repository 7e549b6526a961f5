"""An exhaustive search for small clusters: is there a way in which a pending job could run?

It is written from the documented rules, not from the planner. It needs a cluster without terminating or nominated
tasks. Where the rules are open it takes the narrow reading, so that the planner should find each way that it finds:

  - an eviction is of one task above its job's minimum, the last first, or of the whole job;
  - in reclaim and preempt an evicted task counts as lost, though it might be placed elsewhere;
  - in consolidate each task of a unit counts as moved, though it might stay where it was;
  - a request for GPU memory must be within quota by the smallest device it may use, and by the one it gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product

from aliquot.planner.model import Amount, Bound, Job, Policy, Queue, Snapshot, Task, TaskState
from aliquot.planner.plan import Plan
from support.planner.reference import POOL, ReferenceState, beyond, has_minimum, may_use, minimums, within

Unit = tuple[Job, tuple[Task, ...]]
_WORK = 20_000  # placements tried for one question before the search is given up


class WorkExceeded(Exception):
    """The search takes too long."""


@dataclass
class Oracle:
    snapshot: Snapshot
    policy: Policy
    shares: Mapping[str, Amount]  # fair shares by queue
    now: float = 0
    work: int = 0

    def ways(self) -> Iterator[str]:
        """For each pending job, a way in which it could run; nothing for a job without one."""
        for job in sorted(self.snapshot.jobs, key=lambda job: job.name):
            self.work = _WORK
            try:
                if way := self.way(job):
                    yield way
            except WorkExceeded:
                continue

    def way(self, job: Job) -> str | None:
        steps = (("allocate", self._free), ("reclaim", self._reclaim), ("preempt", self._preempt))
        for tasks in starts(job):
            for step, search in (*steps, ("consolidate", self._consolidate)):
                if step in self.policy.steps and (placement := search(job, tasks)):
                    return f"{job.name} could run by {step}: {placement}"
        return None

    def unfair(self, decided: Plan) -> str | None:
        """An unfair reclaim of a plan. It answers only if the plan reclaims for one job and does nothing else."""
        lost = [eviction for eviction in decided.evictions if eviction.to is None]
        takers = {eviction.by for eviction in decided.evictions} | {
            nomination.job for nomination in decided.nominations
        }
        if not lost or decided.binds or len(takers) != 1 or {eviction.rule for eviction in lost} != {"reclaim"}:
            return None
        reference = ReferenceState(self.snapshot)
        job = reference.jobs[takers.pop()]
        placed = {nomination.task for nomination in decided.nominations}
        tasks = [task for task in job.tasks if task.name in placed]
        if not any(placed == {task.name for task in some} for some in starts(job)):
            return None  # in more than one step
        asked = self._asked(reference, job, tasks)
        if not within(reference.used[job.queue], asked, self.shares[job.queue]):
            return f"{job.name} reclaims, and takes its queue above its fair share"
        units = [
            (
                reference.jobs[name],
                tuple(t for t in reference.jobs[name].tasks if t.name in {eviction.task for eviction in lost}),
            )
            for name in {eviction.job for eviction in lost}
        ]
        return None if self._fair(reference, job, asked, units) else f"{job.name} reclaims what another queue may keep"

    # ---------------------------------------------------------------- the four steps

    def _free(self, job: Job, tasks: Sequence[Task]) -> str | None:
        return self._try(job, tasks, ())

    def _preempt(self, job: Job, tasks: Sequence[Task]) -> str | None:
        """Jobs of lower priority in the same queue are evicted."""
        reference = ReferenceState(self.snapshot)
        victims = [
            victim for victim in self._others(job) if victim.queue == job.queue and victim.priority < job.priority
        ]
        return self._take(
            job, tasks, [victim for victim in victims if not reference.below_min_runtime(victim, job, self.now)]
        )

    def _reclaim(self, job: Job, tasks: Sequence[Task]) -> str | None:
        """A queue within its fair share takes from queues that use more than they may keep."""
        reference = ReferenceState(self.snapshot)
        asked = self._asked(reference, job, tasks)
        quota = reference.queues[job.queue].pool_quota(POOL).quota
        if not within(reference.used[job.queue], asked, self.shares[job.queue]):
            return None
        if not job.preemptible and not within(reference.nonpreemptible[job.queue], asked, quota):
            return None
        victims = [victim for victim in self._others(job) if victim.queue != job.queue]
        return self._take(
            job,
            tasks,
            [victim for victim in victims if not reference.below_min_runtime(victim, job, self.now)],
            fair=True,
        )

    def _consolidate(self, job: Job, tasks: Sequence[Task]) -> str | None:
        """Other jobs are moved, and all of them are placed."""
        reference = ReferenceState(self.snapshot)
        asked = self._asked(reference, job, tasks)
        idle = sum(sum(free.milli.values()) for free in reference.free.values())
        if not job.preemptible or idle < asked[0]:
            return None
        for units in self._sets_of_units(self._others(job)):
            if (
                units
                and self._bounded(reference, asked, units)
                and (placement := self._try(job, tasks, units, moving=True))
            ):
                return placement
        return None

    def _take(self, job: Job, tasks: Sequence[Task], victims: list[Job], fair: bool = False) -> str | None:
        reference = ReferenceState(self.snapshot)
        asked = self._asked(reference, job, tasks)
        owed = all(
            within(self._held(reference, job, queue, fair), asked, queue.pool_quota(POOL).quota)
            for queue in reference.path(job.queue)
        )
        for units in self._sets_of_units(victims):
            if not units or not (owed or self._bounded(reference, asked, units)):
                continue
            if not (self._fair if fair else self._within_itself)(reference, job, asked, units):
                continue
            if placement := self._try(job, tasks, units):
                return placement
        return None

    def _held(self, reference: ReferenceState, job: Job, queue: Queue, fair: bool) -> list[int]:
        return reference.used[queue.name] if fair or job.preemptible else reference.nonpreemptible[queue.name]

    # ---------------------------------------------------------------- what may be evicted

    def _others(self, job: Job) -> list[Job]:
        reference = ReferenceState(self.snapshot)
        running = [
            other
            for other in self.snapshot.jobs
            if other.preemptible and other.name != job.name and any(t.state is TaskState.RUNNING for t in other.tasks)
        ]
        return [other for other in running if not reference.evicted_too_often(other, self.policy, self.now)]

    def _sets_of_units(self, victims: Sequence[Job]) -> Iterator[tuple[Unit, ...]]:
        """All sets of units that could be evicted together, few jobs first."""
        for count in range(1, len(victims) + 1):
            for chosen in combinations(victims, count):
                for units in product(*(list(stops(victim)) for victim in chosen)):
                    self._spend()
                    yield units

    def _bounded(self, reference: ReferenceState, asked: Amount, units: Iterable[Unit]) -> bool:
        """Whether the evicted GPUs are within the disruption bound."""
        bound = self.policy.disruption_bound
        if bound is None:
            return True
        moved = sum(
            reference.amount(t, reference.locations[job.name, t.name])[0] for job, tasks in units for t in tasks
        )
        return moved <= bound * asked[0]

    def _fair(self, reference: ReferenceState, job: Job, asked: Amount, units: Sequence[Unit]) -> bool:
        """Each queue loses unit by unit, in some order, only while it uses more than it may keep; and in the end the
        queue that took is not more saturated than those it took from."""
        pieces: dict[tuple[str, str], list[Amount]] = {}
        for victim, tasks in units:
            ours, theirs = reference.diverging_queues(job.queue, victim.queue)
            for piece in chunks(victim, tasks):
                amounts = [reference.amount(task, reference.locations[victim.name, task.name]) for task in piece]
                pieces.setdefault((ours.name, theirs.name), []).append(added(amounts))
        for (ours_name, theirs_name), amounts in pieces.items():
            ours, theirs = reference.queues[ours_name], reference.queues[theirs_name]
            in_quota = within(reference.used[ours_name], asked, ours.pool_quota(POOL).quota)
            bounds = [self._keeps(theirs)] + ([theirs.pool_quota(POOL).quota] if in_quota else [])
            if not any(_gives(reference.used[theirs_name], order, bounds) for order in permutations(amounts)):
                return False
            taken = added(amounts)
            for r in range(3):
                if not (asked[r] or taken[r]) or not self.shares[theirs_name][r]:
                    continue
                due, held = self.shares[ours_name][r], reference.used[ours_name][r] + asked[r]
                high = held / due if due else float("inf") if held else 0.0
                low = (reference.used[theirs_name][r] - taken[r]) / self.shares[theirs_name][r]
                if high > 1 and self.policy.saturation_multiplier * high >= low:
                    return False
        return True

    def _within_itself(self, reference: ReferenceState, job: Job, asked: Amount, units: Sequence[Unit]) -> bool:
        """A queue that preempts its own jobs does not grow above its fair share while another is below its own."""
        freed = added(
            reference.amount(task, reference.locations[victim.name, task.name])
            for victim, tasks in units
            for task in tasks
        )
        parents = {queue.parent for queue in reference.queues.values()}
        others = [name for name in reference.queues if name not in parents and name != job.queue]
        for r in range(3):
            if asked[r] <= freed[r] or all(reference.used[name][r] >= self.shares[name][r] for name in others):
                continue
            for queue in reference.path(job.queue):
                if reference.used[queue.name][r] - freed[r] + asked[r] > self.shares[queue.name][r]:
                    return False
        return True

    def _keeps(self, queue: Queue) -> Bound:
        """What other queues may not take from it."""
        terms, share = queue.pool_quota(POOL), self.shares[queue.name]
        kept: list[int | None] = []
        for quota, limit, due in zip(terms.quota, terms.limit, share, strict=True):
            most = None if quota is None else max(quota, due)
            kept.append(limit if most is None else most if limit is None else min(limit, most))
        return (kept[0], kept[1], kept[2])

    # ---------------------------------------------------------------- placement

    def _asked(self, reference: ReferenceState, job: Job, tasks: Iterable[Task]) -> Amount:
        return added(reference.pending_amount(job, task) for task in tasks)

    def _try(self, job: Job, tasks: Sequence[Task], units: Iterable[Unit], moving: bool = False) -> str | None:
        """Evict these units and place the tasks; with `moving` place the evicted tasks too."""
        reference = ReferenceState(self.snapshot)
        stopped = [(victim, task) for victim, some in units for task in some]
        asked = self._asked(reference, job, tasks)
        if moving and not self._passes(reference, job, asked):
            return None
        for victim, task in stopped:
            reference.remove(victim, task)
        if not self._passes(reference, job, asked):
            return None
        wanted = [*((job, task) for task in tasks), *(stopped if moving else ())]
        if not self._place(reference, wanted) or any(
            reference.over(owner, _requested_resources(asked)) for owner, _ in wanted
        ):
            return None
        places = {task.name: reference.locations[owner.name, task.name][0] for owner, task in wanted}
        return f"{places}" + (f" after stopping {[task.name for _, task in stopped]}" if stopped else "")

    def _passes(self, reference: ReferenceState, job: Job, asked: Amount) -> bool:
        """Whether its queues may use this much more."""
        for queue in reference.path(job.queue):
            terms, name = queue.pool_quota(POOL), queue.name
            for r in _requested_resources(asked):
                held, nonpreemptible = reference.used[name][r] + asked[r], reference.nonpreemptible[name][r] + asked[r]
                if beyond(held, terms.limit[r]) or (not terms.over_quota and beyond(held, terms.quota[r])):
                    return False
                if not job.preemptible and beyond(nonpreemptible, terms.quota[r]):
                    return False
        return True

    def _place(self, reference: ReferenceState, wanted: Sequence[tuple[Job, Task]]) -> bool:
        if not wanted:
            return True
        job, task = wanted[0]
        for name, node in reference.nodes.items():
            if not may_use(job, task, node):
                continue
            for shares in reference.free[name].choices(task.request):
                self._spend()
                reference.place(job, task, (name, shares))
                fine = (
                    reference.satisfies_topology(job)
                    and reference.satisfies_anti_affinity(job, task)
                    and reference.satisfies_pod_affinity(job, task)
                )
                if fine and self._place(reference, wanted[1:]):
                    return True
                reference.remove(job, task)
        return False

    def _spend(self) -> None:
        self.work -= 1
        if self.work < 0:
            raise WorkExceeded


def _requested_resources(asked: Amount) -> list[int]:
    return [r for r in range(3) if asked[r]]


def starts(job: Job) -> Iterator[list[Task]]:
    """The tasks of a job that could start together: all that its minimum lacks, or one more."""
    waiting: dict[str, list[Task]] = {}
    present = dict.fromkeys(minimums(job), 0)
    for task in sorted(job.tasks, key=lambda task: (-task.order, task.name)):
        present[task.subgroup] += task.state is TaskState.RUNNING
        if task.state is TaskState.PENDING:
            waiting.setdefault(task.subgroup, []).append(task)
    lacking = {name: minimum - present[name] for name, minimum in minimums(job).items()}
    fillable = [name for name, count in lacking.items() if 0 < count <= len(waiting.get(name, ()))]
    if has_minimum(job, present):
        for name, tasks in waiting.items():
            if lacking[name] <= 0 or name in fillable:
                yield tasks[: max(lacking[name], 1)]
        return
    chosen: list[tuple[str, ...]] = []
    for count in range(1, len(fillable) + 1):
        for names in combinations(fillable, count):
            filled = {**present, **{name: present[name] + lacking[name] for name in names}}
            if has_minimum(job, filled) and not any(set(subset) < set(names) for subset in chosen):
                chosen.append(names)
                yield [task for name in names for task in waiting[name][: lacking[name]]]


def stops(job: Job) -> Iterator[Unit]:
    """The tasks of a job that could be evicted together: some above its minimum, or all."""
    running = sorted((t for t in job.tasks if t.state is TaskState.RUNNING), key=lambda task: (-task.order, task.name))
    minimum = minimums(job)
    spare = {name: [t for t in running if t.subgroup == name][minimum[name] :] for name in minimum}
    for counts in product(*(range(len(tasks) + 1) for tasks in spare.values())):
        some = [
            task for count, tasks in zip(counts, spare.values(), strict=True) for task in tasks[len(tasks) - count :]
        ]
        if some:
            yield job, tuple(some)
    yield job, tuple(running)


def chunks(job: Job, tasks: Sequence[Task]) -> Iterator[tuple[Task, ...]]:
    """Tasks above the minimum are a unit each, the rest is one unit."""
    running = [task for task in job.tasks if task.state is TaskState.RUNNING]
    if len(tasks) < len(running):
        yield from ((task,) for task in tasks)
        return
    *_, (_, spare) = [(job, ()), *((owner, tasks) for owner, tasks in stops(job) if len(tasks) < len(running))]
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
