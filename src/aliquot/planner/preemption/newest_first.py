"""`victims: newest`: evicts first what would be scheduled last.

For clusters that migrate from the peer scheduler and should behave as before. A job is placed task by task. Eviction
units are considered one at a time, in the exact reverse of the scheduling order. After each, the search tries to evict
all units considered so far on a node of the latest. Victims return to where they ran or move elsewhere if they can, in
queue order together with the job itself. What was found for the first tasks stays, and the search for the next task
continues from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from aliquot.planner.jobs import NOMINATED, PLACED, RELEASING, RUNNING, JobState, TaskSlot
from aliquot.planner.model import NOTHING, Amount
from aliquot.planner.placement.node_state import NodeState
from aliquot.planner.placement.pool_state import Savepoint
from aliquot.planner.placement.task_class import TaskClass
from aliquot.planner.preemption.rules import Rule
from aliquot.planner.preemption.search import VictimSearch, VictimStrategy
from aliquot.planner.preemption.victims import EvictionUnit, by_job, evict
from aliquot.planner.queues.queue_order import Batch, QueueOrder
from aliquot.planner.queues.queue_tree import QueueState

if TYPE_CHECKING:
    from aliquot.planner.cycle_state import CycleState

_MOVES_CONSIDERED = 16  # eviction units that one consolidation considers


class NewestFirst(VictimStrategy):
    # Like the peer, which knows no reservations and starts one set of tasks of a job in a step.
    uses_reservation = False
    regrows = False
    repeats_quota = True

    def __init__(self, state: CycleState) -> None:
        super().__init__(state)
        self._order = EvictionOrder(state.jobs)

    def options(self, job: JobState) -> Iterable[Sequence[TaskSlot]]:
        return (job.next_tasks(),)

    def precheck(self, rule: Rule) -> str | None:
        if rule.moves_victims and rule.job.nonpreemptible:
            return "not-preemptible"
        return super().precheck(rule)

    def search(self, rule: Rule) -> VictimSearch:
        return NewestFirstSearch(self._state, rule, self._order)


class EvictionOrder:
    """The eviction units of each queue, sorted so that the first to be evicted is the last of its list."""

    def __init__(self, jobs: Iterable[JobState]) -> None:
        self._units: dict[QueueState, list[EvictionUnit]] = {}
        keyed: dict[QueueState, list[tuple[tuple[float | str, ...], EvictionUnit]]] = {}
        for job in jobs:
            if job.nonpreemptible:
                continue
            units = job.eviction_units()
            spare = len(units) - 1
            priority, _, created, name = job.order()
            for i, unit in enumerate(units):
                key = (priority, 2 if i < spare else 1, created, name, -i)
                keyed.setdefault(job.queue, []).append((key, tuple(unit)))
        for queue, entries in keyed.items():
            self._units[queue] = [unit for _, unit in sorted(entries, key=lambda entry: entry[0])]

    def candidates(self, rule: Rule, disrupted: Mapping[TaskSlot, None]) -> dict[QueueState, Iterator[EvictionUnit]]:
        """The units that a rule admits, in the order of eviction. `disrupted`: tasks that were evicted or moved for the
        job already."""
        candidates: dict[QueueState, Iterator[EvictionUnit]] = {}
        for queue, units in self._units.items():
            while units and units[-1][0].state is not RUNNING:
                units.pop()
            if units and rule.considers(queue):
                candidates[queue] = filter(partial(_is_candidate, rule, disrupted), reversed(units))
        return candidates


def _is_candidate(rule: Rule, disrupted: Mapping[TaskSlot, None], unit: EvictionUnit) -> bool:
    job = unit[0].job
    if not rule.is_candidate(job) or any(task.state is not RUNNING for task in unit):
        return False
    if len(job.members) > 1 and any(task.state in PLACED and task not in disrupted for task in job.members):
        return False  # some of its tasks were placed or moved in this cycle: the next cycle considers it again
    # A protected job keeps its minimum.
    return not rule.protected(job) or job.present - len(unit) >= sum(
        task_set.min_available for task_set in job.task_sets
    )


class NewestFirstSearch(VictimSearch):
    def __init__(self, state: CycleState, rule: Rule, order: EvictionOrder) -> None:
        super().__init__(state, rule)
        self._tree = state.tree
        self._order = order
        self._units: Iterator[EvictionUnit] = iter(())
        self._disrupted: dict[TaskSlot, None] = {}  # evicted or moved for the tasks so far
        self._considered: dict[NodeState, list[EvictionUnit]] = {}
        # Whether all tasks so far have to be placed together to know whether they fit.
        self._together = bool(rule.job.source.subgroups) or rule.job.source.topology_constraint is not None

    def solve(self, tasks: Sequence[TaskSlot]) -> list[TaskSlot] | None:
        savepoint = self._pool.savepoint()
        previous: TaskClass | None = None
        for count, task in enumerate(tasks, 1):
            task_class = self._placer.task_class(task)
            if task_class is not previous:
                self._units, self._considered = self._in_eviction_order(), {}
                previous = task_class
            if not self._place_next(tasks[:count] if self._together else [task], task_class):
                self._pool.rollback(savepoint)
                return None
        touched = self._pool.changed_since(savepoint)
        evicted = [task for task in touched if task.origin is not None and task.state is not RUNNING]
        return self._place_all(savepoint, tasks, evicted)

    def _place_all(
        self, savepoint: Savepoint, tasks: Sequence[TaskSlot], evicted: list[TaskSlot]
    ) -> list[TaskSlot] | None:
        """Starts over with the victims known: all tasks at once may be placed better than one by one."""
        pool = self._pool
        pool.rollback(savepoint)
        for task in evicted:
            pool.evict(task)
        evicted += self._evict_unsatisfied(evicted)
        self._disrupted = {}
        if self._place_in_queue_order(tasks, by_job(evicted)) and self._allowed(evicted):
            return [task for task in evicted if task.state is not RUNNING]
        pool.rollback(savepoint)
        return None

    def _place_next(self, tasks: Sequence[TaskSlot], task_class: TaskClass) -> bool:
        """Places one more task: alone, or together with all tasks so far."""
        if self._attempt(tasks, ()):  # what was evicted for earlier tasks may be enough
            return True
        for unit in self._units:
            if any(task.state is not RUNNING for task in unit):
                continue
            nodes = list(dict.fromkeys(task.origin[0] for task in unit if task.origin is not None))
            for node in nodes:
                self._considered.setdefault(node, []).append(unit)
            for node in sorted(nodes, key=lambda node: node.id):
                units = [unit for unit in self._considered[node] if all(task.state is RUNNING for task in unit)]
                if (self._together or self._may_fit(task_class, node, units)) and self._attempt(tasks, units):
                    return True
        return False

    def _may_fit(self, task_class: TaskClass, node: NodeState, units: Sequence[EvictionUnit]) -> bool:
        """A cheap check whether the task could fit on the node without these units. Units that also run on other nodes
        may make room there, which only an attempt shows."""
        if any(task.node is not node for unit in units for task in unit):
            return True
        free = node.after_release.copy()
        for unit in units:
            for task in unit:
                request = task.task.request
                node.release(free, request.cpu, request.memory, task.allocs)
        return task_class.fits(node, free) or self._pool.find(task_class, nominate_only=True) is not None

    def _attempt(self, tasks: Sequence[TaskSlot], units: Sequence[EvictionUnit]) -> bool:
        """Evicts units, then places their tasks and the job's tasks in queue order. Undone unless it is allowed."""
        pool = self._pool
        savepoint = pool.savepoint()
        for task in tasks:
            if task.state is NOMINATED:
                pool.withdraw(task)
        evicted = [task for unit in units for task in unit]
        fair = True
        for unit in units:
            fair = fair and self._rule.may_take_from(unit[0].job.queue)
            evict(pool, [unit])
        evicted += self._evict_unsatisfied(evicted)
        # If each queue could lose its unit at that point, the whole is fair. If not, it still may be, because some
        # victims return or another order is fair.
        if self._place_in_queue_order(tasks, by_job(evicted)) and self._allowed(evicted, fair):
            self._disrupted |= dict.fromkeys(evicted)
            return True
        pool.rollback(savepoint)
        return False

    def _evict_unsatisfied(self, evicted: Sequence[TaskSlot]) -> list[TaskSlot]:
        """Evicts the remaining tasks of jobs that are now below their minimum, wherever they run."""
        remaining = [
            task for job in by_job(evicted) if not job.satisfied() for task in job.members if task.state is RUNNING
        ]
        for task in remaining:
            self._pool.evict(task)
        return remaining

    def _place_in_queue_order(self, tasks: Sequence[TaskSlot], victims: dict[JobState, list[TaskSlot]]) -> bool:
        """Places the job's tasks and its victims' tasks, each job when it is its queue's turn. Whether the job fits."""
        queue_order = QueueOrder(
            [Batch([job]) for job in (self._job, *victims)],
            lambda job: self._placer.requested(tasks if job is self._job else victims[job]),
        )
        placed = False
        while batch := queue_order.pop():
            job = batch.head
            if job is self._job:
                if not self._place(tasks):
                    return False
                placed = True
                queue_order.touch(job.queue)
            elif self._reschedule(job, victims[job]):
                queue_order.touch(job.queue)
        return placed

    def _allowed(self, evicted: Sequence[TaskSlot], fair: bool = False) -> bool:
        if not self._protection_holds(task for task in evicted if task.state is not RUNNING):
            return False
        if fair and not self._rule.moves_victims:
            return True
        every = {**self._disrupted, **dict.fromkeys(evicted)}
        return self._rule.allows([task for task in every if task.state is RELEASING])

    # ---------------------------------------------------------------- the order of eviction

    def _in_eviction_order(self) -> Iterator[EvictionUnit]:
        """Units in the reverse of the scheduling order: of the queue that would come last, the job that would."""
        candidates = self._order.candidates(self._rule, self._disrupted)
        heads = {queue: unit for queue, units in candidates.items() if (unit := next(units, None)) is not None}
        removed = dict.fromkeys(self._tree.queues.values(), NOTHING)
        count = 0
        while heads:
            queue = self._last_queue(heads, removed)
            unit = heads.pop(queue)
            if (following := next(candidates[queue], None)) is not None:
                heads[queue] = following
            gpu, cpu, memory = _amount(unit)
            for above in queue.path:
                before = removed[above]
                removed[above] = (before[0] + gpu, before[1] + cpu, before[2] + memory)
            count += 1
            if self._rule.moves_victims and count > _MOVES_CONSIDERED:
                return
            yield unit

    def _last_queue(self, heads: dict[QueueState, EvictionUnit], removed: dict[QueueState, Amount]) -> QueueState:
        """The leaf that would come last in queue order. `heads`: the next unit of each; `removed`: what is evicted."""
        if len(heads) == 1:
            return next(iter(heads))
        queues = [queue for queue in self._tree.roots if any(queue in leaf.path for leaf in heads)]
        while True:
            last = max(queues, key=lambda queue: self._order_key(queue, heads, removed))
            if last in heads:
                return last
            queues = [child for child in last.children if any(child in leaf.path for leaf in heads)]

    def _order_key(
        self, queue: QueueState, heads: dict[QueueState, EvictionUnit], removed: dict[QueueState, Amount]
    ) -> tuple[Any, ...]:
        """The queue's key in queue order, without what is evicted and without its next unit."""
        leaf = queue
        while leaf not in heads:
            below = [child for child in leaf.children if any(child in other.path for other in heads)]
            leaf = max(below, key=lambda child: self._order_key(child, heads, removed))
        gpu, cpu, memory = _amount(heads[leaf])
        less = removed[queue]
        key = queue.order_key(NOTHING)
        share = queue.dominant_share(
            queue.used[0] - less[0] - gpu, queue.used[1] - less[1] - cpu, queue.used[2] - less[2] - memory
        )
        return (*key[:4], share, *key[5:])


def _amount(unit: EvictionUnit) -> Amount:
    return (sum(task.amount[0] for task in unit), sum(task.amount[1] for task in unit), sum(t.amount[2] for t in unit))
