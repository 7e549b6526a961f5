"""When to look again although nothing has happened: some reasons to wait end by themselves.

A moment too early costs one more look, a missed one leaves somebody waiting. So this is generous: each moment at which
a rule about time stops to hold for anybody counts, whether or not it will change the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aliquot.planner import Plan, Policy, Snapshot, TaskState
from aliquot.planner.preemption.rules import protected_until


def next_wakeup(
    snapshot: Snapshot, decided: Plan, policies: Iterable[Policy], now: float, until: float | None = None
) -> float | None:
    """The next moment at which time alone may change the plan; None when it cannot. `until`: how long past use is as
    the snapshot says."""
    if not decided.refusals:
        return None
    policies = tuple(policies)
    moments = [*_told(decided), *_minimum_ends(snapshot), *_left_alone(snapshot, policies), *_stuck(snapshot, policies)]
    if until is not None:
        moments.append(until)
    return min((moment for moment in moments if moment > now), default=None)


def _told(decided: Plan) -> Iterator[float]:
    for reasons in decided.refusals.values():
        yield from (one.until for one in reasons if one.until is not None)


def _minimum_ends(snapshot: Snapshot) -> Iterator[float]:
    """When what runs has had the run time that somebody's queue guarantees."""
    minimums = {
        seconds
        for queue in snapshot.queues
        for seconds in (queue.reclaim_min_runtime, queue.preempt_min_runtime)
        if seconds
    }
    if minimums:
        for job in snapshot.jobs:
            if job.started is not None and job.preemptible:
                yield from (job.started + seconds for seconds in minimums)


def _left_alone(snapshot: Snapshot, policies: Iterable[Policy]) -> Iterator[float]:
    """When those who were stopped often of late may be stopped again."""
    bounds = {policy.restarts_per_hour for policy in policies if policy.restarts_per_hour}
    if bounds:
        for job in snapshot.jobs:
            moments = (protected_until(job.stops, most) for most in bounds if job.stops)
            yield from (moment for moment in moments if moment is not None)


def _stuck(snapshot: Snapshot, policies: Iterable[Policy]) -> Iterator[float]:
    """When what takes too long to stop is no longer counted on."""
    graces = {policy.terminating_grace for policy in policies if policy.terminating_grace is not None}
    if graces:
        for job in snapshot.jobs:
            for task in job.tasks:
                if task.state is TaskState.RELEASING and task.releasing_since is not None:
                    yield from (task.releasing_since + seconds for seconds in graces)
