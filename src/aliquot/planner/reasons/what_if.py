"""What would let a waiting job run now.

Nothing is claimed that was not tried: each claim is a changed snapshot that was planned again, and in which the job got
its places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from aliquot.planner.incremental import plan
from aliquot.planner.model import DEFAULT_POOL, GPU, Job, Policy, PoolQuota, Queue, Request, Snapshot, TaskState
from aliquot.planner.plan import Plan, Refusal, Verdict
from aliquot.planner.reasons.format import amount_text, request_text, span_text

_CLAIMS = 4  # as many as a person reads
_ENDINGS_TRIED = 12  # running jobs of which it is tried whether their end would be enough
_MOMENTS_TRIED = 6  # a person does not wait for the seventh


@dataclass(frozen=True, slots=True)
class Change:
    """A change after which the job would run."""

    kind: str  # less, preemptible, quota, ends, anywhere or later
    form: str  # the sentence, with {} where its subject stands
    subject: str = ""  # the job or queue that it is about
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
    """Changes that would let this job run, the smallest first. Empty when it need not wait, or when nothing that was
    tried helps."""
    return [claim for claim in trials(snapshot, policy, now, name, decided, policies) if claim is not None]


def trials(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    name: str,
    decided: Plan | None = None,
    policies: Mapping[str, Policy] | None = None,
) -> Iterator[Change | None]:
    """The same one by one: what a trial has shown, or None where it did not help. Each is a plan, so whoever has no
    time left stops here."""
    job = next((job for job in snapshot.jobs if job.name == name), None)
    if job is None:
        return
    before = decided if decided is not None else plan(snapshot, policy, now, policies or {})
    if _served(before, job):
        return
    found: Counter[str] = Counter()
    for claim, changed, then in _changes(snapshot, job, before, now):
        if found[claim.kind] >= (2 if claim.kind == "ends" else 1):
            continue
        wanted = next(one for one in changed.jobs if one.name == name)
        if not _served(plan(changed, policy, then, policies or {}), wanted):
            yield None
            continue
        found[claim.kind] += 1
        yield claim
        if found.total() == _CLAIMS:
            return


def _served(decided: Plan, job: Job) -> bool:
    """Whether all that it needs to run gets a place."""
    least = len(job.tasks) if job.min_available is None else job.min_available
    there = sum(task.state is TaskState.RUNNING for task in job.tasks)
    placed = sum(one.job == job.name for one in decided.binds) + sum(one.job == job.name for one in decided.nominations)
    return placed > 0 and (there + placed >= least or bool(job.subgroups))


Trial = tuple[Change, Snapshot, float]


def _changes(snapshot: Snapshot, job: Job, before: Plan, now: float) -> Iterator[Trial]:
    refusals = before.refusals.get(job.name, ())
    # What can never fit is helped by nobody's end, and by no time that passes.
    final = bool(refusals) and all(one.verdict is Verdict.NEVER for one in refusals)
    if not final:
        yield from _later(snapshot, job, refusals, now)
    yield from _preemptible(snapshot, job, now)
    yield from _quota(snapshot, job, refusals, now)
    yield from _anywhere(snapshot, job, now)
    yield from _less(snapshot, job, now)
    if not final:
        yield from _ends(snapshot, job, refusals, now)


def _later(snapshot: Snapshot, job: Job, refusals: Iterable[Refusal], now: float) -> Iterator[Trial]:
    """Moments at which a rule about time ends: its own delay, or the minimum run time of somebody who stands in the
    way."""
    told = {one.until for one in refusals if one.until is not None}
    minimums = {
        seconds
        for queue in snapshot.queues
        for seconds in (queue.reclaim_min_runtime, queue.preempt_min_runtime)
        if seconds
    }
    told |= {
        one.started + seconds
        for seconds in minimums
        for one in snapshot.jobs
        if one.preemptible and one.started is not None and one.name != job.name
    }
    for until in sorted(moment for moment in told if moment > now)[:_MOMENTS_TRIED]:
        form = f"in {span_text(until - now)} it can run without any change"
        yield Change("later", form, until=until), snapshot, until


def _with_job(snapshot: Snapshot, job: Job) -> Snapshot:
    return replace(snapshot, jobs=tuple(job if one.name == job.name else one for one in snapshot.jobs))


def _preemptible(snapshot: Snapshot, job: Job, now: float) -> Iterator[Trial]:
    if job.preemptible:
        return
    text = "if it could be preempted it would run now, over quota"
    yield Change("preemptible", text), _with_job(snapshot, replace(job, preemptible=True)), now


def _quota(snapshot: Snapshot, job: Job, refusals: Iterable[Refusal], now: float) -> Iterator[Trial]:
    """More quota for the queue that is in the way, by just what is missing."""
    for one in refusals:
        if one.code not in ("over-quota", "over-limit", "over-fair-share") or one.resource != "gpu":
            continue
        queue = next((queue for queue in snapshot.queues if queue.name == one.queue), None)
        if queue is None:
            continue
        word = "limit" if one.code == "over-limit" else "quota"
        pool = (job.pools or (DEFAULT_POOL,))[0]
        terms = queue.pool_quota(pool)
        amount = (terms.limit if word == "limit" else terms.quota)[0]
        if amount is None:
            continue
        more = amount + one.missing[0]
        changed = _with_queue(snapshot, queue, pool, _raised(terms, word, more))
        form = f"with a {word} of {amount_text(more, 0)} for {{}} ({amount_text(amount, 0)} now) it would run now"
        yield Change("quota", form, queue.name), changed, now


def _raised(terms: PoolQuota, word: str, gpu: int) -> PoolQuota:
    if word == "limit":
        return replace(terms, limit=(gpu, *terms.limit[1:]))
    return replace(terms, quota=(gpu, *terms.quota[1:]))


def _with_queue(snapshot: Snapshot, queue: Queue, pool: str, terms: PoolQuota) -> Snapshot:
    changed = replace(queue, pools={**queue.pools, pool: terms})
    return replace(snapshot, queues=tuple(changed if one.name == queue.name else one for one in snapshot.queues))


def _anywhere(snapshot: Snapshot, job: Job, now: float) -> Iterator[Trial]:
    """Without what holds it to some nodes."""
    if any(task.selector or task.node_types or task.affinity for task in job.tasks):
        tasks = tuple(replace(task, selector={}, node_types=(), affinity=()) for task in job.tasks)
        text = "on nodes of any type and label it would run now"
        yield Change("anywhere", text), _with_job(snapshot, replace(job, tasks=tasks)), now
    if job.topology_constraint is not None and job.topology_constraint.required:
        text = "if its tasks need not be near each other it would run now"
        yield Change("anywhere", text), _with_job(snapshot, replace(job, topology_constraint=None)), now


def _less(snapshot: Snapshot, job: Job, now: float) -> Iterator[Trial]:
    """Fewer GPUs for each task, the most that would do."""
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
    """Some running job ends: those that hold the nearest node first, then those of its own project, then the rest."""
    named = {name: i for i, one in enumerate(refusals) for name in one.holders}
    running = [one for one in snapshot.jobs if any(task.state is TaskState.RUNNING for task in one.tasks)]

    def nearness(one: Job) -> tuple[int, bool, int, str]:
        size = sum(task.request.devices * (task.request.milli or GPU) for task in one.tasks)
        return (named.get(one.name, len(named)), one.queue != job.queue, size, one.name)

    for one in sorted(running, key=nearness)[:_ENDINGS_TRIED]:
        if one.name == job.name:
            continue
        changed = replace(snapshot, jobs=tuple(other for other in snapshot.jobs if other.name != one.name))
        yield Change("ends", "if {} ended it would run", one.name), changed, now
