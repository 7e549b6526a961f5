"""Who may be stopped for whom: the three rules.

A rule says whose units are candidates, whether a queue may give one more now, and whether the whole of what was done is
allowed. What cannot work by counting alone is refused here, before anything is tried.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from aliquot.planner.jobs import JobState, TaskSlot
from aliquot.planner.model import Amount
from aliquot.planner.preemption.victims import Victims, by_job, chunks
from aliquot.planner.queues import quota
from aliquot.planner.queues.queue_tree import QueueState

if TYPE_CHECKING:
    from aliquot.planner.cycle_state import CycleState

_HOUR = 3600.0
Taken = Mapping[QueueState, Sequence[int]]
NOBODY: Taken = {}


class Rule(ABC):
    """For whom something is looked for, and what it may cost others."""

    step = ""
    # The order in which the parts of an eviction cost count, as indexes into `EvictionCosts.one`; None: as they are.
    order: tuple[int, ...] | None = None

    def __init__(self, state: CycleState, job: JobState, asked: Amount) -> None:
        self.state = state
        self.job = job
        self.asked = asked

    @abstractmethod
    def admits(self, victim: JobState) -> bool:
        """Whether a job's tasks are candidates at all."""

    def gives(self, queue: QueueState, taken: Taken = NOBODY) -> bool:
        """Whether a queue may lose one more unit, as things stand, after what is `taken` from it and others."""
        return True

    def fair(self, lost: Sequence[TaskSlot]) -> bool:
        """Whether the result is allowed; `lost`: those who were stopped for good."""
        return True

    @property
    def owed(self) -> bool:
        """Whether the job is guaranteed what it asks for; if not, the disruption bound holds."""
        return False

    @cached_property
    def scope(self) -> object:
        """Rules with the same scope admit the same jobs, so what was worked out for one serves the next."""
        return self.step

    def protected(self, victim: JobState) -> bool:
        """Whether it may lose only what is above its minimum: it was stopped too often of late, or has not run for its
        minimum time."""
        until = protected_until(victim.source.stops, self.state.policy.restarts_per_hour)
        return until is not None and self.state.now < until

    @abstractmethod
    def leaves(self) -> list[QueueState]:
        """Queues that have candidates."""

    @abstractmethod
    def refusal(self, victims: Victims) -> str | None:
        """What rules a search out, found by counting alone."""


def protected_until(stops: Sequence[float], most: int | None) -> float | None:
    """Until when a job that was stopped at these times is left alone, where `most` stops an hour are allowed; None
    when it is not. It does not depend on the clock: a moment that has passed protects nobody."""
    if most == 0:
        return math.inf
    return None if most is None or len(stops) < most else stops[-most] + _HOUR


def within(used: Sequence[int], asked: Amount, bound: tuple[int | None, ...] | Amount) -> bool:
    return all(top is None or have + want <= top for have, want, top in zip(used, asked, bound, strict=True))


def exceeds(used: Sequence[int], bound: tuple[int | None, ...]) -> bool:
    return any(top is not None and have > top for have, top in zip(used, bound, strict=True))


class Reclaim(Rule):
    """Between queues: who stays within its share takes from who holds more than it may keep."""

    step = "reclaim"

    def __init__(self, state: CycleState, job: JobState, asked: Amount) -> None:
        super().__init__(state, job, asked)
        # Judged before anything is taken. At each level: would the job's side stay within its quota?
        self._in_quota = {queue: within(queue.used, asked, queue.quota) for queue in job.queue.path}
        self._pairs: dict[QueueState, tuple[QueueState, QueueState]] = {}

    def due(self) -> bool:
        """Whether its queue may take from others at all."""
        queue = self.job.queue
        return within(queue.used, self.asked, queue.share) and (
            not self.job.nonpreemptible or within(queue.nonpreemptible, self.asked, queue.quota)
        )

    def admits(self, victim: JobState) -> bool:
        return not victim.nonpreemptible and victim.queue is not self.job.queue

    def protected(self, victim: JobState) -> bool:
        if super().protected(victim):
            return True
        started = victim.source.started
        least = self.pair(victim.queue)[1].reclaim_min if victim.queue is not self.job.queue else 0
        return least > 0 and started is not None and self.state.now - started < least

    def pair(self, leaf: QueueState) -> tuple[QueueState, QueueState]:
        """The highest queues in which the two differ: (of the job, of the other)."""
        found = self._pairs.get(leaf)
        if found is None:
            ours, theirs = self.job.queue.path[::-1], leaf.path[::-1]
            found = next((a, b) for a, b in zip(ours, theirs, strict=False) if a is not b)
            self._pairs[leaf] = found
        return found

    def gives(self, queue: QueueState, taken: Taken = NOBODY) -> bool:
        theirs = self.pair(queue)[1]
        gone = taken.get(theirs)
        return self.may_lose(
            theirs, theirs.used if gone is None else [a - b for a, b in zip(theirs.used, gone, strict=True)]
        )

    def may_lose(self, theirs: QueueState, used: Sequence[int]) -> bool:
        """Whether the other side, holding this much, may lose another unit: it is above what it may keep, or above
        its quota while the job's side stays within its own."""
        return exceeds(used, theirs.allowance) or exceeds(used, self.may_keep(theirs))

    def may_keep(self, theirs: QueueState) -> tuple[int | None, ...]:
        """What the other side keeps for sure, if one of the job's side is compared with it."""
        ours = next(a for a in self.job.queue.path if a.parent is theirs.parent)
        return theirs.quota if self._in_quota[ours] else theirs.allowance

    def fair(self, lost: Sequence[TaskSlot]) -> bool:
        """Chunk by chunk, each side was still above what it keeps when the next chunk went. A chunk is a task above
        its job's minimum, or what is left of a job; the largest goes last, and may reach below."""
        sides: dict[QueueState, list[Amount]] = {}
        for job, members in by_job(lost).items():
            theirs = self.pair(job.queue)[1]
            sides.setdefault(theirs, []).extend(chunks(job, members))
        for theirs, amounts in sides.items():
            used = [theirs.used[r] + sum(amount[r] for amount in amounts) for r in range(3)]
            for amount in sorted(amounts):
                if not self.may_lose(theirs, used):
                    return False
                used = [have - less for have, less in zip(used, amount, strict=True)]
        return all(self._calm(theirs) for theirs in sides)

    def _calm(self, theirs: QueueState) -> bool:
        """No ping-pong: a side that is now above its share must not stand as high as one it took from."""
        ours = next(a for a in self.job.queue.path if a.parent is theirs.parent)
        m = self.state.policy.saturation_multiplier
        for r in range(3):
            if not self.asked[r] or theirs.share[r] <= 0:
                continue
            high = ours.used[r] / ours.share[r] if ours.share[r] else float("inf")
            if high > 1 and m * high >= theirs.used[r] / theirs.share[r]:
                return False
        return True

    @property
    def owed(self) -> bool:
        return all(self._in_quota.values())

    @cached_property
    def scope(self) -> object:
        return (self.step, self.job.queue)

    def refusal(self, victims: Victims) -> str | None:
        if not self.due():
            return "over-fair-share"
        return None if self.reclaimable(victims) >= self.asked[0] else "nothing-to-reclaim"

    def reclaimable(self, victims: Victims) -> int:
        """The most GPUs there can be: what is free, and what each side holds above what it keeps. The last unit
        that a side loses may be larger than what it is above."""
        total = self.state.pool.free
        sides: dict[QueueState, tuple[int, int]] = {}
        for leaf in self.leaves():
            theirs = self.pair(leaf)[1]
            amount, largest = sides.get(theirs, (0, 0))
            sides[theirs] = (
                amount + victims.amount.get(leaf, 0),
                max(largest, victims.largest(leaf)),
            )
        for theirs, (amount, largest) in sides.items():
            keep = self.may_keep(theirs)
            others = exceeds(theirs.used[1:], keep[1:])
            if keep[0] is not None and not others:
                amount = min(amount, theirs.used[0] - keep[0] + largest - 1)
            total += max(amount, 0)
        return total

    def leaves(self) -> list[QueueState]:
        return [leaf for leaf in self.state.tree.leaves if leaf is not self.job.queue and self.gives(leaf)]


class Preempt(Rule):
    """Inside one queue: lower priority makes way for higher."""

    step = "preempt"
    order = (2, 0, 1, 3, 4)  # lowest priority first

    def admits(self, victim: JobState) -> bool:
        return (
            not victim.nonpreemptible
            and victim.queue is self.job.queue
            and victim.source.priority < self.job.source.priority
        )

    def protected(self, victim: JobState) -> bool:
        if super().protected(victim):
            return True
        started, least = victim.source.started, victim.queue.preempt_min
        return least > 0 and started is not None and self.state.now - started < least

    @property
    def owed(self) -> bool:
        return all(
            within(queue.nonpreemptible if self.job.nonpreemptible else queue.used, self.asked, queue.quota)
            for queue in self.job.queue.path
        )

    @cached_property
    def scope(self) -> object:
        return (self.step, self.job.queue, self.job.source.priority)

    def fair(self, lost: Sequence[TaskSlot]) -> bool:
        """A queue that makes room inside itself may not grow by it beyond its share while another is short of its own:
        that one would take it back, and so for ever. The peer allows it."""
        if self.state.policy.victims == "newest":
            return True
        freed = [sum(member.origin[2][r] for member in lost if member.origin is not None) for r in range(3)]
        for r in range(3):
            if self.asked[r] <= freed[r] or all(queue.used[r] <= queue.share[r] for queue in self.job.queue.path):
                continue
            if any(leaf.used[r] < leaf.share[r] for leaf in self.state.tree.leaves if leaf is not self.job.queue):
                return False
        return True

    def leaves(self) -> list[QueueState]:
        return [self.job.queue]

    def refusal(self, victims: Victims) -> str | None:
        queue = self.job.queue
        if self.job.nonpreemptible and not all(within(one.nonpreemptible, self.asked, one.quota) for one in queue.path):
            return "over-quota"
        lowest = victims.lowest(queue)
        if lowest is None or lowest >= self.job.source.priority:
            return "no-lower-priority"
        return None if self.state.pool.free + victims.amount[queue] >= self.asked[0] else "nothing-to-preempt"


class Consolidate(Rule):
    """Anywhere: others are moved, and all of them find a new place."""

    step = "consolidate"
    order = (1, 0, 2, 3, 4)  # the fewer GPUs, the easier they find another place

    def admits(self, victim: JobState) -> bool:
        return not victim.nonpreemptible and victim is not self.job

    def leaves(self) -> list[QueueState]:
        return self.state.tree.leaves

    def refusal(self, victims: Victims) -> str | None:
        if not quota.allows(self.job.queue, self.asked, self.job.nonpreemptible):
            return "quota"
        return None if self.state.pool.free >= self.asked[0] else "not-enough-free"
