"""Steps 3 to 5 with `victims: newest`: who would be scheduled last goes first.

For clusters that come from the peer and should behave as before. A job is solved task by task: candidates are added one
unit at a time, in the exact reverse of the scheduling order, and after each it is seen whether stopping the candidates
on a node that the latest one is on makes room. Whoever was stopped is put back where it was or moved elsewhere if that
is possible, in turn with the job itself. What was found for the first tasks stays, and the search for the next goes on
from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import NOMINATED, RELEASING, RUNNING, JobState, TaskSlot
from aliquot.planner.placement.node_state import NodeState
from aliquot.planner.placement.pool_state import Savepoint
from aliquot.planner.placement.task_class import TaskClass
from aliquot.planner.plan_builder import PlanBuilder
from aliquot.planner.preemption.driver import RULES, refused
from aliquot.planner.preemption.rules import Consolidate, Preempt, Rule
from aliquot.planner.preemption.victims import EvictionUnit, by_job
from aliquot.planner.queues import quota
from aliquot.planner.queues.queue_order import Batch, QueueOrder
from aliquot.planner.queues.queue_tree import QueueState

_MOVED_AT_MOST = 16  # jobs that one consolidation considers


def make_room_newest_first(state: CycleState, batches: Sequence[Batch], step: str, builder: PlanBuilder) -> list[Batch]:
    """Returns who still waits."""
    placer = state.placer
    waiting: list[Batch] = []
    failed: set[object] = set()
    line = Line(state)
    turns = QueueOrder(batches, placer.next_request)
    while batch := turns.pop():
        job = batch.head
        members = job.next_tasks()
        rule = RULES[step](state, job, placer.requested(members))
        why = "not-preemptible" if step == "consolidate" and job.nonpreemptible else refused(state, rule)
        key = (rule.scope, state.signature(job, members))
        if why is None and key not in failed:
            stopped = VictimSearch(state, rule, line).solve(members)
            if stopped is not None:
                failed.clear()
                builder.evict(stopped, job, step)
                for queue in {member.job.queue: None for member in stopped}:
                    turns.touch(queue)
                turns.advance(batch, again=False)
                continue
            failed.add(key)
        builder.note(state, batch, step, why or "no-arrangement", rule)
        waiting.append(batch)
    return waiting


class Line:
    """Everybody who could go, by queue, who goes first last."""

    def __init__(self, state: CycleState) -> None:
        self._units: dict[QueueState, list[EvictionUnit]] = {}
        keyed: dict[QueueState, list[tuple[tuple[float | str, ...], EvictionUnit]]] = {}
        for job in state.jobs:
            if job.nonpreemptible:
                continue
            units = job.eviction_units()
            spare = len(units) - 1
            priority, _, created, name = job.order()
            for i, unit in enumerate(units):
                key = (priority, 2 if i < spare else 1, created, name, -i)
                keyed.setdefault(job.queue, []).append((key, tuple(unit)))
        for queue, units_ in keyed.items():
            self._units[queue] = [unit for _, unit in sorted(units_, key=lambda one: one[0])]

    def candidates(self, rule: Rule, moved: Mapping[TaskSlot, None]) -> dict[QueueState, Iterator[EvictionUnit]]:
        """Those that a rule admits, who goes first first. `moved`: who has made way for the job already."""
        found: dict[QueueState, Iterator[EvictionUnit]] = {}
        for queue, units in self._units.items():
            while units and units[-1][0].state != RUNNING:
                units.pop()
            if units and (not isinstance(rule, Preempt) or queue is rule.job.queue):
                found[queue] = filter(partial(_admitted, rule, moved), reversed(units))
        return found


def _admitted(rule: Rule, moved: Mapping[TaskSlot, None], unit: EvictionUnit) -> bool:
    job = unit[0].job
    if not rule.admits(job) or any(member.state != RUNNING for member in unit):
        return False
    if len(job.members) > 1 and any(member.state < RUNNING and member not in moved for member in job.members):
        return False  # it got something, or was moved, in this very cycle: it is judged again in the next
    # What is left of a job that is protected stays.
    return not rule.protected(job) or job.present - len(unit) >= sum(one.min_available for one in job.task_sets)


class VictimSearch:
    """One job's search."""

    def __init__(self, state: CycleState, rule: Rule, line: Line) -> None:
        self._line = line
        self._state = state
        self._pool = state.pool
        self._placer = state.placer
        self._rule = rule
        self._victims: Iterator[EvictionUnit] = iter(())
        self._gone: dict[TaskSlot, None] = {}  # who was stopped for the tasks so far
        self._on: dict[NodeState, list[EvictionUnit]] = {}
        # Whether its tasks must be placed together to know whether they fit.
        self._whole = bool(rule.job.source.subgroups) or rule.job.source.topology_constraint is not None

    def solve(self, members: Sequence[TaskSlot]) -> list[TaskSlot] | None:
        savepoint = self._pool.savepoint()
        last: TaskClass | None = None
        for count, member in enumerate(members, 1):
            task_class = self._placer.task_class(member)
            if task_class is not last:
                self._victims, self._on = self._worst_first(), {}
                last = task_class
            if not self._next(members[:count] if self._whole else [member], task_class):
                self._pool.rollback(savepoint)
                return None
        touched = self._pool.since(savepoint)
        stopped = [one for one in touched if one.origin is not None and one.state != RUNNING]
        return self._once_more(savepoint, members, stopped)

    def _once_more(
        self, savepoint: Savepoint, members: Sequence[TaskSlot], stopped: list[TaskSlot]
    ) -> list[TaskSlot] | None:
        """All of it at once, now that it is known who goes: earlier choices may turn out better."""
        pool = self._pool
        pool.rollback(savepoint)
        for member in stopped:
            pool.evict(member)
        stopped += self._rest_of(stopped)
        self._gone = {}
        if self._in_turn(members, by_job(stopped)) and self._valid(stopped):
            return [one for one in stopped if one.state != RUNNING]
        pool.rollback(savepoint)
        return None

    def _next(self, members: Sequence[TaskSlot], task_class: TaskClass) -> bool:
        """Places for one more task: for it alone, or (where it matters who is near whom) for all so far."""
        if self._attempt(members, ()):  # what earlier tasks were given room by may be enough
            return True
        for unit in self._victims:
            if any(one.state != RUNNING for one in unit):
                continue
            nodes = list(dict.fromkeys(one.origin[0] for one in unit if one.origin is not None))
            for node in nodes:
                self._on.setdefault(node, []).append(unit)
            for node in sorted(nodes, key=lambda node: node.id):
                here = [one for one in self._on[node] if all(each.state == RUNNING for each in one)]
                if (self._whole or self._promising(task_class, node, here)) and self._attempt(members, here):
                    return True
        return False

    def _promising(self, task_class: TaskClass, node: NodeState, units: Sequence[EvictionUnit]) -> bool:
        """Cheap: whether the task could fit on the node with these gone. Whoever is on other nodes may make room
        there, and then it must be tried."""
        if any(member.node is not node for unit in units for member in unit):
            return True
        view = node.after_release.copy()
        for unit in units:
            for member in unit:
                request = member.task.request
                node.release(view, request.cpu, request.memory, member.allocs)
        return task_class.fits(node, view) or self._pool.find(task_class, nominate_only=True) is not None

    def _attempt(self, members: Sequence[TaskSlot], units: Sequence[EvictionUnit]) -> bool:
        """Stop these, then give places to them and to the tasks, each in its turn."""
        pool = self._pool
        savepoint = pool.savepoint()
        for member in members:
            if member.state == NOMINATED:
                pool.withdraw(member)
        gone = [one for unit in units for one in unit]
        each_may = True
        for unit in units:
            each_may = each_may and self._rule.gives(unit[0].job.queue)
            for one in unit:
                if one.state == RUNNING:
                    pool.evict(one)
        gone += self._rest_of(gone)
        # Where each might go at its turn the whole is fair; otherwise some may find another place, or a better order.
        if self._in_turn(members, by_job(gone)) and self._valid(gone, each_may):
            self._gone |= dict.fromkeys(gone)
            return True
        pool.rollback(savepoint)
        return False

    def _rest_of(self, gone: Sequence[TaskSlot]) -> list[TaskSlot]:
        """Who cannot go on without these: what is above a job's minimum may be on a node that was not looked at."""
        left = [one for job in by_job(gone) if not job.satisfied() for one in job.members if one.state == RUNNING]
        for one in left:
            self._pool.evict(one)
        return left

    def _in_turn(self, members: Sequence[TaskSlot], victims: dict[JobState, list[TaskSlot]]) -> bool:
        mine = self._rule.job
        turns = QueueOrder(
            [Batch([job]) for job in (mine, *victims)],
            lambda job: self._placer.requested(members if job is mine else victims[job]),
        )
        done = False
        while batch := turns.pop():
            job = batch.head
            if job is mine:
                if not self._place(members):
                    return False
                done = True
                turns.touch(job.queue)
            elif self._return(job, victims[job]):
                turns.touch(job.queue)
        return done

    def _place(self, members: Sequence[TaskSlot]) -> bool:
        savepoint = self._pool.savepoint()
        job = self._rule.job
        if (
            self._placer.place(job, members, nominate_only=True)
            and quota.exceeded_queue(job.queue, job.nonpreemptible) is None
        ):
            return True
        self._pool.rollback(savepoint)
        return False

    def _return(self, job: JobState, members: list[TaskSlot]) -> bool:
        """Back where it was, or elsewhere."""
        savepoint = self._pool.savepoint()
        if self._placer.replace(job, members) and quota.exceeded_queue(job.queue, job.nonpreemptible) is None:
            return True
        self._pool.rollback(savepoint)
        return False

    # ---------------------------------------------------------------- who goes

    def _worst_first(self) -> Iterator[EvictionUnit]:
        """Units in the reverse of the scheduling order: the queue that deserves least, in it the job that does."""
        lines = self._line.candidates(self._rule, self._gone)
        left = {queue: unit for queue, line in lines.items() if (unit := next(line, None)) is not None}
        gone = dict.fromkeys(self._state.tree.queues.values(), (0, 0, 0))
        count = 0
        while left:
            queue = self._worst(left, gone)
            unit = left.pop(queue)
            if (following := next(lines[queue], None)) is not None:
                left[queue] = following
            amount = tuple(sum(member.amount[r] for member in unit) for r in range(3))
            for one in queue.path:
                before = gone[one]
                gone[one] = (before[0] + amount[0], before[1] + amount[1], before[2] + amount[2])
            count += 1
            if isinstance(self._rule, Consolidate) and count > _MOVED_AT_MOST:
                return
            yield unit

    def _worst(self, left: dict[QueueState, EvictionUnit], gone: dict[QueueState, tuple[int, int, int]]) -> QueueState:
        if len(left) == 1:
            return next(iter(left))
        queues = [queue for queue in self._state.tree.roots if any(queue in leaf.path for leaf in left)]
        while True:
            best = max(queues, key=lambda one: self._standing(one, left, gone))
            if best in left:
                return best
            queues = [child for child in best.children if any(child in leaf.path for leaf in left)]

    def _standing(
        self, queue: QueueState, left: dict[QueueState, EvictionUnit], gone: dict[QueueState, tuple[int, int, int]]
    ) -> tuple[Any, ...]:
        """As whose turn it is, but without those who went before and the next one."""
        leaf = queue
        while leaf not in left:
            below = [child for child in leaf.children if any(child in one.path for one in left)]
            leaf = max(below, key=lambda one: self._standing(one, left, gone))
        unit = left[leaf]
        amount = [sum(member.amount[r] for member in unit) for r in range(3)]
        went = gone[queue]
        key = queue.order_key((0, 0, 0))
        rest = queue.dominant_share(
            queue.used[0] - went[0] - amount[0],
            queue.used[1] - went[1] - amount[1],
            queue.used[2] - went[2] - amount[2],
        )
        return (*key[:4], rest, *key[5:])

    # ---------------------------------------------------------------- what is fair

    def _valid(self, gone: Sequence[TaskSlot], fair: bool = False) -> bool:
        moved = by_job(member for member in gone if member.state != RUNNING)
        if any(self._rule.protected(job) and not job.keeps_minimum() for job in moved):
            return False  # each of them was above the minimum, but not all together
        if isinstance(self._rule, Consolidate):
            return not any(member.state == RELEASING for member in gone)
        return fair or self._rule.fair([m for m in {**self._gone, **dict.fromkeys(gone)} if m.state == RELEASING])
