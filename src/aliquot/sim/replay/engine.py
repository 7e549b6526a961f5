"""A trace through the scheduler's own `Session.plan`, in virtual time.

Time jumps from event to event; whenever one may have changed something for somebody who waits, a plan is made and
carried out as the live loop does it:

    1. evictions   the job stops, and is gone after `grace` seconds; then it waits again, with its age; who is
                   moved has a promise of its new place
    2. promises    the place is remembered; the next plan honours it, and what a plan does not repeat is taken back
    3. bindings    the job runs

While it runs it is checked that no device is given out twice and that everybody who waits was told why. The cost of an
event does not depend on how many jobs there ever were: those that have ended are not looked at again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from aliquot.planner.incremental import IncrementalPlanner
from aliquot.planner.model import GPU, DeviceShare, Job, Policy, PoolQuota, Queue, Snapshot, TaskState
from aliquot.planner.plan import Bind, Eviction, Nomination, Plan
from aliquot.scheduler.wakeups import next_wakeup
from aliquot.sim.replay.job_progress import Work
from aliquot.sim.replay.usage_meter import Meter
from aliquot.sim.traces import Trace

# Plans at one moment. A stop that takes no time makes room at once, so each may be followed by another.
_MOST_PLANS = 1000
# Looks in a row at a cluster in which nothing happens. Each waits longer than the last; somebody who cannot start by
# then never will.
_MOST_IDLE_LOOKS = 100
_Places = dict[str, tuple[str, tuple[DeviceShare, ...]]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy under a name. `ladder`: a job goes down in priority by one each time it has held so many GPU-seconds."""

    name: str
    policy: Policy
    ladder: tuple[float, ...] = ()


class Replay:
    """One trace under one policy. After `run` the jobs and the meter say how it went."""

    def __init__(self, trace: Trace, contender: Contender, grace: float = 0) -> None:
        self.trace, self.contender = trace, contender
        self._grace = grace
        self._nodes = trace.cluster()
        self._queues = tuple(
            _queue(name, trace.quotas.get(name, 0), index) for index, name in enumerate(trace.projects)
        )
        total = GPU * sum(len(node.devices) for node in self._nodes)
        self.meter = Meter(trace.projects, total)
        self.works: list[Work] = []  # all that were submitted so far, in their order
        self.dropped: list[Work] = []
        self._alive: dict[str, Work] = {}
        self._waiting: dict[str, Work] = {}  # with or without a promise
        self._promised: dict[str, Work] = {}
        self._changed: dict[str, Job | None] = {}
        self._events: list[tuple[float, int, Callable[[Work], None], Work, int]] = []
        self._count = 0
        self._used: dict[tuple[str, int], int] = {}  # milli by device
        self._session = IncrementalPlanner()
        self._topologies: dict[str, tuple[str, ...]] = {}
        self.plan_seconds: list[float] = []
        self.evictions: dict[str, int] = {}  # jobs stopped, by rule
        self.last: Plan = Plan()
        self.unsettled = 0
        self._look = float("inf")  # when time alone may change a plan
        self._idle_looks = 0

    # ---------------------------------------------------------------- time

    def run(self, told: Callable[[int], None] | None = None) -> None:
        """Until nothing happens any more. `told` hears how many jobs have ended."""
        arrivals = iter(self.trace.jobs)
        coming = next(arrivals, None)
        ended = 0
        while True:
            self._forget_void()
            moments = [self._events[0][0]] if self._events else []
            moments += [coming.submit] if coming is not None else []
            if not moments and not self._may_wait_on():
                break
            now = min(*moments, self._look) if moments else self._look
            self.meter.pass_to(now)
            while self._events and self._events[0][0] <= now:
                _, _, happen, work, run = heappop(self._events)
                if work.run == run:
                    happen(work)
            while coming is not None and coming.submit <= now:
                self._submit(Work(coming, self.trace, len(self.works)))
                coming = next(arrivals, None)
                if not self.works[-1].source.patient:
                    break  # it is dropped if it does not start now, before the next one comes
            self._settle()
            if told is not None:
                done = len(self.works) - len(self._alive)
                if done != ended:
                    ended = done
                    told(ended)
        self._check_all()

    def _later(self, at: float | None, happen: Callable[[Work], None], work: Work) -> None:
        if at is not None:
            self._count += 1
            heappush(self._events, (at, self._count, happen, work, work.run))

    def _may_wait_on(self) -> bool:
        """Nothing runs and nobody comes: whether time alone may let somebody start."""
        self._idle_looks += 1
        return self._look < float("inf") and self._idle_looks <= _MOST_IDLE_LOOKS

    def _forget_void(self) -> None:
        """What was expected of runs that are over: time must not pass for it."""
        while self._events and self._events[0][3].run != self._events[0][4]:
            heappop(self._events)

    def _submit(self, work: Work) -> None:
        self.works.append(work)
        work.contention = -self.meter.life
        self.meter.alive += 1
        self._alive[work.job.name] = self._waiting[work.job.name] = work
        self._changed[work.job.name] = work.job

    def _finish(self, work: Work) -> None:
        self._free(work)
        work.finish(self.meter.now)
        self._end(work)

    def _end(self, work: Work) -> None:
        work.contention += self.meter.life
        self.meter.alive -= 1
        del self._alive[work.job.name]
        self._changed[work.job.name] = None

    def _step_down(self, work: Work) -> None:
        work.demote()
        self._changed[work.job.name] = work.job
        self._expect_step(work)

    def _expect_step(self, work: Work) -> None:
        ladder, now = self.contender.ladder, self.meter.now
        if work.level < len(ladder) and work.gpus:
            self._later(now + max(0.0, ladder[work.level] - work.held(now)) / work.gpus, self._step_down, work)

    def _gone(self, work: Work) -> None:
        """It has left its place, and waits again; who was moved has a promise of its new place."""
        self._free(work)
        work.place(TaskState.PENDING)
        if work.destination:
            work.promise(work.destination)
            self._promised[work.job.name] = work
            work.destination = {}
        self._waiting[work.job.name] = work
        self._changed[work.job.name] = work.job

    # ---------------------------------------------------------------- deciding

    def _settle(self) -> None:
        """Plan and carry out until nothing more is to be done at this moment."""
        for _ in range(_MOST_PLANS):
            if not self._waiting:
                self.meter.due(None)
                self._look = float("inf")
                break
            decided = self._plan()
            self._apply(decided)
            if not decided.evictions or self._grace:
                break
        else:
            self.unsettled += 1
        self._drop_impatient()
        self.meter.note(len(self._waiting))

    def _plan(self) -> Plan:
        changed, self._changed = self._changed, {}
        start = time.perf_counter()
        decided = self._decide(changed)
        if decided.evictions:
            # Only who is to stop is a matter of checkpoints, so they are looked up only then: a job that runs for a
            # month has thousands of them.
            saved = {name: work.job for name, work in self._alive.items() if work.save(self.meter.now)}
            decided = self._decide(saved) if saved else decided
        self.plan_seconds.append(time.perf_counter() - start)
        self.meter.due(next(iter(decided.fair_shares.values()), {}))
        self.last = decided
        return decided

    def _decide(self, changed: Mapping[str, Job | None]) -> Plan:
        jobs = tuple(work.job for work in self._alive.values())
        snapshot = Snapshot(self._nodes, self._queues, jobs, self._topologies)
        policy, now = self.contender.policy, self.meter.now
        decided = self._session.plan(snapshot, policy, now, changed=changed)
        self._look = next_wakeup(snapshot, decided, (policy,), now) or float("inf")
        return decided

    def _apply(self, decided: Plan) -> None:
        waiting = len(self._waiting)
        stopped = _by_job(decided.evictions)
        for name, evictions in stopped.items():
            self._evict(self._alive[name], evictions)
        promises, binds = _places(decided.nominations), _places(decided.binds)
        kept = promises.keys() | binds.keys() | stopped.keys()
        for name in [name for name in self._promised if name not in kept]:
            self._withdraw(self._promised.pop(name))
        for name, places in promises.items():
            work = self._waiting[name]
            self._promised[name] = work
            if work.promise(places):
                self._changed[name] = work.job
        if binds:
            self._idle_looks = 0
        for name, places in binds.items():
            self._start(self._waiting.pop(name), places)
        placed = len(promises) + len(binds)
        assert len(decided.refusals) == waiting - placed, "somebody waits and was not told why"

    def _start(self, work: Work, places: _Places) -> None:
        self._promised.pop(work.job.name, None)
        now = self.meter.now
        work.start(now, places)
        for task in work.job.tasks:
            for share in task.shares:
                key = (task.node, share.index)
                self._used[key] = self._used.get(key, 0) + share.milli
                assert self._used[key] <= GPU, f"GPU {share.index} of {task.node} is given out twice"
        self.meter.take(work.source.project, work.source.gpu_milli)
        self._changed[work.job.name] = work.job
        self._later(work.ends_at(), self._finish, work)
        self._expect_step(work)

    def _evict(self, work: Work, evictions: list[Eviction]) -> None:
        rule = evictions[0].rule
        self.evictions[rule] = self.evictions.get(rule, 0) + 1
        work.destination = {one.task: (one.to.node, one.to.shares) for one in evictions if one.to is not None}
        if len(work.destination) == len(work.job.tasks):
            work.moves += 1
        else:
            work.stops += 1
            work.destination = {}
        work.stop(self.meter.now, TaskState.EVICTED)
        self._changed[work.job.name] = work.job
        if self._grace:
            self._later(self.meter.now + self._grace, self._gone, work)
        else:
            self._gone(work)

    def _withdraw(self, work: Work) -> None:
        work.place(TaskState.PENDING)
        self._changed[work.job.name] = work.job

    def _free(self, work: Work) -> None:
        for task in work.job.tasks:
            for share in task.shares:
                self._used[task.node, share.index] -= share.milli
        self.meter.take(work.source.project, -work.source.gpu_milli)

    def _drop_impatient(self) -> None:
        if self.works and not self.works[-1].source.patient:
            for name, work in [(name, work) for name, work in self._waiting.items() if not work.source.patient]:
                del self._waiting[name]
                self._promised.pop(name, None)
                self.dropped.append(work)
                self._end(work)

    def _check_all(self) -> None:
        ended = sum(work.finished is not None for work in self.works)
        assert len(self.works) == len(self.trace.jobs), "not every job came"
        assert len(self.works) == ended + len(self.dropped) + len(self._alive), "a job was lost"

    @property
    def left(self) -> list[Work]:
        """Who still waits when nothing happens any more: it can never start."""
        return list(self._waiting.values())

    @property
    def running(self) -> list[Work]:
        """Who runs when nothing happens any more: it never ends."""
        return [work for work in self._alive.values() if work.started is not None]


def _queue(name: str, quota: int, index: int) -> Queue:
    return Queue(name, pools={"default": PoolQuota(quota=(quota * GPU, None, None))}, created=index)


def _by_job(evictions: Iterable[Eviction]) -> dict[str, list[Eviction]]:
    found: dict[str, list[Eviction]] = {}
    for one in evictions:
        found.setdefault(one.job, []).append(one)
    return found


def _places(decisions: Iterable[Bind | Nomination]) -> dict[str, _Places]:
    found: dict[str, _Places] = {}
    for one in decisions:
        found.setdefault(one.job, {})[one.task] = (one.node, one.shares)
    return found
