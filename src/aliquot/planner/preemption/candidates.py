"""What clearing a node for a task would cost: whom to stop there, and how much that disturbs.

Costs are kept per kind of task and per choice of queues in heaps, and worked out again only for nodes that changed; so
a thousand jobs that take one GPU each, or one job that takes a thousand, cost about the same per GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from aliquot.planner.jobs import RUNNING, TaskSlot
from aliquot.planner.model import GPU
from aliquot.planner.placement.node_state import FreeResources, NodeState
from aliquot.planner.placement.task_class import WHOLE, TaskClass
from aliquot.planner.preemption.eviction_cost import Cost
from aliquot.planner.preemption.rules import Rule
from aliquot.planner.preemption.victims import EvictionUnit
from aliquot.planner.queues.queue_tree import QueueState

if TYPE_CHECKING:
    from aliquot.planner.cycle_state import CycleState

Offer = tuple[Cost, list[EvictionUnit]]
_NOBODY: frozenset[TaskSlot] = frozenset()


class CandidateFinder:
    """Under one rule."""

    def __init__(self, state: CycleState, rule: Rule) -> None:
        self._pool = state.pool
        self._victims = state.victims
        self._rule = rule
        self._costs = state.costs
        self._placer = state.placer
        self._order = rule.order
        self._moves = rule.step == "consolidate"
        self._many = False  # whether several queues are looked at together

    def candidates(self, leaves: list[QueueState]) -> list[NodeState]:
        """Nodes with tasks of these queues."""
        numbers: dict[int, int] = {}
        for leaf in leaves:
            numbers |= self._victims.by_queue.get(leaf, {})
        return [self._pool.nodes[number] for number in numbers]

    @property
    def freed_nodes(self) -> list[NodeState]:
        return self._pool.freed_nodes

    def offer(self, task_class: TaskClass, node: NodeState, leaves: list[QueueState]) -> Offer | None:
        """The cheapest units that make room on a node: as few as can be, the smallest that is large enough last."""
        units = [unit for leaf in leaves for unit in self._victims.units_on(node, leaf, self._rule)]
        if self._moves:
            units = [unit for unit in units if self._movable(unit)]
        if self.minds(task_class):
            return self._pick_by_trial(task_class, node, units)
        self._many = len(leaves) > 1
        best = self._pick_whole(task_class, node, units) if task_class.form == WHOLE and not self._many else None
        if best is not None:
            return (*best[0], self._pool.rank(task_class, node)), best[1]
        best = self._pick(task_class, node, units)
        single = [unit for unit in units if len(unit) == 1]
        if len(single) < len(units) and single:  # a few spare tasks may do where a whole job would go otherwise
            other = self._pick(task_class, node, single)
            if other is not None and (best is None or other[0] < best[0]):
                best = other
        if best is None:
            return None
        return (*best[0], self._pool.rank(task_class, node)), best[1]

    def _movable(self, unit: EvictionUnit) -> bool:
        """Whether there is another place for each of these, one by one."""
        return all(self._pool.find(self._placer.task_class(member), nominate_only=True) is not None for member in unit)

    def cost(self, members: Sequence[TaskSlot]) -> Cost:
        return self._costs.of(members, self._order)

    def _pick(
        self, task_class: TaskClass, node: NodeState, units: Sequence[EvictionUnit]
    ) -> tuple[Cost, list[EvictionUnit]] | None:
        rule = self._rule
        view = node.after_release.copy()
        left = [(unit, _rows_here(unit, node)) for unit in units]
        chosen: list[EvictionUnit] = []
        gone: set[TaskSlot] = set()
        taken: dict[QueueState, list[int]] = {}
        while left:
            missing = task_class.devices - view.whole if task_class.form == WHOLE else 0
            allowed = [one for one in left if rule.gives(one[0][0].job.queue, taken)] if taken else left
            enough = [
                unit for unit, allocs in allowed if allocs >= missing and self._does(task_class, node, view, unit, gone)
            ]
            if enough:
                chosen.append(min(enough, key=lambda unit: (self.cost(unit), unit[0].job.name)))
                everybody = chosen[0] if len(chosen) == 1 else list(dict.fromkeys(m for one in chosen for m in one))
                return self.cost(everybody), chosen
            if not allowed:
                return None
            largest = max(allowed, key=lambda one: self._weight(one[0], one[1], taken))
            left.remove(largest)
            unit = largest[0]
            _free(node, view, unit, gone)
            gone.update(unit)
            chosen.append(unit)
            for queue in unit[0].job.queue.path:
                sums = taken.setdefault(queue, [0, 0, 0])
                for member in unit:
                    for r in range(3):
                        sums[r] += member.amount[r]
        return None

    def _pick_whole(self, task_class: TaskClass, node: NodeState, units: Sequence[EvictionUnit]) -> Offer | None:
        """The same for the common case, by counting: single tasks of one queue that have whole devices. None where it
        is not that simple."""
        missing = task_class.devices - node.after_release.whole
        sized: list[tuple[int, Cost, tuple[str, str], EvictionUnit]] = []
        for unit in units:
            allocs = unit[0].allocs
            if len(unit) > 1 or not allocs or allocs[0][1] != GPU:
                return None
            sized.append((-len(allocs), self.cost(unit), (unit[0].job.name, unit[0].task.name), unit))
        sized.sort(key=lambda one: one[:3])
        chosen: list[EvictionUnit] = []
        while missing > 0:
            enough = [one for one in sized if -one[0] >= missing]
            if not sized:
                return None
            best = min(enough, key=lambda one: one[1:3]) if enough else sized[0]
            sized.remove(best)
            chosen.append(best[3])
            missing += best[0]
        view = node.after_release.copy()
        for unit in chosen:
            _free(node, view, unit, _NOBODY)
        if not chosen or not task_class.fits(node, view):
            return None
        return self.cost([unit[0] for unit in chosen]), chosen

    def _does(
        self, task_class: TaskClass, node: NodeState, view: FreeResources, unit: EvictionUnit, gone: set[TaskSlot]
    ) -> bool:
        """Whether the task fits once this unit is gone too."""
        trial = view.copy()
        _free(node, trial, unit, gone)
        return task_class.fits(node, trial)

    def _weight(self, unit: EvictionUnit, allocs: int, taken: dict[QueueState, list[int]]) -> tuple[object, ...]:
        """Who goes first where one is not enough: of the queue furthest above its due, the largest, the cheapest."""
        queue = unit[0].job.queue
        standing = tuple(one.saturation(taken.get(one)) for one in queue.path[::-1]) if self._many else ()
        return (standing, allocs, tuple(-one for one in self.cost(unit)), unit[0].job.name)

    def minds(self, task_class: TaskClass) -> bool:
        """Whether it matters who is near."""
        return bool(task_class.pod_affinity or task_class.pod_anti_affinity or self._pool.pod_affinity.watched)

    def _pick_by_trial(self, task_class: TaskClass, node: NodeState, units: list[EvictionUnit]) -> Offer | None:
        """Where it matters who is near, whoever goes may be in the way as a neighbour too: stop one after the other
        until the task may come."""
        chosen: list[EvictionUnit] = []
        savepoint = self._pool.savepoint()
        found = False
        for unit in sorted(units, key=lambda unit: (self.cost(unit), unit[0].job.name)):
            chosen.append(unit)
            self.evict([unit])
            if task_class.fits(node, node.after_release) and self._pool.pod_affinity.allows(task_class, node):
                found = True
                break
        self._pool.rollback(savepoint)
        if not found:
            return None
        everybody = list(dict.fromkeys(member for unit in chosen for member in unit))
        return (*self.cost(everybody), self._pool.rank(task_class, node)), chosen

    def evict(self, units: Iterable[EvictionUnit]) -> None:
        for unit in units:
            for member in unit:
                if member.state == RUNNING:
                    self._pool.evict(member)


def _rows_here(unit: EvictionUnit, node: NodeState) -> int:
    return sum(len(member.allocs) for member in unit if member.node is node)


def _free(node: NodeState, view: FreeResources, unit: Iterable[TaskSlot], gone: Set[TaskSlot]) -> None:
    for member in unit:
        if member.node is node and member not in gone:
            request = member.task.request
            node.release(view, request.cpu, request.memory, member.allocs)


class CandidateHeap:
    """What clearing each node for a kind of task would cost, cheapest first. An offer holds until its node changes."""

    def __init__(self, offers: CandidateFinder, task_class: TaskClass, leaves: list[QueueState]) -> None:
        self._task_class = task_class
        self._leaves = leaves
        self._heap: list[tuple[Cost, int]] = []
        self._aside: list[tuple[Cost, int]] = []
        self._nodes: dict[int, NodeState] = {}
        self._offers: dict[int, tuple[int, Offer | None]] = {}  # by node: the version it was made for, and itself
        self._listed: dict[int, Cost] = {}  # by node: its latest entry in the heap
        self._seen = len(offers.freed_nodes)
        for node in offers.candidates(leaves):
            if task_class.mask[node.id]:
                self._nodes[node.id] = node
                offer = self._ask(offers, node)
                if offer is not None:
                    self._heap.append((offer[0], node.id))
                    self._listed[node.id] = offer[0]
        heapify(self._heap)

    def _ask(self, offers: CandidateFinder, node: NodeState) -> Offer | None:
        known = self._offers.get(node.id)
        if known is not None and known[0] == node.version:
            return known[1]
        offer = offers.offer(self._task_class, node, self._leaves)
        self._offers[node.id] = (node.version, offer)
        return offer

    def refresh(self, offers: CandidateFinder) -> None:
        """Where somebody was stopped it may be cheaper now, or possible at all."""
        freed_nodes = offers.freed_nodes
        if self._seen < len(freed_nodes):
            for node in dict.fromkeys(freed_nodes[self._seen :]):
                if node.id in self._nodes:
                    self._list(node.id, self._ask(offers, node))
            self._seen = len(freed_nodes)

    def _list(self, number: int, offer: Offer | None) -> None:
        """Put an offer into the heap, unless it is there."""
        if offer is not None and self._listed.get(number) != offer[0]:
            self._listed[number] = offer[0]
            heappush(self._heap, (offer[0], number))

    def best(self, offers: CandidateFinder) -> tuple[Cost, NodeState, list[EvictionUnit]] | None:
        heap = self._heap
        while heap:
            known, number = heap[0]
            node = self._nodes[number]
            offer = self._ask(offers, node)
            if offer is not None and offer[0] == known:
                return known, node, offer[1]
            heappop(heap)  # it is no longer so
            if self._listed.get(number) == known:
                del self._listed[number]
            self._list(number, offer)
        return None

    def set_aside(self) -> None:
        self._aside.append(heappop(self._heap))

    def restore(self) -> None:
        for entry in self._aside:
            heappush(self._heap, entry)
        self._aside.clear()
