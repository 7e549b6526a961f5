"""What the ways to choose victims have in common.

A `VictimSearch` places the tasks of one job and evicts other tasks for them. It works on the pool's log, so that every
attempt can be undone. A `VictimStrategy` stands for one value of `Policy.victims` and makes the searches of a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from aliquot.planner.jobs import JobState, TaskSlot
from aliquot.planner.preemption.rules import Rule
from aliquot.planner.preemption.victims import by_job
from aliquot.planner.queues import quota

if TYPE_CHECKING:
    from aliquot.planner.cycle_state import CycleState


class VictimSearch(ABC):
    """The search for tasks to evict, for one job under one rule."""

    def __init__(self, state: CycleState, rule: Rule) -> None:
        self._pool = state.pool
        self._placer = state.placer
        self._rule = rule
        self._job = rule.job

    @abstractmethod
    def solve(self, tasks: Sequence[TaskSlot]) -> list[TaskSlot] | None:
        """Places these tasks of the job. Returns the tasks that are evicted or moved for them, or None where no choice
        of victims is allowed and sufficient. What was done stays in the pool's log."""

    def _place(self, tasks: Sequence[TaskSlot]) -> bool:
        """Places tasks of the job on what is free or being released, within quota: all of them or none."""
        savepoint = self._pool.savepoint()
        if self._placer.place(self._job, tasks, nominate_only=True) and self._fit_quota():
            return True
        self._pool.rollback(savepoint)
        return False

    def _fit_quota(self) -> bool:
        """Whether the job's queues may hold what was placed."""
        return within_quota(self._job)

    def _reschedule(self, victim: JobState, tasks: Sequence[TaskSlot]) -> bool:
        """Places evicted tasks of a job again, where they ran or elsewhere. False: they stay evicted."""
        savepoint = self._pool.savepoint()
        if self._placer.replace(victim, tasks) and within_quota(victim):
            return True
        self._pool.rollback(savepoint)
        return False

    def _protection_holds(self, evicted: Iterable[TaskSlot]) -> bool:
        """Whether each protected job keeps its minimum. Each task by itself may be above it, but not all together."""
        return not any(self._rule.protected(victim) and not victim.keeps_minimum() for victim in by_job(evicted))


class VictimStrategy(ABC):
    """How one step chooses victims."""

    # Whether a job may use the capacity that is reserved for it because it waited too long.
    uses_reservation = True
    # Whether an elastic job that got its minimum may ask for more tasks in the same step.
    regrows = True
    # Whether a step reports a quota that the allocate step has already reported.
    repeats_quota = False

    def __init__(self, state: CycleState) -> None:
        self._state = state

    def options(self, job: JobState) -> Iterable[Sequence[TaskSlot]]:
        """The sets of tasks to search for, in order, until one is placed."""
        return job.start_options()

    def precheck(self, rule: Rule) -> str | None:
        """Why no search is worthwhile; None if one is."""
        job = rule.job.source
        if job.preemption_delay and self._state.now < job.created + job.preemption_delay:
            return "preemption-delay"
        return rule.precheck(self._state.victims)

    @abstractmethod
    def search(self, rule: Rule) -> VictimSearch: ...


def within_quota(job: JobState) -> bool:
    """Whether no queue of the job holds more than its quota and limit allow."""
    return quota.exceeded_queue(job.queue, job.nonpreemptible) is None
