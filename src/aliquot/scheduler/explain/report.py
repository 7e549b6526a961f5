"""The report on one job, from the last plan: facts for programs and sentences for people.

The report computes nothing that the scheduler did not decide: a reason to wait is a refusal of the plan, a promised
place is a nomination, a stop is an eviction. It does not name jobs that the reader may not see.
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
    PodPlacement,
    capitalized,
    interruption_facts,
    list_text,
    placement_text,
    pod_facts,
    queue_text,
    time_fact,
)
from aliquot.scheduler.last_decision import Decision
from aliquot.scheduler.snapshot import job_name

CanView = Callable[[str], bool]  # whether the reader may see the jobs of a namespace
_LEAVING = (TaskState.RELEASING, TaskState.EVICTED)
_INTERRUPTIONS_REPORTED = 5  # the latest; all of them are in the workload's status
_ENDED = {"Completed": "has completed", "Failed": "has failed"}


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """The outcome of the what-if trials."""

    changes: tuple[Change, ...]  # each would let the job run
    count: int  # of trials
    complete: bool = True  # False: the time limit ended them


@dataclass(slots=True)
class Report:
    """Facts by name, and lines. Each line has a subject: state, why, promise, place, help, risk or history."""

    facts: Json = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)

    def add_line(self, about: str, text: str) -> None:
        self.lines.append((about, text))

    def as_json(self) -> Json:
        return {**self.facts, "lines": [{"about": about, "text": text} for about, text in self.lines]}


def explain_workload(
    decision: Decision,
    workload: Workload,
    now: float,
    can_view: CanView,
    position: QueuePosition | None = None,
    what_if: WhatIfResult | None = None,
) -> Json:
    """The report on a workload, with its queue position and the what-if trials where they were computed."""
    return _ReportBuilder(decision, workload, now, can_view).build(position, what_if).as_json()


class _ReportBuilder:
    def __init__(self, decision: Decision, workload: Workload, now: float, can_view: CanView) -> None:
        self._decision, self._plan = decision, decision.plan
        self._workload, self._now, self._can_view = workload, now, can_view
        self._name = workload.metadata.name
        self._key = job_name(workload.metadata.namespace, self._name)
        self._job = decision.jobs.get(self._key)
        self._refusals = self._plan.refusals.get(self._key, ())
        self._report = Report()

    def build(self, position: QueuePosition | None, what_if: WhatIfResult | None) -> Report:
        meta, state = self._workload.metadata, self._state()
        project = self._job.queue if self._job else ""
        self._report.facts = {
            "workload": meta.name,
            "namespace": meta.namespace,
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
            "promised": self._nominated,
            "running": self._running,
            "starting": self._starting,
            "waiting": self._waiting,
        }[state]()
        if self._refusals and state in ("waiting", "running"):
            self._add_refusals()
            if position is not None:
                self._add_position(position)
            if what_if is not None:
                self._add_what_if(what_if)
        self._add_history()
        return self._report

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
        if self._evictions() or any(task.state in _LEAVING for task in job.tasks):
            return "stopping"
        if any(nomination.job == self._key for nomination in self._plan.nominations):
            return "promised"
        if any(task.state is TaskState.RUNNING for task in job.tasks):
            return "running"
        if any(bind.job == self._key for bind in self._plan.binds):
            return "starting"
        return "waiting" if self._refusals else "unseen"

    # ---------------------------------------------------------------- states

    def _deleting(self) -> None:
        self._report.add_line("state", f"{self._name} is being deleted.")

    def _ended(self) -> None:
        status = self._workload.status
        self._add_since(status.finished_at)
        message = f": {status.message}" if status.message else "."
        ended = f"{_ENDED[status.phase or '']}{self._ago(status.finished_at)}"
        self._report.add_line("state", f"{self._name} {ended}{message}")

    def _suspended(self) -> None:
        message = f" ({self._workload.status.message})" if self._workload.status.message else ""
        self._report.add_line(
            "state", f"{self._name} is suspended{message}: `runai resume {self._name}` lets it run again."
        )

    def _unseen(self) -> None:
        message = f" {self._workload.status.message}" if self._workload.status.message else ""
        self._report.add_line(
            "state", f"The scheduler has not looked at {self._name} yet: ask again in a moment.{message}"
        )

    def _waiting(self) -> None:
        assert self._job is not None
        since = self._workload.status.queued_at or self._workload.metadata.created
        self._add_since(since)
        waiting = sum(task.state in (TaskState.PENDING, TaskState.NOMINATED) for task in self._job.tasks)
        pods = f" for {waiting} of {count(len(self._job.tasks), 'pod')}" if len(self._job.tasks) > 1 else ""
        span = "" if since is None else f", for {span_text(self._now - since)} so far"
        self._report.add_line("state", f"{self._name} of project {self._job.queue} waits{pods}{span}.")

    def _starting(self) -> None:
        placements = [(bind.task, bind.node, bind.shares) for bind in self._plan.binds if bind.job == self._key]
        self._add_pods(placements)
        self._report.add_line("state", f"{self._name} starts {placement_text(placements)}.")

    def _running(self) -> None:
        assert self._job is not None
        running = [task for task in self._job.tasks if task.state is TaskState.RUNNING]
        placements = [(task.name, task.node, task.shares) for task in running]
        self._add_pods(placements)
        status = self._workload.status
        if status.phase in ("Running", "Degraded"):
            self._add_since(status.started_at)
            span = "" if status.started_at is None else f", for {span_text(self._now - status.started_at)}"
            self._report.add_line("state", f"{self._name} runs {placement_text(placements)}{span}.")
        else:
            message = f" {status.message}" if status.message else ""
            self._report.add_line(
                "state", f"{self._name} has its place {placement_text(placements)} and is being started.{message}"
            )
        self._add_risk(self._job)

    def _stopping(self) -> None:
        assert self._job is not None
        evictions = self._evictions()
        last = self._workload.status.interruptions[-1:]
        if evictions:
            by = self._decision.jobs.get(evictions[0].by)
            why = evictions[0].text.replace(evictions[0].by, self._job_text(by)) if by else evictions[0].text
        else:
            why = last[0].message if last else ""
        ends = [task.releasing_since for task in self._job.tasks if task.releasing_since is not None]
        soon = bool(ends) and max(ends) > self._now
        left = f" It is gone in {span_text(max(ends) - self._now)} at the latest." if soon else ""
        back = "" if self._workload.spec.active and not (last and last[0].final) else " It does not come back."
        self._report.add_line("state", f"{self._name} is being stopped{f': {why}' if why else ''}.{left}{back}")

    def _nominated(self) -> None:
        nominations = [nomination for nomination in self._plan.nominations if nomination.job == self._key]
        placements = [(nomination.task, nomination.node, nomination.shares) for nomination in nominations]
        since = self._workload.status.queued_at or self._workload.metadata.created
        self._add_since(since)
        leaving = {
            job.name: (job, until)
            for nomination in nominations
            for job, until in self._leaving(nomination.node, nomination.shares)
        }
        self._report.facts["promise"] = {
            "pods": [pod_facts(*placement) for placement in placements],
            "leaving": [
                {"workload": self._job_text(job), **time_fact("until", until)} for job, until in leaving.values()
            ],
        }
        span = "" if since is None else f", for {span_text(self._now - since)} so far"
        project = self._job.queue if self._job else ""
        self._report.add_line(
            "state", f"{self._name} of project {project} waits{span}: it has a place that is not free yet."
        )
        names = list(dict.fromkeys(self._job_text(job) for job, _ in leaving.values()))
        ends = [until for _, until in leaving.values() if until is not None]
        when = (
            f" when {list_text(names)} {'has' if len(names) == 1 else 'have'} left" if names else " when that is free"
        )
        known = bool(ends) and len(ends) == len(leaving) and max(ends) > self._now
        latest = f", in {span_text(max(ends) - self._now)} at the latest" if known else ""
        self._report.add_line("promise", f"It starts {placement_text(placements)}{when}{latest}.")

    # ---------------------------------------------------------------- why it waits, and what would help

    def _add_refusals(self) -> None:
        self._report.facts["refusals"] = [self._refusal_facts(refusal) for refusal in self._refusals]
        for refusal in self._refusals:
            until = refusal.until
            left = f" ({span_text(until - self._now)} left)" if until and until > self._now else ""
            self._report.add_line("why", f"{refusal.step}: {refusal.text}{left}.")
        if all(refusal.verdict is Verdict.NEVER for refusal in self._refusals):
            self._report.add_line("why", "Waiting will not help: the job, or the cluster, has to change.")

    def _refusal_facts(self, refusal: Refusal) -> Json:
        gpu, cpu, memory = (max(0, amount) for amount in refusal.missing)
        missing = {"gpu": units.whole_units(gpu), "cpu": units.whole_units(cpu), "memory": memory}
        facts: Json = {
            "step": refusal.step,
            "code": refusal.code,
            "text": refusal.text,
            "final": refusal.verdict is Verdict.NEVER,
            "missing": {resource: amount for resource, amount in missing.items() if amount},
        }
        optional = {
            "queue": refusal.queue,
            "resource": refusal.resource,
            "node": refusal.node,
            "nodes": refusal.nodes,
        }
        facts |= {name: value for name, value in optional.items() if value}
        holders = [self._decision.jobs[name] for name in refusal.holders if name in self._decision.jobs]
        if holders:
            facts["holders"] = list(dict.fromkeys(map(self._job_text, holders)))
        return facts | time_fact("until", refusal.until)

    def _add_position(self, position: QueuePosition) -> None:
        assert self._job is not None
        self._report.facts["place"] = {
            "inProject": position.position_in_queue,
            "ofProject": position.waiting_in_queue,
            "inPool": position.position,
            "ofPool": position.waiting,
            "pool": position.pool,
        }
        in_project = f"number {position.position_in_queue} of {position.waiting_in_queue}"
        text = f"It is {in_project} that wait in project {self._job.queue}"
        pool = "" if position.pool == DEFAULT_POOL else f" in node pool {position.pool}"
        if position.waiting != position.waiting_in_queue:
            text += f", and number {position.position} of {position.waiting} of all projects{pool}"
        self._report.add_line("place", f"{text}.")

    def _add_what_if(self, what_if: WhatIfResult) -> None:
        by_text = {self._change_text(change): change for change in what_if.changes}
        self._report.facts["wouldRun"] = [
            {"kind": change.kind, "text": text, **time_fact("until", change.until)} for text, change in by_text.items()
        ]
        self._report.facts |= {"tried": what_if.count, "triedAll": what_if.complete}
        for text in by_text:
            self._report.add_line("help", f"{capitalized(text)}.")
        if not by_text:
            rest = "" if what_if.complete else ", and there was no time to try everything"
            self._report.add_line("help", f"Nothing that was tried would let it run now{rest}.")

    def _change_text(self, change: Change) -> str:
        if change.kind == "later" and change.until is not None:
            return f"in {span_text(change.until - self._now)} it can run without any change"
        if change.kind == "quota":
            return change.text_for(queue_text(change.subject))
        job = self._decision.jobs.get(change.subject)
        return change.text_for(self._job_text(job)) if job else change.text

    # ---------------------------------------------------------------- the risk of a running job

    def _add_risk(self, job: Job) -> None:
        self._report.facts["preemptible"] = job.preemptible
        if not job.preemptible:
            self._report.add_line("risk", "It is not stopped for others.")
            return
        if not any(task.request.devices for task in job.tasks):
            return
        over = queue_over_quota(self._decision, job)
        self._report.facts["overQuota"] = over is not None
        if over is None:
            text = f"Its project is within its quota: only more important work of project {job.queue} can stop it."
        else:
            text = (
                f"{capitalized(queue_text(over.queue))} holds {amount_text(over.held, 0)},"
                f" {amount_text(over.held - over.quota, 0)} more than its quota:"
                " this job can be stopped when others ask for what they are due."
            )
        self._report.add_line("risk", text)
        until = protected_until(self._decision, job)
        if until is not None and until > self._now:
            self._report.facts |= time_fact("protectedUntil", until)
            self._report.add_line(
                "risk", f"Its minimum run time protects it for another {span_text(until - self._now)}."
            )
        self._add_restart_limit(job)

    def _add_restart_limit(self, job: Job) -> None:
        """Reports the protection by `restartsPerHour`."""
        until = restart_limit_until(self._decision, job)
        if until is None or until <= self._now:
            return
        if math.isinf(until):
            self._report.add_line("risk", "Its scheduling policy does not allow to stop jobs for others.")
            return
        self._report.facts |= time_fact("leftAloneUntil", until)
        often = "It was stopped as often in the last hour as the scheduling policy allows"
        self._report.add_line("risk", f"{often}: it is left alone for another {span_text(until - self._now)}.")

    # ---------------------------------------------------------------- history

    def _add_history(self) -> None:
        status = self._workload.status
        interruptions = status.interruptions[-_INTERRUPTIONS_REPORTED:]
        if not interruptions:
            return
        self._report.facts["interruptionCount"] = status.interruption_count
        self._report.facts["interruptions"] = [interruption_facts(interruption) for interruption in interruptions]
        last, times = interruptions[-1], status.interruption_count
        often = "once," if times == 1 else f"{times} times, last"
        lost = f"; {span_text(last.lost_seconds)} of its work were lost" if last.lost_seconds >= 1 else ""
        why = last.message or last.reason
        self._report.add_line("history", f"It was stopped {often}{self._ago(last.at)}: {why}{lost}.")

    # ---------------------------------------------------------------- helpers

    def _evictions(self) -> list[Eviction]:
        return [eviction for eviction in self._plan.evictions if eviction.job == self._key]

    def _leaving(self, node: str, shares: Sequence[DeviceShare]) -> Iterator[tuple[Job, float | None]]:
        """The jobs that are leaving these devices, and when each is gone at the latest."""
        indices = {share.index for share in shares}
        evicted = {(eviction.job, eviction.task) for eviction in self._plan.evictions}
        for job in self._decision.snapshot.jobs:
            for task in job.tasks:
                leaves = task.state in _LEAVING or (job.name, task.name) in evicted
                here = task.node == node and (not indices or indices & {share.index for share in task.shares})
                if leaves and here and job.name != self._key:
                    yield job, task.releasing_since

    def _job_text(self, job: Job) -> str:
        """The job as the reader may see it."""
        namespace, _, name = job.name.partition("/")
        return f"{job.queue}/{name}" if self._can_view(namespace) else "a job of another project"

    def _add_since(self, time: float | None) -> None:
        self._report.facts |= time_fact("since", time)

    def _ago(self, time: float | None) -> str:
        return "" if time is None else f" {span_text(self._now - time)} ago"

    def _add_pods(self, placements: Iterable[PodPlacement]) -> None:
        self._report.facts["pods"] = [pod_facts(*placement) for placement in placements]
