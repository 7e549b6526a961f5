"""Candidates: which tasks to evict from a node so that a task fits there, and what that costs.

Costs are kept in one heap per task class and choice of queues, and computed again only for nodes that changed. So a
thousand jobs that take one GPU each, or one job that takes a thousand, cost about the same per GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from aliquot.planner.jobs import TaskSlot
from aliquot.planner.model import GPU
from aliquot.planner.placement.node_state import FreeResources, NodeState
from aliquot.planner.placement.task_class import WHOLE, TaskClass
from aliquot.planner.preemption.eviction_cost import Cost
from aliquot.planner.preemption.rules import Rule
from aliquot.planner.preemption.victims import EvictionUnit, evict
from aliquot.planner.queues.queue_tree import QueueState

if TYPE_CHECKING:
    from aliquot.planner.cycle_state import CycleState

Candidate = tuple[Cost, list[EvictionUnit]]
_NO_TASKS: frozenset[TaskSlot] = frozenset()


class CandidateFinder:
    """Finds the cheapest units to evict from a node under one rule."""

    def __init__(self, state: CycleState, rule: Rule) -> None:
        self._pool = state.pool
        self._victims = state.victims
        self._rule = rule
        self._costs = state.costs
        self._placer = state.placer
        self._cost_order = rule.cost_order
        self._several_queues = False

    def nodes_of(self, leaves: list[QueueState]) -> list[NodeState]:
        """Nodes with tasks of these queues."""
        node_ids: dict[int, int] = {}
        for leaf in leaves:
            node_ids |= self._victims.by_queue.get(leaf, {})
        return [self._pool.nodes[node_id] for node_id in node_ids]

    @property
    def freed_nodes(self) -> list[NodeState]:
        """Nodes on which something was freed, in order of time; a node may appear several times."""
        return self._pool.freed_nodes

    def cost(self, tasks: Sequence[TaskSlot]) -> Cost:
        return self._costs.of_tasks(tasks, self._cost_order)

    def cheapest(self, task_class: TaskClass, node: NodeState, leaves: list[QueueState]) -> Candidate | None:
        """The cheapest units of these queues that make room on a node: as few as possible, and last the smallest that
        is large enough."""
        units = [unit for leaf in leaves for unit in self._victims.units_on(node, leaf, self._rule)]
        if self._rule.moves_victims:
            units = [unit for unit in units if self._movable(unit)]
        if self.affinity_matters(task_class):
            return self._pick_by_trial(task_class, node, units)
        self._several_queues = len(leaves) > 1
        best = None
        if task_class.form == WHOLE and not self._several_queues:
            best = self._pick_by_count(task_class, node, units)
        if best is None:
            best = self._pick(task_class, node, units)
            single = [unit for unit in units if len(unit) == 1]
            if len(single) < len(units) and single:  # a few spare tasks may do instead of a whole job
                other = self._pick(task_class, node, single)
                if other is not None and (best is None or other[0] < best[0]):
                    best = other
        if best is None:
            return None
        return (*best[0], self._pool.rank(task_class, node)), best[1]

    def affinity_matters(self, task_class: TaskClass) -> bool:
        """Whether pod affinity rules may refuse a node."""
        return self._pool.pod_affinity.applies_to(task_class)

    def _movable(self, unit: EvictionUnit) -> bool:
        """Whether each of these tasks, by itself, fits on some node."""
        return all(self._pool.find(self._placer.task_class(task), nominate_only=True) is not None for task in unit)

    def _pick(self, task_class: TaskClass, node: NodeState, units: Sequence[EvictionUnit]) -> Candidate | None:
        rule = self._rule
        free = node.after_release.copy()
        remaining = [(unit, _devices_on(unit, node)) for unit in units]
        chosen: list[EvictionUnit] = []
        evicted: set[TaskSlot] = set()
        taken: dict[QueueState, list[int]] = {}
        while remaining:
            missing = task_class.devices - free.whole if task_class.form == WHOLE else 0
            allowed = remaining
            if taken:
                allowed = [item for item in remaining if rule.may_take_from(item[0][0].job.queue, taken)]
            sufficient = [
                unit
                for unit, devices in allowed
                if devices >= missing and self._fits_without(task_class, node, free, unit, evicted)
            ]
            if sufficient:
                chosen.append(min(sufficient, key=lambda unit: (self.cost(unit), unit[0].job.name)))
                return self.cost(_tasks_of(chosen)), chosen
            if not allowed:
                return None
            first = max(allowed, key=lambda item: self._eviction_rank(item[0], item[1], taken))
            remaining.remove(first)
            unit = first[0]
            _release(node, free, unit, evicted)
            evicted.update(unit)
            chosen.append(unit)
            for queue in unit[0].job.queue.path:
                sums = taken.setdefault(queue, [0, 0, 0])
                for task in unit:
                    for r in range(3):
                        sums[r] += task.amount[r]
        return None

    def _pick_by_count(self, task_class: TaskClass, node: NodeState, units: Sequence[EvictionUnit]) -> Candidate | None:
        """Like `_pick`, by counting, for the common case: single tasks of one queue with whole devices. None for any
        other case."""
        missing = task_class.devices - node.after_release.whole
        remaining: list[tuple[int, Cost, tuple[str, str], EvictionUnit]] = []
        for unit in units:
            allocs = unit[0].allocs
            if len(unit) > 1 or not allocs or allocs[0][1] != GPU:
                return None
            remaining.append((-len(allocs), self.cost(unit), (unit[0].job.name, unit[0].task.name), unit))
        remaining.sort(key=lambda item: item[:3])
        chosen: list[EvictionUnit] = []
        while missing > 0:
            sufficient = [item for item in remaining if -item[0] >= missing]
            if not remaining:
                return None
            best = min(sufficient, key=lambda item: item[1:3]) if sufficient else remaining[0]
            remaining.remove(best)
            chosen.append(best[3])
            missing += best[0]
        free = node.after_release.copy()
        for unit in chosen:
            _release(node, free, unit, _NO_TASKS)
        if not chosen or not task_class.fits(node, free):
            return None
        return self.cost([unit[0] for unit in chosen]), chosen

    def _pick_by_trial(self, task_class: TaskClass, node: NodeState, units: list[EvictionUnit]) -> Candidate | None:
        """Where pod affinity matters a victim may be in the way by its labels, too: evicts one unit after the other
        until the task is allowed on the node."""
        chosen: list[EvictionUnit] = []
        savepoint = self._pool.savepoint()
        fits = False
        for unit in sorted(units, key=lambda unit: (self.cost(unit), unit[0].job.name)):
            chosen.append(unit)
            evict(self._pool, [unit])
            if task_class.fits(node, node.after_release) and self._pool.pod_affinity.allows(task_class, node):
                fits = True
                break
        self._pool.rollback(savepoint)
        if not fits:
            return None
        return (*self.cost(_tasks_of(chosen)), self._pool.rank(task_class, node)), chosen

    def _fits_without(
        self, task_class: TaskClass, node: NodeState, free: FreeResources, unit: EvictionUnit, evicted: set[TaskSlot]
    ) -> bool:
        """Whether the task fits once this unit is evicted, too."""
        after = free.copy()
        _release(node, after, unit, evicted)
        return task_class.fits(node, after)

    def _eviction_rank(
        self, unit: EvictionUnit, devices: int, taken: dict[QueueState, list[int]]
    ) -> tuple[object, ...]:
        """Where one unit is not enough, the largest rank goes first: the queue furthest above what it may keep, then
        the most devices, then the cheapest."""
        path = unit[0].job.queue.path[::-1]
        saturation = tuple(queue.saturation(taken.get(queue)) for queue in path) if self._several_queues else ()
        return (saturation, devices, tuple(-part for part in self.cost(unit)), unit[0].job.name)


def _tasks_of(units: Sequence[EvictionUnit]) -> Sequence[TaskSlot]:
    return units[0] if len(units) == 1 else list(dict.fromkeys(task for unit in units for task in unit))


def _devices_on(unit: EvictionUnit, node: NodeState) -> int:
    return sum(len(task.allocs) for task in unit if task.node is node)


def _release(node: NodeState, free: FreeResources, unit: Iterable[TaskSlot], already: Set[TaskSlot]) -> None:
    """Adds what a unit's tasks hold on a node to `free`, except what was released already."""
    for task in unit:
        if task.node is node and task not in already:
            request = task.task.request
            node.release(free, request.cpu, request.memory, task.allocs)


class CandidateHeap:
    """Nodes by the cost of clearing them for a task class, cheapest first. A cost holds until its node changes."""

    def __init__(self, finder: CandidateFinder, task_class: TaskClass, leaves: list[QueueState]) -> None:
        self._task_class = task_class
        self._leaves = leaves
        self._heap: list[tuple[Cost, int]] = []
        self._aside: list[tuple[Cost, int]] = []
        self._nodes: dict[int, NodeState] = {}
        self._candidates: dict[int, tuple[int, Candidate | None]] = {}  # by node: the node's version, the candidate
        self._latest: dict[int, Cost] = {}  # by node: its latest entry in the heap
        self._seen = len(finder.freed_nodes)
        for node in finder.nodes_of(leaves):
            if task_class.mask[node.id]:
                self._nodes[node.id] = node
                candidate = self._candidate(finder, node)
                if candidate is not None:
                    self._heap.append((candidate[0], node.id))
                    self._latest[node.id] = candidate[0]
        heapify(self._heap)

    def _candidate(self, finder: CandidateFinder, node: NodeState) -> Candidate | None:
        known = self._candidates.get(node.id)
        if known is not None and known[0] == node.version:
            return known[1]
        candidate = finder.cheapest(self._task_class, node, self._leaves)
        self._candidates[node.id] = (node.version, candidate)
        return candidate

    def refresh(self, finder: CandidateFinder) -> None:
        """Looks again at nodes on which something was freed: they may be cheaper now, or possible at all."""
        freed_nodes = finder.freed_nodes
        if self._seen < len(freed_nodes):
            for node in dict.fromkeys(freed_nodes[self._seen :]):
                if node.id in self._nodes:
                    self._push(node.id, self._candidate(finder, node))
            self._seen = len(freed_nodes)

    def _push(self, node_id: int, candidate: Candidate | None) -> None:
        """Adds a candidate unless the heap has it."""
        if candidate is not None and self._latest.get(node_id) != candidate[0]:
            self._latest[node_id] = candidate[0]
            heappush(self._heap, (candidate[0], node_id))

    def best(self, finder: CandidateFinder) -> tuple[Cost, NodeState, list[EvictionUnit]] | None:
        heap = self._heap
        while heap:
            cost, node_id = heap[0]
            node = self._nodes[node_id]
            candidate = self._candidate(finder, node)
            if candidate is not None and candidate[0] == cost:
                return cost, node, candidate[1]
            heappop(heap)  # outdated
            if self._latest.get(node_id) == cost:
                del self._latest[node_id]
            self._push(node_id, candidate)
        return None

    def set_aside(self) -> None:
        """Removes the best until `restore`."""
        self._aside.append(heappop(self._heap))

    def restore(self) -> None:
        for entry in self._aside:
            heappush(self._heap, entry)
        self._aside.clear()
