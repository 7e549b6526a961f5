"""Which jobs may be evicted for which: the rules of reclaim, preempt and consolidate.

A rule says which jobs are candidates, whether a queue may lose another eviction unit now, and whether the whole result
is allowed. It also refuses, by counting alone, what no search can solve.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from aliquot.planner.jobs import JobState, TaskSlot
from aliquot.planner.model import Amount
from aliquot.planner.preemption.victims import Victims, by_job, unit_amounts
from aliquot.planner.queues import quota
from aliquot.planner.queues.queue_tree import QueueState

if TYPE_CHECKING:
    from aliquot.planner.cycle_state import CycleState

_HOUR = 3600.0
Taken = Mapping[QueueState, Sequence[int]]
NOTHING_TAKEN: Taken = {}


class Rule(ABC):
    """What one step may do to other jobs for one job."""

    step = ""
    # The order in which the parts of an eviction cost count: indexes into `EvictionCosts.of_task`. None: as they are.
    cost_order: tuple[int, ...] | None = None
    moves_victims = False  # whether every victim has to get another place

    def __init__(self, state: CycleState, job: JobState, asked: Amount) -> None:
        self.state = state
        self.job = job
        self.asked = asked

    @abstractmethod
    def is_candidate(self, victim: JobState) -> bool:
        """Whether a job's tasks may be evicted at all."""

    def considers(self, queue: QueueState) -> bool:
        """Whether a queue can have candidates, whatever it holds."""
        return True

    def may_take_from(self, queue: QueueState, taken: Taken = NOTHING_TAKEN) -> bool:
        """Whether a queue may lose another unit now, after what is `taken` from it and others."""
        return True

    def is_fair(self, lost: Sequence[TaskSlot]) -> bool:
        """Whether queues may lose this. `lost`: the evicted tasks that have no other place."""
        return True

    def allows(self, lost: Sequence[TaskSlot]) -> bool:
        """Whether the result of a search is allowed."""
        return not (lost and self.moves_victims) and self.is_fair(lost)

    @property
    def guaranteed(self) -> bool:
        """Whether the job's request is within quota. If not, the disruption bound applies."""
        return False

    @cached_property
    def scope(self) -> object:
        """Rules with the same scope have the same candidates, so costs and failures of one hold for the other."""
        return self.step

    def protected(self, victim: JobState) -> bool:
        """Whether a job may lose only tasks above its minimum: it was evicted too often in the last hour, or has not
        run for its minimum time."""
        until = protected_until(victim.source.stops, self.state.policy.restarts_per_hour)
        return until is not None and self.state.now < until

    @abstractmethod
    def candidate_queues(self) -> list[QueueState]:
        """Leaf queues that have candidates."""

    @abstractmethod
    def precheck(self, victims: Victims) -> str | None:
        """The reason why no search can succeed, found by counting alone; None if one may."""


def protected_until(stops: Sequence[float], most: int | None) -> float | None:
    """The end of the protection of a job that was evicted at these times, where `most` evictions an hour are allowed;
    None if it is not protected. Independent of the clock: the time may have passed."""
    if most == 0:
        return math.inf
    return None if most is None or len(stops) < most else stops[-most] + _HOUR


def within(used: Sequence[int], asked: Amount, bound: tuple[int | None, ...] | Amount) -> bool:
    return all(top is None or have + want <= top for have, want, top in zip(used, asked, bound, strict=True))


def exceeds(used: Sequence[int], bound: tuple[int | None, ...]) -> bool:
    return any(top is not None and have > top for have, top in zip(used, bound, strict=True))


class Reclaim(Rule):
    """Between queues: a queue within its fair share takes from queues that hold more than they may keep.

    Two queues are compared at the highest level of the tree at which their ancestors differ: `ours` is the ancestor of
    the job's queue there, `theirs` that of the victim's."""

    step = "reclaim"

    def __init__(self, state: CycleState, job: JobState, asked: Amount) -> None:
        super().__init__(state, job, asked)
        # Computed before anything is taken: whether each queue of the job would stay within its quota.
        self._in_quota = {queue: within(queue.used, asked, queue.quota) for queue in job.queue.path}
        self._compared: dict[QueueState, tuple[QueueState, QueueState]] = {}

    def within_fair_share(self) -> bool:
        """Whether the job's queue may take from others at all."""
        queue = self.job.queue
        return within(queue.used, self.asked, queue.share) and (
            not self.job.nonpreemptible or within(queue.nonpreemptible, self.asked, queue.quota)
        )

    def is_candidate(self, victim: JobState) -> bool:
        return not victim.nonpreemptible and victim.queue is not self.job.queue

    def protected(self, victim: JobState) -> bool:
        if super().protected(victim):
            return True
        started = victim.source.started
        least = self.compared(victim.queue)[1].reclaim_min if victim.queue is not self.job.queue else 0
        return least > 0 and started is not None and self.state.now - started < least

    def compared(self, leaf: QueueState) -> tuple[QueueState, QueueState]:
        """The highest queues in which the two paths differ: (ours, theirs)."""
        pair = self._compared.get(leaf)
        if pair is None:
            paths = zip(self.job.queue.path[::-1], leaf.path[::-1], strict=False)
            pair = self._compared[leaf] = next((ours, theirs) for ours, theirs in paths if ours is not theirs)
        return pair

    def may_take_from(self, queue: QueueState, taken: Taken = NOTHING_TAKEN) -> bool:
        theirs = self.compared(queue)[1]
        less = taken.get(theirs)
        return self._may_lose(
            theirs, theirs.used if less is None else [a - b for a, b in zip(theirs.used, less, strict=True)]
        )

    def _may_lose(self, theirs: QueueState, used: Sequence[int]) -> bool:
        """Whether a queue that holds this much may lose another unit: it is above its allowance, or above its quota
        while the job's side stays within its own."""
        return exceeds(used, theirs.allowance) or exceeds(used, self._may_keep(theirs))

    def _may_keep(self, theirs: QueueState) -> tuple[int | None, ...]:
        return theirs.quota if self._in_quota[self._sibling(theirs)] else theirs.allowance

    def _sibling(self, theirs: QueueState) -> QueueState:
        return next(queue for queue in self.job.queue.path if queue.parent is theirs.parent)

    def is_fair(self, lost: Sequence[TaskSlot]) -> bool:
        """Whether each queue was still above what it keeps when it lost the next unit. The largest unit goes last and
        may reach below."""
        units: dict[QueueState, list[Amount]] = {}
        for job, tasks in by_job(lost).items():
            units.setdefault(self.compared(job.queue)[1], []).extend(unit_amounts(job, tasks))
        for theirs, amounts in units.items():
            used = [theirs.used[r] + sum(amount[r] for amount in amounts) for r in range(3)]
            for amount in sorted(amounts):
                if not self._may_lose(theirs, used):
                    return False
                used = [have - less for have, less in zip(used, amount, strict=True)]
        return all(self._stable(theirs) for theirs in units)

    def _stable(self, theirs: QueueState) -> bool:
        """Prevents ping-pong: a queue that is now above its share must stay less saturated than one it took from."""
        ours = self._sibling(theirs)
        multiplier = self.state.policy.saturation_multiplier
        for r in range(3):
            if not self.asked[r] or theirs.share[r] <= 0:
                continue
            saturation = ours.used[r] / ours.share[r] if ours.share[r] else float("inf")
            if saturation > 1 and multiplier * saturation >= theirs.used[r] / theirs.share[r]:
                return False
        return True

    @property
    def guaranteed(self) -> bool:
        return all(self._in_quota.values())

    @cached_property
    def scope(self) -> object:
        return (self.step, self.job.queue)

    def precheck(self, victims: Victims) -> str | None:
        if not self.within_fair_share():
            return "over-fair-share"
        return None if self.reclaimable(victims) >= self.asked[0] else "nothing-to-reclaim"

    def reclaimable(self, victims: Victims) -> int:
        """An upper bound in milli-GPU: what is free, and what each other queue holds above what it keeps. The last unit
        that a queue loses may be larger than its excess."""
        total = self.state.pool.free
        candidates: dict[QueueState, tuple[int, int]] = {}
        for leaf in self.candidate_queues():
            theirs = self.compared(leaf)[1]
            amount, largest = candidates.get(theirs, (0, 0))
            candidates[theirs] = (amount + victims.amount.get(leaf, 0), max(largest, victims.largest_job(leaf)))
        for theirs, (amount, largest) in candidates.items():
            keep = self._may_keep(theirs)
            other_excess = exceeds(theirs.used[1:], keep[1:])
            if keep[0] is not None and not other_excess:
                amount = min(amount, theirs.used[0] - keep[0] + largest - 1)
            total += max(amount, 0)
        return total

    def candidate_queues(self) -> list[QueueState]:
        return [leaf for leaf in self.state.tree.leaves if leaf is not self.job.queue and self.may_take_from(leaf)]


class Preempt(Rule):
    """Inside one queue: a job takes from jobs of lower priority."""

    step = "preempt"
    cost_order = (2, 0, 1, 3, 4)  # lowest priority first

    def is_candidate(self, victim: JobState) -> bool:
        return (
            not victim.nonpreemptible
            and victim.queue is self.job.queue
            and victim.source.priority < self.job.source.priority
        )

    def considers(self, queue: QueueState) -> bool:
        return queue is self.job.queue

    def protected(self, victim: JobState) -> bool:
        if super().protected(victim):
            return True
        started, least = victim.source.started, victim.queue.preempt_min
        return least > 0 and started is not None and self.state.now - started < least

    @property
    def guaranteed(self) -> bool:
        return all(
            within(queue.nonpreemptible if self.job.nonpreemptible else queue.used, self.asked, queue.quota)
            for queue in self.job.queue.path
        )

    @cached_property
    def scope(self) -> object:
        return (self.step, self.job.queue, self.job.source.priority)

    def is_fair(self, lost: Sequence[TaskSlot]) -> bool:
        """Refuses that a queue grows beyond its share by preempting inside itself while another queue is below its own
        share. The other queue would reclaim it, again and again. `victims: newest` allows it, as the peer does."""
        if self.state.policy.victims == "newest":
            return True
        freed = [sum(task.origin[2][r] for task in lost if task.origin is not None) for r in range(3)]
        for r in range(3):
            if self.asked[r] <= freed[r] or all(queue.used[r] <= queue.share[r] for queue in self.job.queue.path):
                continue
            if any(leaf.used[r] < leaf.share[r] for leaf in self.state.tree.leaves if leaf is not self.job.queue):
                return False
        return True

    def candidate_queues(self) -> list[QueueState]:
        return [self.job.queue]

    def precheck(self, victims: Victims) -> str | None:
        queue = self.job.queue
        if self.job.nonpreemptible and not all(
            within(above.nonpreemptible, self.asked, above.quota) for above in queue.path
        ):
            return "over-quota"
        lowest = victims.lowest_priority(queue)
        if lowest is None or lowest >= self.job.source.priority:
            return "no-lower-priority"
        return None if self.state.pool.free + victims.amount[queue] >= self.asked[0] else "nothing-to-preempt"


class Consolidate(Rule):
    """Anywhere: running jobs are moved, and each of them gets another place."""

    step = "consolidate"
    cost_order = (1, 0, 2, 3, 4)  # fewest GPUs first: the smaller a job, the more places it fits in
    moves_victims = True

    def is_candidate(self, victim: JobState) -> bool:
        return not victim.nonpreemptible and victim is not self.job

    def candidate_queues(self) -> list[QueueState]:
        return self.state.tree.leaves

    def precheck(self, victims: Victims) -> str | None:
        if not quota.allows(self.job.queue, self.asked, self.job.nonpreemptible):
            return "quota"
        return None if self.state.pool.free >= self.asked[0] else "not-enough-free"
