"""The tasks that could be evicted, by node and by queue.

An *eviction unit* is a set of tasks that is evicted together: one task above its job's minimum, or all that is left of
a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from aliquot.planner.jobs import PLACED, RUNNING, JobState, TaskSlot
from aliquot.planner.model import Amount
from aliquot.planner.placement.node_state import NodeState
from aliquot.planner.placement.pool_state import PoolState
from aliquot.planner.queues.queue_tree import QueueState

if TYPE_CHECKING:
    from aliquot.planner.preemption.rules import Rule

EvictionUnit = tuple[TaskSlot, ...]


class Victims:
    """An index of the running tasks of preemptible jobs."""

    def __init__(self, jobs: Iterable[JobState]) -> None:
        self.by_node: dict[int, dict[QueueState, list[TaskSlot]]] = {}
        self.by_queue: dict[QueueState, dict[int, int]] = {}  # number of tasks by node
        self.amount: dict[QueueState, int] = {}  # milli-GPU
        self._sizes: dict[QueueState, Counter[int]] = {}
        self._priorities: dict[QueueState, Counter[int]] = {}
        for job in jobs:
            self.count(job)

    def count(self, job: JobState, sign: int = 1) -> None:
        """Adds a job; with sign -1 removes it. Does nothing for a job that is not preemptible."""
        if job.nonpreemptible:
            return
        total, runs = 0, False
        queue = job.queue
        for task in job.members:
            if task.state is not RUNNING:
                continue
            runs = True
            if task.origin is not None:
                node_id = task.origin[0].id
                tasks = self.by_node.setdefault(node_id, {}).setdefault(queue, [])
                counts = self.by_queue.setdefault(queue, {})
                if sign > 0:
                    tasks.append(task)
                    counts[node_id] = counts.get(node_id, 0) + 1
                else:
                    tasks.remove(task)
                    counts[node_id] -= 1
                    if not counts[node_id]:
                        del counts[node_id]
                total += task.amount[0]
        if runs:
            self.amount[queue] = self.amount.get(queue, 0) + sign * total
            _add(self._sizes.setdefault(queue, Counter()), total, sign)
            _add(self._priorities.setdefault(queue, Counter()), job.source.priority, sign)

    def largest_job(self, queue: QueueState) -> int:
        """Milli-GPU of the queue's largest job."""
        return max(self._sizes.get(queue, ()), default=0)

    def lowest_priority(self, queue: QueueState) -> int | None:
        return min(self._priorities.get(queue, ()), default=None)

    def units_on(self, node: NodeState, leaf: QueueState, rule: Rule) -> list[EvictionUnit]:
        """The eviction units of a queue with tasks on a node: single tasks above a minimum first, then whole jobs."""
        units: list[EvictionUnit] = []
        seen: set[JobState] = set()
        for task in self.by_node.get(node.id, {}).get(leaf, ()):
            job = task.job
            if task.state is not RUNNING or job in seen or not rule.is_candidate(job):
                continue
            if len(job.members) == 1:
                if not rule.protected(job):
                    units.append((task,))
                continue
            seen.add(job)
            if any(member.state in PLACED for member in job.members):
                continue  # some of its tasks were placed or moved in this cycle: the next cycle considers it again
            units += _units_of(job, node, rule.protected(job))
        return units


def _units_of(job: JobState, node: NodeState, protected: bool) -> list[EvictionUnit]:
    units: list[EvictionUnit] = []
    single: set[TaskSlot] = set()
    for task_set in job.task_sets:
        spare = task_set.present - task_set.min_available
        on_node = [m for m in task_set.members if m.state is RUNNING and m.origin is not None and m.origin[0] is node]
        for task in on_node[::-1][: max(spare, 0)]:
            units.append((task,))
            single.add(task)
    if protected:
        return units
    rest = tuple(task for task in job.members if task.state is RUNNING and task.origin is not None)
    if any(task not in single and task.origin is not None and task.origin[0] is node for task in rest):
        units.append(rest)
    return units


def _add(counts: Counter[int], value: int, sign: int) -> None:
    counts[value] += sign
    if not counts[value]:
        del counts[value]


def evict(pool: PoolState, units: Iterable[EvictionUnit]) -> None:
    """Stops the tasks of these units that still run. The pool's log can undo it."""
    for unit in units:
        for task in unit:
            if task.state is RUNNING:
                pool.evict(task)


def by_job(tasks: Iterable[TaskSlot]) -> dict[JobState, list[TaskSlot]]:
    jobs: dict[JobState, list[TaskSlot]] = {}
    for task in tasks:
        jobs.setdefault(task.job, []).append(task)
    return jobs


def unit_amounts(job: JobState, evicted: Sequence[TaskSlot]) -> list[Amount]:
    """What each eviction unit of a job's evicted tasks held."""
    amounts = [task.origin[2] for task in evicted if task.origin is not None]
    if len(amounts) < 2 or job.present:  # what still runs is its minimum, so each evicted task was above it
        return amounts
    # All that ran is evicted. Tasks of the job that only waited are no part of its loss.
    lost = set(evicted)
    spare = sum(
        max(sum(task in lost for task in task_set.members) - task_set.min_available, 0) for task_set in job.task_sets
    )
    singles, rest = amounts[: min(spare, len(amounts))], amounts[min(spare, len(amounts)) :]
    return [*singles, (sum(a[0] for a in rest), sum(a[1] for a in rest), sum(a[2] for a in rest))] if rest else singles
