"""Replays a trace through the planner of the live scheduler, in virtual time.

Time jumps from event to event. After each event that may let a waiting job start, the engine plans and carries the plan
out as the live scheduler does:

    1. evictions     the job stops, and leaves its devices after `grace` seconds; then it waits again and keeps its age;
                     a job that was moved is nominated to its new devices
    2. nominations   the job keeps its nominated devices for the next plan; a nomination that a plan does not renew ends
    3. binds         the job runs

The engine asserts that no device is given out twice and that every waiting job has a refusal. The cost of an event does
not grow with the number of jobs that have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from aliquot.planner.incremental import IncrementalPlanner
from aliquot.planner.model import GPU, Job, Policy, PoolQuota, Queue, Snapshot, TaskState
from aliquot.planner.plan import Bind, Eviction, Nomination, Plan
from aliquot.scheduler.wakeups import next_wakeup
from aliquot.sim.replay.job_progress import JobProgress, Placements
from aliquot.sim.replay.usage_meter import UsageMeter
from aliquot.sim.traces import Trace

# Plans at one moment. With a grace of 0 an eviction frees devices at once, so another plan may follow each plan.
_MOST_PLANS = 1000
# Wakeups in a row in which nothing happens. Each comes later than the last; a job that cannot start by then never will.
_MOST_IDLE_WAKEUPS = 100


@dataclass(frozen=True, slots=True)
class ReplayPolicy:
    """A policy and its name. `ladder`: a job's priority drops by one each time it has held so many GPU-seconds."""

    name: str
    policy: Policy
    ladder: tuple[float, ...] = ()


class Replay:
    """One trace under one policy. After `run`, `jobs` and `meter` have the outcome."""

    def __init__(self, trace: Trace, policy: ReplayPolicy, grace: float = 0) -> None:
        self.trace, self.policy = trace, policy
        self._grace = grace
        self._nodes = trace.cluster()
        self._queues = tuple(
            _queue(name, trace.quotas.get(name, 0), index) for index, name in enumerate(trace.projects)
        )
        total = GPU * sum(len(node.devices) for node in self._nodes)
        self.meter = UsageMeter(trace.projects, total)
        self.jobs: list[JobProgress] = []  # all that were submitted so far, in order
        self.dropped: list[JobProgress] = []
        self._active: dict[str, JobProgress] = {}
        self._waiting: dict[str, JobProgress] = {}  # with or without a nomination
        self._nominated: dict[str, JobProgress] = {}
        self._changed: dict[str, Job | None] = {}
        self._events: list[tuple[float, int, Callable[[JobProgress], None], JobProgress, int]] = []
        self._event_count = 0
        self._used: dict[tuple[str, int], int] = {}  # milli by device
        self._planner = IncrementalPlanner()
        self._topologies: dict[str, tuple[str, ...]] = {}
        self.plan_seconds: list[float] = []
        self.evictions: dict[str, int] = {}  # evicted jobs by rule
        self.last_plan: Plan = Plan()
        self.unsettled = 0
        self._wakeup = float("inf")  # when time alone may change the plan
        self._idle_wakeups = 0

    def run(self, report_ended: Callable[[int], None] | None = None) -> None:
        """Replay until nothing happens any more. `report_ended` is called with the number of jobs that have ended."""
        arrivals = iter(self.trace.jobs)
        next_arrival = next(arrivals, None)
        reported = 0
        while True:
            self._discard_outdated_events()
            times = [self._events[0][0]] if self._events else []
            times += [next_arrival.submit] if next_arrival is not None else []
            if not times and not self._may_start_later():
                break
            now = min(*times, self._wakeup) if times else self._wakeup
            self.meter.advance_to(now)
            while self._events and self._events[0][0] <= now:
                _, _, handle, job, run = heappop(self._events)
                if job.run == run:
                    handle(job)
            while next_arrival is not None and next_arrival.submit <= now:
                self._submit(JobProgress(next_arrival, self.trace, len(self.jobs)))
                next_arrival = next(arrivals, None)
                if not self.jobs[-1].trace_job.may_wait:
                    break  # it is dropped if it does not start now, before the next job is submitted
            self._settle()
            if report_ended is not None:
                ended = len(self.jobs) - len(self._active)
                if ended != reported:
                    reported = ended
                    report_ended(ended)
        self._check_all()

    def _schedule(self, at: float | None, handle: Callable[[JobProgress], None], job: JobProgress) -> None:
        if at is not None:
            self._event_count += 1
            heappush(self._events, (at, self._event_count, handle, job, job.run))

    def _may_start_later(self) -> bool:
        """Whether time alone may let a job start, when nothing runs and no job is to be submitted."""
        self._idle_wakeups += 1
        return self._wakeup < float("inf") and self._idle_wakeups <= _MOST_IDLE_WAKEUPS

    def _discard_outdated_events(self) -> None:
        """Drop the events of runs that are over, so that time does not advance to them."""
        while self._events and self._events[0][3].run != self._events[0][4]:
            heappop(self._events)

    def _submit(self, job: JobProgress) -> None:
        self.jobs.append(job)
        job.contention = -self.meter.job_seconds
        self.meter.active_jobs += 1
        self._active[job.job.name] = self._waiting[job.job.name] = job
        self._changed[job.job.name] = job.job

    def _finish(self, job: JobProgress) -> None:
        self._release(job)
        job.finish(self.meter.now)
        self._end(job)

    def _end(self, job: JobProgress) -> None:
        job.contention += self.meter.job_seconds
        self.meter.active_jobs -= 1
        del self._active[job.job.name]
        self._changed[job.job.name] = None

    def _demote(self, job: JobProgress) -> None:
        job.demote()
        self._changed[job.job.name] = job.job
        self._schedule_demotion(job)

    def _schedule_demotion(self, job: JobProgress) -> None:
        ladder, now = self.policy.ladder, self.meter.now
        if job.level < len(ladder) and job.gpus:
            self._schedule(now + max(0.0, ladder[job.level] - job.held(now)) / job.gpus, self._demote, job)

    def _requeue(self, job: JobProgress) -> None:
        """An evicted job has left its devices and waits again; a moved job is nominated to its new devices."""
        self._release(job)
        job.set_state(TaskState.PENDING)
        if job.destination:
            job.nominate(job.destination)
            self._nominated[job.job.name] = job
            job.destination = {}
        self._waiting[job.job.name] = job
        self._changed[job.job.name] = job.job

    def _settle(self) -> None:
        """Plan and carry out until a plan frees nothing more at this moment."""
        for _ in range(_MOST_PLANS):
            if not self._waiting:
                self.meter.set_fair_shares(None)
                self._wakeup = float("inf")
                break
            plan = self._plan()
            self._apply(plan)
            if not plan.evictions or self._grace:
                break
        else:
            self.unsettled += 1
        self._drop_unplaced()
        self.meter.record(len(self._waiting))

    def _plan(self) -> Plan:
        changed, self._changed = self._changed, {}
        start = time.perf_counter()
        plan = self._plan_changes(changed)
        if plan.evictions:
            # Checkpoints matter only for the choice of victims, so they are looked up only then: a job that runs for a
            # month has thousands of them.
            saved = {name: job.job for name, job in self._active.items() if job.save(self.meter.now)}
            plan = self._plan_changes(saved) if saved else plan
        self.plan_seconds.append(time.perf_counter() - start)
        self.meter.set_fair_shares(next(iter(plan.fair_shares.values()), {}))
        self.last_plan = plan
        return plan

    def _plan_changes(self, changed: Mapping[str, Job | None]) -> Plan:
        jobs = tuple(job.job for job in self._active.values())
        snapshot = Snapshot(self._nodes, self._queues, jobs, self._topologies)
        policy, now = self.policy.policy, self.meter.now
        plan = self._planner.plan(snapshot, policy, now, changed=changed)
        self._wakeup = next_wakeup(snapshot, plan, (policy,), now) or float("inf")
        return plan

    def _apply(self, plan: Plan) -> None:
        waiting = len(self._waiting)
        evicted = _by_job(plan.evictions)
        for name, evictions in evicted.items():
            self._evict(self._active[name], evictions)
        nominations, binds = _placements(plan.nominations), _placements(plan.binds)
        renewed = nominations.keys() | binds.keys() | evicted.keys()
        for name in [name for name in self._nominated if name not in renewed]:
            self._end_nomination(self._nominated.pop(name))
        for name, placements in nominations.items():
            job = self._waiting[name]
            self._nominated[name] = job
            if job.nominate(placements):
                self._changed[name] = job.job
        if binds:
            self._idle_wakeups = 0
        for name, placements in binds.items():
            self._start(self._waiting.pop(name), placements)
        placed = len(nominations) + len(binds)
        assert len(plan.refusals) == waiting - placed, "a job waits without a refusal"

    def _start(self, job: JobProgress, placements: Placements) -> None:
        self._nominated.pop(job.job.name, None)
        now = self.meter.now
        job.start(now, placements)
        for task in job.job.tasks:
            for share in task.shares:
                key = (task.node, share.index)
                self._used[key] = self._used.get(key, 0) + share.milli
                assert self._used[key] <= GPU, f"GPU {share.index} of {task.node} is given out twice"
        self.meter.allocate(job.trace_job.project, job.trace_job.gpu_milli)
        self._changed[job.job.name] = job.job
        self._schedule(job.ends_at(), self._finish, job)
        self._schedule_demotion(job)

    def _evict(self, job: JobProgress, evictions: list[Eviction]) -> None:
        rule = evictions[0].rule
        self.evictions[rule] = self.evictions.get(rule, 0) + 1
        job.destination = {each.task: (each.to.node, each.to.shares) for each in evictions if each.to is not None}
        if len(job.destination) == len(job.job.tasks):
            job.moves += 1
        else:
            job.stops += 1
            job.destination = {}
        job.stop(self.meter.now, TaskState.EVICTED)
        self._changed[job.job.name] = job.job
        if self._grace:
            self._schedule(self.meter.now + self._grace, self._requeue, job)
        else:
            self._requeue(job)

    def _end_nomination(self, job: JobProgress) -> None:
        job.set_state(TaskState.PENDING)
        self._changed[job.job.name] = job.job

    def _release(self, job: JobProgress) -> None:
        for task in job.job.tasks:
            for share in task.shares:
                self._used[task.node, share.index] -= share.milli
        self.meter.allocate(job.trace_job.project, -job.trace_job.gpu_milli)

    def _drop_unplaced(self) -> None:
        """Drop jobs that may not wait and did not start."""
        if self.jobs and not self.jobs[-1].trace_job.may_wait:
            for name, job in [(name, job) for name, job in self._waiting.items() if not job.trace_job.may_wait]:
                del self._waiting[name]
                self._nominated.pop(name, None)
                self.dropped.append(job)
                self._end(job)

    def _check_all(self) -> None:
        ended = sum(job.finished is not None for job in self.jobs)
        assert len(self.jobs) == len(self.trace.jobs), "not every job was submitted"
        assert len(self.jobs) == ended + len(self.dropped) + len(self._active), "a job was lost"

    @property
    def never_started(self) -> list[JobProgress]:
        """Jobs that still wait at the end of the replay, and can never start."""
        return list(self._waiting.values())

    @property
    def running(self) -> list[JobProgress]:
        """Jobs that still run at the end of the replay, and never end."""
        return [job for job in self._active.values() if job.started is not None]


def _queue(name: str, quota: int, index: int) -> Queue:
    return Queue(name, pools={"default": PoolQuota(quota=(quota * GPU, None, None))}, created=index)


def _by_job(evictions: Iterable[Eviction]) -> dict[str, list[Eviction]]:
    by_job: dict[str, list[Eviction]] = {}
    for eviction in evictions:
        by_job.setdefault(eviction.job, []).append(eviction)
    return by_job


def _placements(decisions: Iterable[Bind | Nomination]) -> dict[str, Placements]:
    """Node and shares of each task, by job and task."""
    by_job: dict[str, Placements] = {}
    for decision in decisions:
        by_job.setdefault(decision.job, {})[decision.task] = (decision.node, decision.shares)
    return by_job
