"""`victims: least-disruption`: room for a job with as few evictions as possible.

Tasks choose nodes one after the other: a free node where there is one, else the node that is cheapest to clear
(`candidates`). In the end each victim that can stay stays, and each other victim is moved if there is another place for
it. Where few tasks could be evicted and this finds nothing, every choice among them is tried before the job is refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from aliquot.planner.jobs import RELEASING, RUNNING, JobState, TaskSlot
from aliquot.planner.placement.node_state import NodeState
from aliquot.planner.placement.pool_state import Savepoint
from aliquot.planner.placement.task_class import NO_GPU, TaskClass
from aliquot.planner.preemption.candidates import CandidateFinder, CandidateHeap
from aliquot.planner.preemption.rules import Rule
from aliquot.planner.preemption.search import VictimSearch, VictimStrategy, within_quota
from aliquot.planner.preemption.victims import EvictionUnit, by_job, evict
from aliquot.planner.queues import quota
from aliquot.planner.queues.queue_tree import QueueState

if TYPE_CHECKING:
    from aliquot.planner.cycle_state import CycleState

# With up to this many eviction units, every choice among them is tried before a job is refused, but no more than
# _CHOICES_TRIED. Bounds are on work, not on time, so that plans are the same on every machine.
_FEW_UNITS = 12
_CHOICES_TRIED = 200
# Nodes that are cheap to clear of GPU tasks but lack CPU or memory, before costs are computed for the full request.
_DEVICES_ONLY_TRIED = 8
# Other nodes that are tried when clearing the cheapest is not allowed.
_NODES_TRIED = 16


class LeastDisruption(VictimStrategy):
    def search(self, rule: Rule) -> VictimSearch:
        return LeastDisruptionSearch(self._state, rule)


class LeastDisruptionSearch(VictimSearch):
    def __init__(self, state: CycleState, rule: Rule) -> None:
        super().__init__(state, rule)
        self._victims = state.victims
        self._heaps = state.candidate_heaps
        self._finder = CandidateFinder(state, rule)
        self._cleared: list[NodeState] = []  # nodes on which tasks were evicted, in all attempts
        self._avoided: set[int] = set()
        bound = state.policy.disruption_bound
        self._max_disrupted = None if bound is None or rule.guaranteed else bound * max(rule.asked[0], 1)

    def solve(self, tasks: Sequence[TaskSlot]) -> list[TaskSlot] | None:
        for _ in range(_NODES_TRIED):
            savepoint = self._pool.savepoint()
            cleared = len(self._cleared)
            placed = self._place_and_clear(tasks)
            if placed:
                evicted = self._finish(savepoint, tasks)
                if evicted is not None:
                    return evicted
            self._pool.rollback(savepoint)
            if not placed or len(self._cleared) == cleared:
                break
            # The victims on these nodes are too many, or cannot be moved. Other nodes may do.
            self._avoided.update(node.id for node in self._cleared[cleared:])
        return self._try_all(tasks)

    def _place_and_clear(self, tasks: Sequence[TaskSlot]) -> bool:
        """Places the tasks. A task that fits nowhere gets a node that is cleared for it."""
        self._placer.make_room = self._clear
        try:
            placed = self._placer.place(self._job, tasks, nominate_only=True)
        finally:
            self._placer.make_room = None
        return placed and self._fit_quota()

    def _finish(self, savepoint: Savepoint, tasks: Sequence[TaskSlot]) -> list[TaskSlot] | None:
        """Spares the victims that can stay and checks the result. A victim that stays still counts for its queue, which
        may then hold too much beside the job. So in a second pass a victim stays only if the result is fair."""
        pool = self._pool
        stopped = [task for task in pool.changed_since(savepoint) if task.state is RELEASING]
        before = pool.savepoint()
        for check_fairness in (False, True):
            evicted = self._spare(stopped, check_fairness)
            if evicted is not None:
                break
            pool.rollback(before)
        if evicted is None or evicted:
            return evicted
        pool.rollback(savepoint)  # no victims are left, so the job need not wait for a release either
        return [] if self._placer.place(self._job, tasks) else None

    def _spare(self, stopped: list[TaskSlot], check_fairness: bool) -> list[TaskSlot] | None:
        """The tasks that are evicted or moved after all; None if that is not allowed."""
        pool = self._pool
        evicted = self._keep(stopped, check_fairness)
        kept = pool.savepoint()
        for victim, tasks in _by_priority(evicted):
            self._reschedule(victim, tasks)
        disrupted = [task for task in evicted if task.state is not RUNNING]
        if self._allowed(disrupted):
            return disrupted
        pool.rollback(kept)  # what was moved counts for its queue, too
        disrupted = [task for task in evicted if task.state is not RUNNING]
        return disrupted if self._allowed(disrupted) else None

    def _allowed(self, disrupted: Sequence[TaskSlot]) -> bool:
        if not within_quota(self._job):
            return False
        if self._max_disrupted is not None and sum(task.amount[0] for task in disrupted) > self._max_disrupted:
            return False
        lost = [task for task in disrupted if task.state is RELEASING]
        return self._protection_holds(disrupted) and self._rule.allows(lost)

    def _keep(self, stopped: list[TaskSlot], check_fairness: bool) -> list[TaskSlot]:
        """Lets victims run on where they need not go after all, the highest priority first. A job's tasks all stay or
        none does. Returns the others."""
        pool = self._pool
        kept: set[TaskSlot] = set()
        for victim, tasks in _by_priority(stopped):
            if not all(pool.can_cancel_eviction(task) for task in tasks):
                continue
            savepoint = pool.savepoint()
            for task in tasks:
                if not self._may_stay(task):
                    break
                pool.cancel_eviction(task)
            else:
                if (
                    within_quota(self._job)
                    and within_quota(victim)
                    and (not check_fairness or self._rule.is_fair(_without(stopped, {*kept, *tasks})))
                ):
                    kept.update(tasks)
                    continue
            pool.rollback(savepoint)
        return _without(stopped, kept)

    def _may_stay(self, task: TaskSlot) -> bool:
        if not self._pool.can_cancel_eviction(task):
            return False
        if not self._pool.pod_affinity.terms or task.origin is None:
            return True
        return self._pool.pod_affinity.allows(self._placer.task_class(task), task.origin[0])

    # ---------------------------------------------------------------- every choice

    def _try_all(self, tasks: Sequence[TaskSlot]) -> list[TaskSlot] | None:
        """Where few units could be evicted, tries every choice, the smallest first. A refusal is then certain."""
        pool = self._pool
        units = self._all_units()
        if not units or len(units) > _FEW_UNITS:
            return None
        savepoint = pool.savepoint()
        evict(pool, units)
        sufficient = self._placer.place(self._job, tasks, nominate_only=True)
        pool.rollback(savepoint)
        if not sufficient and self._job.source.pod_affinity is None:  # if evicting all does not do, nothing does
            return None
        tried = 0
        for count in range(1, len(units) + 1):
            for chosen in combinations(units, count):
                tried += 1
                if tried > _CHOICES_TRIED:
                    return None
                savepoint = pool.savepoint()
                evict(pool, chosen)
                if self._place(tasks):
                    evicted = self._finish(savepoint, tasks)
                    if evicted is not None:
                        return evicted
                pool.rollback(savepoint)
                evicted = self._rearrange(tasks, chosen)
                if evicted is not None:
                    return evicted
        return None

    def _rearrange(self, tasks: Sequence[TaskSlot], units: Sequence[EvictionUnit]) -> list[TaskSlot] | None:
        """Places the job's tasks and the victims' tasks together, in whatever order fits."""
        savepoint = self._pool.savepoint()
        evict(self._pool, units)
        stopped = [task for task in self._pool.changed_since(savepoint) if task.state is RELEASING]
        if self._placer.arrange([*tasks, *stopped]):
            disrupted = [task for task in stopped if task.state is not RUNNING]
            if self._allowed(disrupted):
                return disrupted
        self._pool.rollback(savepoint)
        return None

    def _all_units(self) -> list[EvictionUnit]:
        """Everything that could be evicted, cheapest first; cut short above _FEW_UNITS."""
        units: dict[EvictionUnit, None] = {}
        for leaf, node_ids in self._victims.by_queue.items():
            if not self._rule.considers(leaf):
                continue
            for node_id in node_ids:
                units |= dict.fromkeys(self._victims.units_on(self._pool.nodes[node_id], leaf, self._rule))
                if len(units) > _FEW_UNITS:
                    return list(units)
        return sorted(units, key=lambda unit: (self._finder.cost(unit), unit[0].task.name))

    # ---------------------------------------------------------------- choosing victims

    def _clear(self, task_class: TaskClass, nodes: Iterable[NodeState] | None) -> NodeState | None:
        """Evicts tasks so that a task of this class fits on some node. Returns the node."""
        groups = self._by_saturation([leaf for leaf in self._rule.candidate_queues() if self._rule.may_take_from(leaf)])
        choices = [[[leaf] for leaf in leaves] for leaves in groups]
        together = [leaf for leaves in groups for leaf in leaves]
        if len(together) > 1:
            choices.append([together])
        for choice in choices:
            node = self._clear_cheapest(task_class, choice, nodes)
            if node is not None:
                self._cleared.append(node)
                return node
        return None

    def _by_saturation(self, leaves: list[QueueState]) -> list[list[QueueState]]:
        """Queues by how far they are above what they may keep, furthest first; equal ones in one group."""
        if len(leaves) <= 1:
            return [leaves] if leaves else []
        groups: dict[tuple[float, ...], list[QueueState]] = {}
        for leaf in leaves:
            groups.setdefault(tuple(-queue.saturation() for queue in leaf.path[::-1]), []).append(leaf)
        return [groups[key] for key in sorted(groups)]

    def _clear_cheapest(
        self, task_class: TaskClass, choices: list[list[QueueState]], nodes: Iterable[NodeState] | None
    ) -> NodeState | None:
        """Clears the cheapest node, with units of the queues of one choice."""
        if nodes is not None:
            return self._clear_cheapest_of(task_class, choices, nodes)
        if task_class.form != NO_GPU:
            # Devices are scarce: their costs are shared by all task classes that ask for the same devices.
            devices_only = self._placer.task_classes.devices_only(task_class)
            node = self._clear_from_heaps(task_class, devices_only, choices, _DEVICES_ONLY_TRIED)
            if node is not None:
                return node
        return self._clear_from_heaps(task_class, task_class, choices, None)

    def _clear_from_heaps(
        self, task_class: TaskClass, priced: TaskClass, choices: list[list[QueueState]], tries: int | None
    ) -> NodeState | None:
        """Takes costs from the heaps of `priced`, a class that asks for no more than `task_class`."""
        finder = self._finder
        heaps = [self._heap(priced, leaves) for leaves in choices]
        for heap in heaps:
            heap.refresh(finder)
        cleared = None
        while tries is None or tries > 0:
            best = [(entry, i) for i, heap in enumerate(heaps) if (entry := heap.best(finder))]
            if not best:
                break
            (_, node, units), i = min(best, key=lambda item: (item[0][0], item[0][1].id))
            if self._evict_if_allowed(units, task_class, node):
                cleared = node
                break
            heaps[i].set_aside()  # not allowed for this job; perhaps for the next
            tries = None if tries is None else tries - 1
        for heap in heaps:
            heap.restore()
        return cleared

    def _clear_cheapest_of(
        self, task_class: TaskClass, choices: list[list[QueueState]], nodes: Iterable[NodeState]
    ) -> NodeState | None:
        candidates = []
        for node in nodes:
            for leaves in choices:
                candidate = self._finder.cheapest(task_class, node, leaves) if task_class.mask[node.id] else None
                if candidate is not None:
                    candidates.append((candidate[0], node.id, node, candidate[1]))
        for _, _, node, units in sorted(candidates, key=lambda candidate: candidate[:2]):
            if self._evict_if_allowed(units, task_class, node):
                return node
        return None

    def _heap(self, task_class: TaskClass, leaves: list[QueueState]) -> CandidateHeap:
        key = (task_class.id, self._rule.scope, tuple(leaf.name for leaf in leaves))
        heap = self._heaps.get(key)
        if heap is None:
            heap = self._heaps[key] = CandidateHeap(self._finder, task_class, leaves)
        return heap

    def _evict_if_allowed(
        self, units: Sequence[EvictionUnit], task_class: TaskClass | None = None, node: NodeState | None = None
    ) -> bool:
        """Evicts units one by one while each queue may lose another. With a node, the task has to fit there after."""
        if node is not None and node.id in self._avoided:
            return False
        savepoint = self._pool.savepoint()
        for unit in units:
            if not self._rule.may_take_from(unit[0].job.queue):
                self._pool.rollback(savepoint)
                return False
            evict(self._pool, [unit])
        if task_class is not None and node is not None and not self._fits(task_class, node):
            self._pool.rollback(savepoint)
            return False
        return True

    def _fits(self, task_class: TaskClass, node: NodeState) -> bool:
        if not task_class.fits(node, node.after_release):
            return False
        return not self._finder.affinity_matters(task_class) or self._pool.pod_affinity.allows(task_class, node)

    def _fit_quota(self) -> bool:
        """Where nodes have room but a queue may not hold more, evicts units below that queue."""
        job, rule = self._job, self._rule
        while (full := quota.exceeded_queue(job.queue, job.nonpreemptible)) is not None:
            units = [
                (self._finder.cost(unit), unit)
                for leaf in rule.candidate_queues()
                if full in leaf.path and rule.may_take_from(leaf)
                for node_id in self._victims.by_queue.get(leaf, {})
                for unit in self._victims.units_on(self._pool.nodes[node_id], leaf, rule)
            ]
            if not units:
                return False
            _, cheapest = min(units, key=lambda item: (item[0], item[1][0].job.name))
            if not self._evict_if_allowed([cheapest]):
                return False
        return True


def _without(tasks: Iterable[TaskSlot], excluded: Container[TaskSlot]) -> list[TaskSlot]:
    return [task for task in tasks if task not in excluded]


def _by_priority(tasks: Iterable[TaskSlot]) -> list[tuple[JobState, list[TaskSlot]]]:
    """Tasks by job, in the order in which the jobs would be scheduled."""
    return sorted(by_job(tasks).items(), key=lambda item: item[0].order())
