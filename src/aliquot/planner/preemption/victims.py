"""Who could be stopped where, what stops together, and what it costs.

A *unit* is what stops together: one task above its job's minimum, or all that is left of a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from aliquot.planner.jobs import RUNNING, JobState, TaskSlot
from aliquot.planner.model import Amount
from aliquot.planner.placement.node_state import NodeState
from aliquot.planner.queues.queue_tree import QueueState

if TYPE_CHECKING:
    from aliquot.planner.preemption.rules import Rule

EvictionUnit = tuple[TaskSlot, ...]


class Victims:
    """Who could be stopped where: running tasks of jobs that may be stopped, by node and by queue."""

    def __init__(self, jobs: Iterable[JobState]) -> None:
        self.by_node: dict[int, dict[QueueState, list[TaskSlot]]] = {}
        self.by_queue: dict[QueueState, dict[int, int]] = {}  # how many on each node
        self.amount: dict[QueueState, int] = {}  # GPUs in milli
        self._sizes: dict[QueueState, Counter[int]] = {}
        self._priorities: dict[QueueState, Counter[int]] = {}
        for job in jobs:
            self.count(job)

    def count(self, job: JobState, sign: int = 1) -> None:
        """Count a job that may be stopped; with sign -1 take it out."""
        if job.nonpreemptible:
            return
        total, runs = 0, False
        queue = job.queue
        for member in job.members:
            if member.state != RUNNING:
                continue
            runs = True
            if member.origin is not None:
                number = member.origin[0].id
                here = self.by_node.setdefault(number, {}).setdefault(queue, [])
                counts = self.by_queue.setdefault(queue, {})
                if sign > 0:
                    here.append(member)
                    counts[number] = counts.get(number, 0) + 1
                else:
                    here.remove(member)
                    counts[number] -= 1
                    if not counts[number]:
                        del counts[number]
                total += member.amount[0]
        if runs:
            self.amount[queue] = self.amount.get(queue, 0) + sign * total
            _tally(self._sizes.setdefault(queue, Counter()), total, sign)
            _tally(self._priorities.setdefault(queue, Counter()), job.source.priority, sign)

    def largest(self, queue: QueueState) -> int:
        """GPUs of the largest job."""
        return max(self._sizes.get(queue, ()), default=0)

    def lowest(self, queue: QueueState) -> int | None:
        """The lowest priority."""
        return min(self._priorities.get(queue, ()), default=None)

    def units_on(self, node: NodeState, leaf: QueueState, rule: Rule) -> list[EvictionUnit]:
        """What could stop on a node: tasks above a minimum one by one, then whole jobs."""
        units: list[EvictionUnit] = []
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
            if any(one.state < RUNNING for one in job.members):
                continue  # it got something, or was moved, in this very cycle: it is judged again in the next
            units += _units_of(job, node, rule.protected(job))
        return units


def _units_of(job: JobState, node: NodeState, protected: bool) -> list[EvictionUnit]:
    units: list[EvictionUnit] = []
    single: set[TaskSlot] = set()
    for one in job.task_sets:
        spare = one.present - one.min_available
        here = [m for m in one.members if m.state == RUNNING and m.origin is not None and m.origin[0] is node]
        for member in here[::-1][: max(spare, 0)]:
            units.append((member,))
            single.add(member)
    if protected:
        return units
    rest = tuple(member for member in job.members if member.state == RUNNING and member.origin is not None)
    if any(member not in single and member.origin is not None and member.origin[0] is node for member in rest):
        units.append(rest)
    return units


def _tally(counts: Counter[int], value: int, sign: int) -> None:
    counts[value] += sign
    if not counts[value]:
        del counts[value]


def by_job(members: Iterable[TaskSlot]) -> dict[JobState, list[TaskSlot]]:
    jobs: dict[JobState, list[TaskSlot]] = {}
    for member in members:
        jobs.setdefault(member.job, []).append(member)
    return jobs


def chunks(job: JobState, members: Sequence[TaskSlot]) -> list[Amount]:
    amounts = [member.origin[2] for member in members if member.origin is not None]
    if len(amounts) < 2 or job.present:  # what is left is its minimum: those who went were above it
        return amounts
    gone = set(members)  # all that ran: tasks of it that waited anyway are no part of what it loses
    spare = sum(max(sum(member in gone for member in one.members) - one.min_available, 0) for one in job.task_sets)
    singles, rest = amounts[: min(spare, len(amounts))], amounts[min(spare, len(amounts)) :]
    return [*singles, (sum(a[0] for a in rest), sum(a[1] for a in rest), sum(a[2] for a in rest))] if rest else singles
