"""Changes that would let a waiting job run now.

Each change is tried before it is reported: the changed snapshot is planned again, and the job gets its places in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from aliquot.planner.incremental import plan
from aliquot.planner.model import DEFAULT_POOL, GPU, Job, Policy, PoolQuota, Queue, Request, Snapshot, TaskState
from aliquot.planner.plan import Plan, Refusal, Verdict
from aliquot.planner.reasons.format import amount_text, request_text, span_text

_CHANGES_REPORTED = 4  # as many as a user reads
_ENDINGS_TRIED = 12  # running jobs for which the planner tries what their end would change
_TIMES_TRIED = 6  # later times are too far away to wait for


@dataclass(frozen=True, slots=True)
class Change:
    """A change after which the job would run."""

    kind: str  # less, preemptible, quota, ends, anywhere or later
    form: str  # the sentence, with {} in place of its subject
    subject: str = ""  # the job or queue that changes
    until: float | None = None

    @property
    def text(self) -> str:
        return self.text_for(self.subject)

    def text_for(self, subject: str) -> str:
        """The sentence, with another name for its subject."""
        return self.form.replace("{}", subject)


def what_would_help(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    name: str,
    decided: Plan | None = None,
    policies: Mapping[str, Policy] | None = None,
) -> list[Change]:
    """Changes that would let this job run, the smallest first. Empty if it does not wait, or if nothing that was tried
    helps."""
    return [change for change in trials(snapshot, policy, now, name, decided, policies) if change is not None]


def trials(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    name: str,
    decided: Plan | None = None,
    policies: Mapping[str, Policy] | None = None,
) -> Iterator[Change | None]:
    """The same one by one: a change that helps, or None for a trial that did not help. Each trial is a plan, so that a
    caller with limited time can stop in between."""
    job = next((job for job in snapshot.jobs if job.name == name), None)
    if job is None:
        return
    before = decided if decided is not None else plan(snapshot, policy, now, policies or {})
    if _is_placed(before, job):
        return
    reported: Counter[str] = Counter()
    for change, changed, then in _trials(snapshot, job, before, now):
        if reported[change.kind] >= (2 if change.kind == "ends" else 1):
            continue
        changed_job = next(other for other in changed.jobs if other.name == name)
        if not _is_placed(plan(changed, policy, then, policies or {}), changed_job):
            yield None
            continue
        reported[change.kind] += 1
        yield change
        if reported.total() == _CHANGES_REPORTED:
            return


def _is_placed(decided: Plan, job: Job) -> bool:
    """Whether all tasks that the job needs to run have a place."""
    needed = len(job.tasks) if job.min_available is None else job.min_available
    running = sum(task.state is TaskState.RUNNING for task in job.tasks)
    placed = sum(bind.job == job.name for bind in decided.binds)
    placed += sum(nomination.job == job.name for nomination in decided.nominations)
    return placed > 0 and (running + placed >= needed or bool(job.subgroups))


Trial = tuple[Change, Snapshot, float]


def _trials(snapshot: Snapshot, job: Job, before: Plan, now: float) -> Iterator[Trial]:
    refusals = before.refusals.get(job.name, ())
    # If a job can never fit, neither time nor the end of another job helps.
    never = bool(refusals) and all(refusal.verdict is Verdict.NEVER for refusal in refusals)
    if not never:
        yield from _later(snapshot, job, refusals, now)
    yield from _preemptible(snapshot, job, now)
    yield from _quota(snapshot, job, refusals, now)
    yield from _anywhere(snapshot, job, now)
    yield from _less(snapshot, job, now)
    if not never:
        yield from _ends(snapshot, job, refusals, now)


def _later(snapshot: Snapshot, job: Job, refusals: Iterable[Refusal], now: float) -> Iterator[Trial]:
    """Times at which a time limit ends: the job's own delay, or the minimum run time of another job."""
    times = {refusal.until for refusal in refusals if refusal.until is not None}
    minimums = {
        seconds
        for queue in snapshot.queues
        for seconds in (queue.reclaim_min_runtime, queue.preempt_min_runtime)
        if seconds
    }
    times |= {
        other.started + seconds
        for seconds in minimums
        for other in snapshot.jobs
        if other.preemptible and other.started is not None and other.name != job.name
    }
    for until in sorted(time for time in times if time > now)[:_TIMES_TRIED]:
        form = f"in {span_text(until - now)} it can run without any change"
        yield Change("later", form, until=until), snapshot, until


def _with_job(snapshot: Snapshot, job: Job) -> Snapshot:
    return replace(snapshot, jobs=tuple(job if other.name == job.name else other for other in snapshot.jobs))


def _preemptible(snapshot: Snapshot, job: Job, now: float) -> Iterator[Trial]:
    if job.preemptible:
        return
    text = "if it were preemptible it would run now, over quota"
    yield Change("preemptible", text), _with_job(snapshot, replace(job, preemptible=True)), now


def _quota(snapshot: Snapshot, job: Job, refusals: Iterable[Refusal], now: float) -> Iterator[Trial]:
    """Raises the quota or limit that refused the job, by just what is missing."""
    for refusal in refusals:
        if refusal.code not in ("over-quota", "over-limit", "over-fair-share") or refusal.resource != "gpu":
            continue
        queue = next((queue for queue in snapshot.queues if queue.name == refusal.queue), None)
        if queue is None:
            continue
        bound = "limit" if refusal.code == "over-limit" else "quota"
        pool = (job.pools or (DEFAULT_POOL,))[0]
        pool_quota = queue.pool_quota(pool)
        amount = (pool_quota.limit if bound == "limit" else pool_quota.quota)[0]
        if amount is None:
            continue
        more = amount + refusal.missing[0]
        changed = _with_queue(snapshot, queue, pool, _with_bound(pool_quota, bound, more))
        form = f"with a {bound} of {amount_text(more, 0)} for {{}} ({amount_text(amount, 0)} now) it would run now"
        yield Change("quota", form, queue.name), changed, now


def _with_bound(pool_quota: PoolQuota, bound: str, gpu: int) -> PoolQuota:
    if bound == "limit":
        return replace(pool_quota, limit=(gpu, *pool_quota.limit[1:]))
    return replace(pool_quota, quota=(gpu, *pool_quota.quota[1:]))


def _with_queue(snapshot: Snapshot, queue: Queue, pool: str, pool_quota: PoolQuota) -> Snapshot:
    changed = replace(queue, pools={**queue.pools, pool: pool_quota})
    return replace(snapshot, queues=tuple(changed if other.name == queue.name else other for other in snapshot.queues))


def _anywhere(snapshot: Snapshot, job: Job, now: float) -> Iterator[Trial]:
    """Removes what restricts the job to some nodes."""
    if any(task.selector or task.node_types or task.affinity for task in job.tasks):
        tasks = tuple(replace(task, selector={}, node_types=(), affinity=()) for task in job.tasks)
        text = "on nodes of any type and label it would run now"
        yield Change("anywhere", text), _with_job(snapshot, replace(job, tasks=tasks)), now
    if job.topology_constraint is not None and job.topology_constraint.required:
        text = "if its tasks need not be near each other it would run now"
        yield Change("anywhere", text), _with_job(snapshot, replace(job, topology_constraint=None)), now


def _less(snapshot: Snapshot, job: Job, now: float) -> Iterator[Trial]:
    """Fewer GPUs for each task, the most first."""
    request = job.tasks[0].request if job.tasks else Request()
    for smaller in _smaller(request):
        tasks = tuple(
            replace(task, request=smaller) if task.state is TaskState.PENDING and task.request == request else task
            for task in job.tasks
        )
        text = f"with {request_text(smaller)} instead of {request_text(request)} it would run now"
        yield Change("less", text), _with_job(snapshot, replace(job, tasks=tasks)), now


def _smaller(request: Request) -> Iterator[Request]:
    if request.whole:
        for devices in range(request.devices - 1, 0, -1):
            yield replace(request, devices=devices)
    elif request.milli and not request.memory_mib:
        for milli in (3 * request.milli // 4, request.milli // 2, request.milli // 4):
            if 0 < milli < min(request.milli, GPU):
                yield replace(request, milli=milli)


def _ends(snapshot: Snapshot, job: Job, refusals: Iterable[Refusal], now: float) -> Iterator[Trial]:
    """Another job ends: first jobs on the nearest node, then jobs of the same project, then all others."""
    named = {name: i for i, refusal in enumerate(refusals) for name in refusal.holders}
    running = [other for other in snapshot.jobs if any(task.state is TaskState.RUNNING for task in other.tasks)]

    def nearness(other: Job) -> tuple[int, bool, int, str]:
        size = sum(task.request.devices * (task.request.milli or GPU) for task in other.tasks)
        return (named.get(other.name, len(named)), other.queue != job.queue, size, other.name)

    for ending in sorted(running, key=nearness)[:_ENDINGS_TRIED]:
        if ending.name == job.name:
            continue
        changed = replace(snapshot, jobs=tuple(other for other in snapshot.jobs if other.name != ending.name))
        yield Change("ends", "if {} ended it would run", ending.name), changed, now
