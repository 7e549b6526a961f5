"""When the scheduler must run another cycle although no event arrives: some reasons to wait end with time.

A wake-up that is too early costs one more cycle; a missing one leaves a job waiting. So every time at which a
time-based rule ends for any job counts, whether or not it will change the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aliquot.planner import Plan, Policy, Snapshot, TaskState
from aliquot.planner.preemption.rules import protected_until


def next_wakeup(
    snapshot: Snapshot, plan: Plan, policies: Iterable[Policy], now: float, valid_until: float | None = None
) -> float | None:
    """The next time at which the plan may change without an event; None when it cannot. `valid_until`: when the
    snapshot itself changes without an event."""
    if not plan.refusals:
        return None
    policies = tuple(policies)
    times = [
        *_refusals_end(plan),
        *_min_runtimes_end(snapshot),
        *_restart_limits_end(snapshot, policies),
        *_terminating_graces_end(snapshot, policies),
    ]
    if valid_until is not None:
        times.append(valid_until)
    return min((time for time in times if time > now), default=None)


def _refusals_end(plan: Plan) -> Iterator[float]:
    for refusals in plan.refusals.values():
        yield from (refusal.until for refusal in refusals if refusal.until is not None)


def _min_runtimes_end(snapshot: Snapshot) -> Iterator[float]:
    """When running jobs have had the minimum run time that a queue guarantees."""
    min_runtimes = {
        seconds
        for queue in snapshot.queues
        for seconds in (queue.reclaim_min_runtime, queue.preempt_min_runtime)
        if seconds
    }
    if min_runtimes:
        for job in snapshot.jobs:
            if job.started is not None and job.preemptible:
                yield from (job.started + seconds for seconds in min_runtimes)


def _restart_limits_end(snapshot: Snapshot, policies: Iterable[Policy]) -> Iterator[float]:
    """When jobs that reached the limit of restarts per hour may be evicted again."""
    limits = {policy.restarts_per_hour for policy in policies if policy.restarts_per_hour}
    if limits:
        for job in snapshot.jobs:
            times = (protected_until(job.stops, limit) for limit in limits if job.stops)
            yield from (time for time in times if time is not None)


def _terminating_graces_end(snapshot: Snapshot, policies: Iterable[Policy]) -> Iterator[float]:
    """When the planner stops to count on tasks that take too long to stop."""
    graces = {policy.terminating_grace for policy in policies if policy.terminating_grace is not None}
    if graces:
        for job in snapshot.jobs:
            for task in job.tasks:
                if task.state is TaskState.RELEASING and task.releasing_since is not None:
                    yield from (task.releasing_since + seconds for seconds in graces)
