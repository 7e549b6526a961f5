"""How a job stands, told from the last plan: as facts for programs, and as sentences for people.

Nothing is worked out here that the scheduler did not decide: a reason to wait is its refusal, a promise its
reservation, a stop its notice. Jobs that the reader may not see are not named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from aliquot import units
from aliquot.api import Json, Workload
from aliquot.planner import DeviceShare, Eviction, Job, Refusal, TaskState, Verdict
from aliquot.planner.model import DEFAULT_POOL
from aliquot.planner.queues.queue_position import QueuePosition
from aliquot.planner.reasons.format import amount_text, count, span_text
from aliquot.planner.reasons.what_if import Change
from aliquot.scheduler.explain.risk import protected_until, queue_over_quota, restart_limit_until
from aliquot.scheduler.explain.text import (
    Spot,
    capital,
    listed,
    moment_fact,
    pod_facts,
    queue_words,
    stop_facts,
    where,
)
from aliquot.scheduler.last_decision import Decision
from aliquot.scheduler.snapshot import job_name

CanView = Callable[[str], bool]  # whether the reader may see what is in a namespace
_LEAVING = (TaskState.RELEASING, TaskState.EVICTED)
_STOPS_TOLD = 5  # the latest; all of them are in the workload's status
_ENDED = {"Completed": "has completed", "Failed": "has failed"}


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """What trying things out has shown."""

    claims: tuple[Change, ...]
    count: int
    complete: bool = True  # else there was no time for more


@dataclass(slots=True)
class Explanation:
    """Facts by name, and lines: each says what it is about (state, why, promise, place, help, risk or history)."""

    facts: Json = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)

    def say(self, about: str, text: str) -> None:
        self.lines.append((about, text))

    def shown(self) -> Json:
        return {**self.facts, "lines": [{"about": about, "text": text} for about, text in self.lines]}


def explain_workload(
    decision: Decision,
    workload: Workload,
    now: float,
    sees: CanView,
    turn: QueuePosition | None = None,
    tried: WhatIfResult | None = None,
) -> Json:
    """All that is known. `turn` and `tried` only where somebody has worked them out."""
    return _Teller(decision, workload, now, sees).tell(turn, tried).shown()


class _Teller:
    def __init__(self, decision: Decision, workload: Workload, now: float, sees: CanView) -> None:
        self._decision, self._plan = decision, decision.plan
        self._workload, self._now, self._sees = workload, now, sees
        self._name = workload.metadata.name
        self._key = job_name(workload.metadata.namespace, self._name)
        self._job = decision.jobs.get(self._key)
        self._refusals = self._plan.refusals.get(self._key, ())
        self._out = Explanation()

    def tell(self, turn: QueuePosition | None, tried: WhatIfResult | None) -> Explanation:
        place, state = self._workload.metadata, self._state()
        project = self._job.queue if self._job else ""
        self._out.facts = {
            "workload": place.name,
            "namespace": place.namespace,
            "project": project,
            "state": state,
            "decidedAt": units.timestamp_text(self._decision.now),
        }
        {
            "deleting": self._deleting,
            "ended": self._ended,
            "suspended": self._suspended,
            "unseen": self._unseen,
            "stopping": self._stopping,
            "promised": self._promised,
            "running": self._running,
            "starting": self._starting,
            "waiting": self._waiting,
        }[state]()
        if self._refusals and state in ("waiting", "running"):
            self._why()
            if turn is not None:
                self._place(turn)
            if tried is not None:
                self._help(tried)
        self._history()
        return self._out

    def _state(self) -> str:
        status, job = self._workload.status, self._job
        if self._workload.metadata.deleted is not None:
            return "deleting"
        if status.phase in _ENDED:
            return "ended"
        if status.phase == "Stopped" or not self._workload.spec.active:
            return "suspended"
        if job is None:
            return "unseen"
        if self._evicted() or any(task.state in _LEAVING for task in job.tasks):
            return "stopping"
        if any(one.job == self._key for one in self._plan.nominations):
            return "promised"
        if any(task.state is TaskState.RUNNING for task in job.tasks):
            return "running"
        if any(one.job == self._key for one in self._plan.binds):
            return "starting"
        return "waiting" if self._refusals else "unseen"

    # ---------------------------------------------------------------- states

    def _deleting(self) -> None:
        self._out.say("state", f"{self._name} is being deleted.")

    def _ended(self) -> None:
        status = self._workload.status
        self._since(status.finished_at)
        told = f": {status.message}" if status.message else "."
        self._out.say("state", f"{self._name} {_ENDED[status.phase or '']}{self._ago(status.finished_at)}{told}")

    def _suspended(self) -> None:
        told = f" ({self._workload.status.message})" if self._workload.status.message else ""
        self._out.say("state", f"{self._name} is suspended{told}: `runai resume {self._name}` lets it run again.")

    def _unseen(self) -> None:
        told = f" {self._workload.status.message}" if self._workload.status.message else ""
        self._out.say("state", f"The scheduler has not looked at {self._name} yet: ask again in a moment.{told}")

    def _waiting(self) -> None:
        assert self._job is not None
        since = self._workload.status.queued_at or self._workload.metadata.created
        self._since(since)
        waiting = sum(task.state in (TaskState.PENDING, TaskState.NOMINATED) for task in self._job.tasks)
        pods = f" for {waiting} of {count(len(self._job.tasks), 'pod')}" if len(self._job.tasks) > 1 else ""
        span = "" if since is None else f", for {span_text(self._now - since)} so far"
        self._out.say("state", f"{self._name} of project {self._job.queue} waits{pods}{span}.")

    def _starting(self) -> None:
        places = [(one.task, one.node, one.shares) for one in self._plan.binds if one.job == self._key]
        self._pods(places)
        self._out.say("state", f"{self._name} starts {where(places)}.")

    def _running(self) -> None:
        assert self._job is not None
        places = [(task.name, task.node, task.shares) for task in self._job.tasks if task.state is TaskState.RUNNING]
        self._pods(places)
        status = self._workload.status
        if status.phase in ("Running", "Degraded"):
            self._since(status.started_at)
            span = "" if status.started_at is None else f", for {span_text(self._now - status.started_at)}"
            self._out.say("state", f"{self._name} runs {where(places)}{span}.")
        else:
            told = f" {status.message}" if status.message else ""
            self._out.say("state", f"{self._name} has its place {where(places)} and is being started.{told}")
        self._risk(self._job)

    def _stopping(self) -> None:
        assert self._job is not None
        evicted = self._evicted()
        last = self._workload.status.interruptions[-1:]
        if evicted:
            by = self._decision.jobs.get(evicted[0].by)
            why = evicted[0].text.replace(evicted[0].by, self._shown(by)) if by else evicted[0].text
        else:
            why = last[0].message if last else ""
        ends = [task.releasing_since for task in self._job.tasks if task.releasing_since is not None]
        soon = bool(ends) and max(ends) > self._now
        left = f" It is gone in {span_text(max(ends) - self._now)} at the latest." if soon else ""
        back = "" if self._workload.spec.active and not (last and last[0].final) else " It does not come back."
        self._out.say("state", f"{self._name} is being stopped{f': {why}' if why else ''}.{left}{back}")

    def _promised(self) -> None:
        mine = [one for one in self._plan.nominations if one.job == self._key]
        places = [(one.task, one.node, one.shares) for one in mine]
        since = self._workload.status.queued_at or self._workload.metadata.created
        self._since(since)
        leaving = {job.name: (job, until) for one in mine for job, until in self._leaving(one.node, one.shares)}
        self._out.facts["promise"] = {
            "pods": [pod_facts(*each) for each in places],
            "leaving": [
                {"workload": self._shown(job), **moment_fact("until", until)} for job, until in leaving.values()
            ],
        }
        span = "" if since is None else f", for {span_text(self._now - since)} so far"
        project = self._job.queue if self._job else ""
        self._out.say("state", f"{self._name} of project {project} waits{span}: it has a place that is not free yet.")
        whom = list(dict.fromkeys(self._shown(job) for job, _ in leaving.values()))
        ends = [until for _, until in leaving.values() if until is not None]
        when = f" when {listed(whom)} {'has' if len(whom) == 1 else 'have'} left" if whom else " when that is free"
        known = bool(ends) and len(ends) == len(leaving) and max(ends) > self._now
        latest = f", in {span_text(max(ends) - self._now)} at the latest" if known else ""
        self._out.say("promise", f"It starts {where(places)}{when}{latest}.")

    # ---------------------------------------------------------------- why and what then

    def _why(self) -> None:
        self._out.facts["refusals"] = [self._refusal(one) for one in self._refusals]
        for one in self._refusals:
            left = f" ({span_text(one.until - self._now)} left)" if one.until and one.until > self._now else ""
            self._out.say("why", f"{one.step}: {one.text}{left}.")
        if all(one.verdict is Verdict.NEVER for one in self._refusals):
            self._out.say("why", "Waiting will not help: the job, or the cluster, has to change.")

    def _refusal(self, one: Refusal) -> Json:
        gpu, cpu, memory = (max(0, amount) for amount in one.missing)
        missing = {"gpu": units.whole_units(gpu), "cpu": units.whole_units(cpu), "memory": memory}
        shown: Json = {"step": one.step, "code": one.code, "text": one.text, "final": one.verdict is Verdict.NEVER}
        shown["missing"] = {word: amount for word, amount in missing.items() if amount}
        more = {"queue": one.queue, "resource": one.resource, "node": one.node, "nodes": one.nodes}
        shown |= {word: value for word, value in more.items() if value}
        holders = [self._decision.jobs[name] for name in one.holders if name in self._decision.jobs]
        if holders:
            shown["holders"] = list(dict.fromkeys(map(self._shown, holders)))
        return shown | moment_fact("until", one.until)

    def _place(self, turn: QueuePosition) -> None:
        assert self._job is not None
        self._out.facts["place"] = {
            "inProject": turn.position_in_queue,
            "ofProject": turn.waiting_in_queue,
            "inPool": turn.position,
            "ofPool": turn.waiting,
            "pool": turn.pool,
        }
        text = (
            f"It is number {turn.position_in_queue} of {turn.waiting_in_queue} that wait in project {self._job.queue}"
        )
        where = "" if turn.pool == DEFAULT_POOL else f" in node pool {turn.pool}"
        if turn.waiting != turn.waiting_in_queue:
            text += f", and number {turn.position} of {turn.waiting} of all projects{where}"
        self._out.say("place", f"{text}.")

    def _help(self, tried: WhatIfResult) -> None:
        told = {self._claim(claim): claim for claim in tried.claims}
        self._out.facts["wouldRun"] = [
            {"kind": claim.kind, "text": text, **moment_fact("until", claim.until)} for text, claim in told.items()
        ]
        self._out.facts |= {"tried": tried.count, "triedAll": tried.complete}
        for text in told:
            self._out.say("help", f"{capital(text)}.")
        if not told:
            rest = "" if tried.complete else ", and there was no time to try everything"
            self._out.say("help", f"Nothing that was tried would let it run now{rest}.")

    def _claim(self, claim: Change) -> str:
        if claim.kind == "later" and claim.until is not None:
            return f"in {span_text(claim.until - self._now)} it can run without any change"
        if claim.kind == "quota":
            return claim.text_for(queue_words(claim.subject))
        job = self._decision.jobs.get(claim.subject)
        return claim.text_for(self._shown(job)) if job else claim.text

    # ---------------------------------------------------------------- running

    def _risk(self, job: Job) -> None:
        """Whether others could have its place."""
        self._out.facts["preemptible"] = job.preemptible
        if not job.preemptible:
            self._out.say("risk", "It is not stopped for others.")
            return
        if not any(task.request.devices for task in job.tasks):
            return
        over = queue_over_quota(self._decision, job)
        self._out.facts["overQuota"] = over is not None
        if over is None:
            text = f"Its project is within its quota: only more important work of project {job.queue} can stop it."
        else:
            text = (
                f"{capital(queue_words(over.queue))} holds {amount_text(over.held, 0)},"
                f" {amount_text(over.held - over.quota, 0)} more than its quota:"
                " this job can be stopped when others ask for what they are due."
            )
        self._out.say("risk", text)
        until = protected_until(self._decision, job)
        if until is not None and until > self._now:
            self._out.facts |= moment_fact("protectedUntil", until)
            self._out.say("risk", f"Its minimum run time protects it for another {span_text(until - self._now)}.")
        self._left_alone(job)

    def _left_alone(self, job: Job) -> None:
        """What `restartsPerHour` does for it."""
        until = restart_limit_until(self._decision, job)
        if until is None or until <= self._now:
            return
        if math.isinf(until):
            self._out.say("risk", "Its scheduling policy lets nobody be stopped for others.")
            return
        self._out.facts |= moment_fact("leftAloneUntil", until)
        often = "It was stopped as often in the last hour as the scheduling policy allows"
        self._out.say("risk", f"{often}: it is left alone for another {span_text(until - self._now)}.")

    # ---------------------------------------------------------------- history

    def _history(self) -> None:
        status = self._workload.status
        stops = status.interruptions[-_STOPS_TOLD:]
        if not stops:
            return
        self._out.facts["interruptionCount"] = status.interruption_count
        self._out.facts["interruptions"] = [stop_facts(one) for one in stops]
        last, times = stops[-1], status.interruption_count
        often = "once," if times == 1 else f"{times} times, last"
        lost = f"; {span_text(last.lost_seconds)} of its work were lost" if last.lost_seconds >= 1 else ""
        why = last.message or last.reason
        self._out.say("history", f"It was stopped {often}{self._ago(last.at)}: {why}{lost}.")

    # ---------------------------------------------------------------- words

    def _evicted(self) -> list[Eviction]:
        return [one for one in self._plan.evictions if one.job == self._key]

    def _leaving(self, node: str, shares: Sequence[DeviceShare]) -> Iterator[tuple[Job, float | None]]:
        """Who is on the way out of a place, and when it is gone at the latest."""
        indices = {share.index for share in shares}
        stopped = {(one.job, one.task) for one in self._plan.evictions}
        for job in self._decision.snapshot.jobs:
            for task in job.tasks:
                going = task.state in _LEAVING or (job.name, task.name) in stopped
                here = task.node == node and (not indices or indices & {share.index for share in task.shares})
                if going and here and job.name != self._key:
                    yield job, task.releasing_since

    def _shown(self, job: Job) -> str:
        namespace, _, name = job.name.partition("/")
        return f"{job.queue}/{name}" if self._sees(namespace) else "a job of another project"

    def _since(self, moment: float | None) -> None:
        self._out.facts |= moment_fact("since", moment)

    def _ago(self, moment: float | None) -> str:
        return "" if moment is None else f" {span_text(self._now - moment)} ago"

    def _pods(self, places: Iterable[Spot]) -> None:
        self._out.facts["pods"] = [pod_facts(*each) for each in places]
