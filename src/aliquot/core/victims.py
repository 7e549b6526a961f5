"""Who may be stopped for whom: the three rules, and what stops together.

A *unit* is what stops together: one task above its job's minimum, or all that is left of a job. A rule says whose units
are candidates, whether a queue may give one more now, and whether the whole of what was done is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from aliquot.core import gate
from aliquot.core.jobs import RUNNING, JobState, Member
from aliquot.core.model import Amount
from aliquot.core.rows import NodeState
from aliquot.core.tree import QueueState

if TYPE_CHECKING:
    from aliquot.core.scene import Scene

Unit = tuple[Member, ...]
Taken = Mapping[QueueState, Sequence[int]]
NOBODY: Taken = {}


class Rule:
    """For whom something is looked for, and what it may cost others."""

    step = ""

    def __init__(self, scene: Scene, job: JobState, asked: Amount) -> None:
        self.scene = scene
        self.job = job
        self.asked = asked

    def admits(self, victim: JobState) -> bool:
        """Whether a job's tasks are candidates at all."""
        raise NotImplementedError

    def gives(self, queue: QueueState, taken: Taken = NOBODY) -> bool:
        """Whether a queue may lose one more unit, as things stand, after what is `taken` from it and others."""
        return True

    def fair(self, lost: Sequence[Member]) -> bool:
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
        """Whether it has not run for its minimum time: then it may lose only what is above its minimum."""
        return False

    def leaves(self) -> list[QueueState]:
        """Queues that have candidates."""
        raise NotImplementedError

    def refusal(self, tenants: Tenants) -> str | None:
        """What rules a search out, found by counting alone."""
        raise NotImplementedError


def within(used: Sequence[int], asked: Amount, bound: tuple[int | None, ...] | Amount) -> bool:
    return all(top is None or have + want <= top for have, want, top in zip(used, asked, bound, strict=True))


def exceeds(used: Sequence[int], bound: tuple[int | None, ...]) -> bool:
    return any(top is not None and have > top for have, top in zip(used, bound, strict=True))


class Reclaim(Rule):
    """Between queues: who stays within its share takes from who holds more than it may keep."""

    step = "reclaim"

    def __init__(self, scene: Scene, job: JobState, asked: Amount) -> None:
        super().__init__(scene, job, asked)
        # Judged before anything is taken. At each level: would the job's side stay within its quota?
        self._in_quota = {queue: within(queue.used, asked, queue.quota) for queue in job.queue.path}
        self._pairs: dict[QueueState, tuple[QueueState, QueueState]] = {}

    def due(self) -> bool:
        """Whether its queue may take from others at all."""
        queue = self.job.queue
        return within(queue.used, self.asked, queue.share) and (
            not self.job.fixed or within(queue.fixed, self.asked, queue.quota)
        )

    def admits(self, victim: JobState) -> bool:
        return not victim.fixed and victim.queue is not self.job.queue

    def protected(self, victim: JobState) -> bool:
        started = victim.source.started
        least = self.pair(victim.queue)[1].reclaim_min if victim.queue is not self.job.queue else 0
        return least > 0 and started is not None and self.scene.now - started < least

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

    def fair(self, lost: Sequence[Member]) -> bool:
        """Chunk by chunk, each side was still above what it keeps when the next chunk went. A chunk is a task above
        its job's minimum, or what is left of a job; the largest goes last, and may reach below."""
        chunks: dict[QueueState, list[Amount]] = {}
        for job, members in by_job(lost).items():
            theirs = self.pair(job.queue)[1]
            chunks.setdefault(theirs, []).extend(_chunks(job, members))
        for theirs, amounts in chunks.items():
            used = [theirs.used[r] + sum(amount[r] for amount in amounts) for r in range(3)]
            for amount in sorted(amounts):
                if not self.may_lose(theirs, used):
                    return False
                used = [have - less for have, less in zip(used, amount, strict=True)]
        return all(self._calm(theirs) for theirs in chunks)

    def _calm(self, theirs: QueueState) -> bool:
        """No ping-pong: a side that is now above its share must not stand as high as one it took from."""
        ours = next(a for a in self.job.queue.path if a.parent is theirs.parent)
        m = self.scene.policy.saturation_multiplier
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

    def refusal(self, tenants: Tenants) -> str | None:
        if not self.due():
            return "over-fair-share"
        return None if self.reclaimable(tenants) >= self.asked[0] else "nothing-to-reclaim"

    def reclaimable(self, tenants: Tenants) -> int:
        """The most GPUs there can be: what is free, and what each side holds above what it keeps. The last unit
        that a side loses may be larger than what it is above."""
        total = self.scene.room.free
        sides: dict[QueueState, tuple[int, int]] = {}
        for leaf in self.leaves():
            theirs = self.pair(leaf)[1]
            amount, largest = sides.get(theirs, (0, 0))
            sides[theirs] = (
                amount + tenants.amount.get(leaf, 0),
                max(largest, tenants.largest.get(leaf, 0)),
            )
        for theirs, (amount, largest) in sides.items():
            keep = self.may_keep(theirs)
            others = exceeds(theirs.used[1:], keep[1:])
            if keep[0] is not None and not others:
                amount = min(amount, theirs.used[0] - keep[0] + largest - 1)
            total += max(amount, 0)
        return total

    def leaves(self) -> list[QueueState]:
        return [leaf for leaf in self.scene.tree.leaves if leaf is not self.job.queue and self.gives(leaf)]


class Preempt(Rule):
    """Inside one queue: lower priority makes way for higher."""

    step = "preempt"

    def admits(self, victim: JobState) -> bool:
        return not victim.fixed and victim.queue is self.job.queue and victim.source.priority < self.job.source.priority

    def protected(self, victim: JobState) -> bool:
        started, least = victim.source.started, victim.queue.preempt_min
        return least > 0 and started is not None and self.scene.now - started < least

    @property
    def owed(self) -> bool:
        return all(
            within(queue.fixed if self.job.fixed else queue.used, self.asked, queue.quota)
            for queue in self.job.queue.path
        )

    @cached_property
    def scope(self) -> object:
        return (self.step, self.job.queue, self.job.source.priority)

    def leaves(self) -> list[QueueState]:
        return [self.job.queue]

    def refusal(self, tenants: Tenants) -> str | None:
        queue = self.job.queue
        if self.job.fixed and not all(within(one.fixed, self.asked, one.quota) for one in queue.path):
            return "over-quota"
        if tenants.lowest.get(queue, self.job.source.priority) >= self.job.source.priority:
            return "no-lower-priority"
        return None if self.scene.room.free + tenants.amount[queue] >= self.asked[0] else "nothing-to-preempt"


class Consolidate(Rule):
    """Anywhere: others are moved, and all of them find a new place."""

    step = "consolidate"

    def admits(self, victim: JobState) -> bool:
        return not victim.fixed and victim is not self.job

    def leaves(self) -> list[QueueState]:
        return self.scene.tree.leaves

    def refusal(self, tenants: Tenants) -> str | None:
        if not gate.passes(self.job.queue, self.asked, self.job.fixed):
            return "gate"
        return None if self.scene.room.free >= self.asked[0] else "not-enough-free"


class Tenants:
    """Who could be stopped where: running tasks of jobs that may be stopped, by node and by queue."""

    def __init__(self, scene: Scene) -> None:
        self.by_node: dict[int, dict[QueueState, list[Member]]] = {}
        self.by_queue: dict[QueueState, dict[int, None]] = {}
        self.amount: dict[QueueState, int] = {}  # GPUs in milli
        self.largest: dict[QueueState, int] = {}
        self.lowest: dict[QueueState, int] = {}  # priority
        for job in scene.jobs:
            if job.fixed:
                continue
            total = 0
            for member in job.members:
                if member.state == RUNNING and member.home is not None:
                    node = member.home[0]
                    self.by_node.setdefault(node.id, {}).setdefault(job.queue, []).append(member)
                    self.by_queue.setdefault(job.queue, {})[node.id] = None
                    total += member.amount[0]
            if not total and not any(member.state == RUNNING for member in job.members):
                continue
            queue, priority = job.queue, job.source.priority
            self.amount[queue] = self.amount.get(queue, 0) + total
            self.largest[queue] = max(self.largest.get(queue, 0), total)
            self.lowest[queue] = min(self.lowest.get(queue, priority), priority)

    def units_on(self, node: NodeState, leaf: QueueState, rule: Rule) -> list[Unit]:
        """What could stop on a node: tasks above a minimum one by one, then whole jobs."""
        units: list[Unit] = []
        seen: set[JobState] = set()
        for member in self.by_node.get(node.id, {}).get(leaf, ()):
            job = member.job
            if member.state != RUNNING or job in seen or not rule.admits(job):
                continue
            if len(job.members) == 1:
                if not rule.protected(job):
                    units.append((member,))
                continue
            seen.add(job)
            units += _units_of(job, node, rule.protected(job))
        return units


def _units_of(job: JobState, node: NodeState, protected: bool) -> list[Unit]:
    units: list[Unit] = []
    single: set[Member] = set()
    for one in job.sets:
        spare = one.present - one.least
        here = [m for m in one.members if m.state == RUNNING and m.home is not None and m.home[0] is node]
        for member in here[::-1][: max(spare, 0)]:
            units.append((member,))
            single.add(member)
    if protected:
        return units
    rest = tuple(member for member in job.members if member.state == RUNNING and member.home is not None)
    if any(member not in single and member.home is not None and member.home[0] is node for member in rest):
        units.append(rest)
    return units


def by_job(members: Iterable[Member]) -> dict[JobState, list[Member]]:
    jobs: dict[JobState, list[Member]] = {}
    for member in members:
        jobs.setdefault(member.job, []).append(member)
    return jobs


def _chunks(job: JobState, members: Sequence[Member]) -> list[Amount]:
    amounts = [member.home[2] for member in members if member.home is not None]
    if len(amounts) < 2 or job.present:  # what is left is its minimum: those who went were above it
        return amounts
    spare = sum(max(len(one.members) - one.least, 0) for one in job.sets)
    singles, rest = amounts[: min(spare, len(amounts))], amounts[min(spare, len(amounts)) :]
    return [*singles, (sum(a[0] for a in rest), sum(a[1] for a in rest), sum(a[2] for a in rest))] if rest else singles


def lost_work(member: Member, now: float) -> float:
    """GPU-seconds that stopping it throws away: since it started, or since it last saved."""
    job = member.job.source
    since = max(job.started if job.started is not None else now, job.saved if job.saved is not None else float("-inf"))
    return max(now - since, 0) * max(member.amount[0], 1)


Cost = tuple[float, ...]


class Costs:
    """How much stopping tasks disturbs: fewest tasks, fewest GPUs, lowest priority, least work lost, newest. Inside
    one queue lowest priority comes first of all."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._known: dict[Member, Cost] = {}

    def one(self, member: Member) -> Cost:
        found = self._known.get(member)
        if found is None:
            job = member.job.source
            gpu = member.amount[0]
            found = (1, gpu, job.priority, lost_work(member, self._now), -job.created)
            self._known[member] = found
        return found

    def of(self, members: Sequence[Member], by_priority: bool) -> Cost:
        if len(members) == 1:
            total = self.one(members[0])
        else:
            each = [self.one(member) for member in members]
            total = (
                len(each),
                sum(one[1] for one in each),
                max(one[2] for one in each),
                sum(one[3] for one in each),
                min(one[4] for one in each),
            )
        return (total[2], *total) if by_priority else total
