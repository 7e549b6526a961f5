"""Room for a job at the expense of others, with as little disruption as possible.

One solver for the three `rules`. Tasks choose nodes one after the other, a free one where there is one, else the node
that is cheapest to clear (`offers`). In the end whoever need not go stays, and whoever goes is given another place if
there is one. Where few could go and this finds nothing, all ways are tried before the job is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from aliquot.planner.jobs import RELEASING, RUNNING, JobState, TaskSlot
from aliquot.planner.placement.node_state import NodeState
from aliquot.planner.placement.pool_state import PoolState, Savepoint
from aliquot.planner.placement.task_class import NONE, TaskClass
from aliquot.planner.preemption.candidates import CandidateFinder, CandidateHeap
from aliquot.planner.preemption.rules import Consolidate, Preempt, Rule
from aliquot.planner.preemption.victims import EvictionUnit, by_job
from aliquot.planner.queues import quota
from aliquot.planner.queues.queue_tree import QueueState

if TYPE_CHECKING:
    from aliquot.planner.cycle_state import CycleState

# Up to this many units, all ways to choose among them are tried before a job is refused, and this many ways at most:
# work, not time, so that plans are the same everywhere.
_FEW = 12
_WAYS_TRIED = 200
# Nodes that are cheap to clear of devices but lack CPU or memory, before costs are worked out for the kind itself.
_BARE_TRIED = 8
# Other nodes that are tried when clearing the cheapest turned out not to be allowed.
_NODES_TRIED = 16


class Solver:
    def __init__(self, state: CycleState, rule: Rule) -> None:
        self._pool: PoolState = state.pool
        self._placer = state.placer
        self._victims = state.victims
        self._ledgers = state.candidate_heaps
        self._rule = rule
        self._offers = CandidateFinder(state, rule)
        self._cleared: list[NodeState] = []  # nodes that somebody was stopped on, in all attempts
        self._avoided: set[int] = set()
        bound = state.policy.disruption_bound
        self._most = None if bound is None or rule.owed else bound * max(rule.asked[0], 1)

    def solve(self, members: Sequence[TaskSlot]) -> list[TaskSlot] | None:
        """Place these tasks; who had to make way, or None. What was done stays in the room's log."""
        for _ in range(_NODES_TRIED):
            savepoint = self._pool.savepoint()
            cleared = len(self._cleared)
            placed = self._place(members) and self._fit_queues(self._rule.job)
            if placed:
                found = self._finish(savepoint, members)
                if found is not None:
                    return found
            self._pool.rollback(savepoint)
            if not placed or len(self._cleared) == cleared:
                break
            # Those who had to go there are too many, or find no other place. Perhaps it is different elsewhere.
            self._avoided.update(node.id for node in self._cleared[cleared:])
        return self._exhaust(members)

    def _place(self, members: Sequence[TaskSlot]) -> bool:
        self._placer.rescue = self._clear
        try:
            return self._placer.place(self._rule.job, members, nominate_only=True)
        finally:
            self._placer.rescue = None

    def _finish(self, savepoint: Savepoint, members: Sequence[TaskSlot]) -> list[TaskSlot] | None:
        """Spare whom we can, and see whether the whole is allowed. Who stays still counts for his queue: that may be
        too much for it, with the job; then only those stay with whom it is not."""
        job, pool = self._rule.job, self._pool
        stopped = [member for member in pool.since(savepoint) if member.state == RELEASING]
        begun = pool.savepoint()
        for fairly in (False, True):
            gone = self._spare(job, stopped, fairly)
            if gone is not None:
                break
            pool.rollback(begun)
        if gone is None or gone:
            return gone
        pool.rollback(savepoint)  # nothing had to be done for it: it need not wait either
        return [] if self._placer.place(job, members) else None

    def _spare(self, job: JobState, stopped: list[TaskSlot], fairly: bool) -> list[TaskSlot] | None:
        """Who goes for good, after some stay and others are moved; None: that is not allowed."""
        pool = self._pool
        gone = self._keep(job, stopped, fairly)
        stayed = pool.savepoint()
        self._move(gone)
        moved = [member for member in gone if member.state != RUNNING]
        if self._allowed(job, moved):
            return moved
        pool.rollback(stayed)  # those who are moved count too
        gone = [member for member in gone if member.state != RUNNING]
        return gone if self._allowed(job, gone) else None

    def _allowed(self, job: JobState, stopped: Sequence[TaskSlot]) -> bool:
        lost = [member for member in stopped if member.state == RELEASING]
        if quota.exceeded_queue(job.queue, job.nonpreemptible) is not None or (
            lost and isinstance(self._rule, Consolidate)
        ):
            return False
        if self._most is not None and sum(member.amount[0] for member in stopped) > self._most:
            return False
        if any(self._rule.protected(victim) and not victim.keeps_minimum() for victim in by_job(stopped)):
            return False  # each of them was above the minimum, but not all together
        return self._rule.fair(lost)

    def _exhaust(self, members: Sequence[TaskSlot]) -> list[TaskSlot] | None:
        """Where there are few who could go, try all ways, the smallest first: what is refused is then truly refused."""
        pool, job = self._pool, self._rule.job
        units = self._all_units()
        if not units or len(units) > _FEW:
            return None
        savepoint = pool.savepoint()
        self._offers.evict(units)
        helps = self._placer.place(job, members, nominate_only=True)
        pool.rollback(savepoint)
        if not helps and job.source.pod_affinity is None:  # if even that does not do, nothing does
            return None
        tried = 0
        for count in range(1, len(units) + 1):
            for some in combinations(units, count):
                tried += 1
                if tried > _WAYS_TRIED:
                    return None
                savepoint = pool.savepoint()
                self._offers.evict(some)
                if self._placer.place(job, members, nominate_only=True) and self._fit_queues(job):
                    found = self._finish(savepoint, members)
                    if found is not None:
                        return found
                pool.rollback(savepoint)
                found = self._rearrange(members, some)
                if found is not None:
                    return found
        return None

    def _rearrange(self, members: Sequence[TaskSlot], units: Sequence[EvictionUnit]) -> list[TaskSlot] | None:
        """New places for all of them at once, whoever comes first."""
        savepoint = self._pool.savepoint()
        self._offers.evict(units)
        stopped = [member for member in self._pool.since(savepoint) if member.state == RELEASING]
        if (
            self._placer.arrange([*members, *stopped])
            and quota.exceeded_queue(self._rule.job.queue, self._rule.job.nonpreemptible) is None
        ):
            stopped = [member for member in stopped if member.state != RUNNING]
            if self._allowed(self._rule.job, stopped):
                return stopped
        self._pool.rollback(savepoint)
        return None

    def _all_units(self) -> list[EvictionUnit]:
        """Everybody who could go, cheapest first."""
        units: dict[EvictionUnit, None] = {}
        rule = self._rule
        for leaf, numbers in self._victims.by_queue.items():
            if isinstance(rule, Preempt) and leaf is not rule.job.queue:
                continue
            for number in numbers:
                units |= dict.fromkeys(self._victims.units_on(self._pool.nodes[number], leaf, rule))
                if len(units) > _FEW:
                    return list(units)
        return sorted(units, key=lambda unit: (self._offers.cost(unit), unit[0].task.name))

    # ---------------------------------------------------------------- choosing whom to stop

    def _clear(self, task_class: TaskClass, nodes: Iterable[NodeState] | None) -> NodeState | None:
        """Stop somebody so that a task of this kind fits on some node, and say which."""
        groups = self._by_turn([leaf for leaf in self._rule.leaves() if self._rule.gives(leaf)])
        choices = [[[leaf] for leaf in leaves] for leaves in groups]
        together = [leaf for leaves in groups for leaf in leaves]
        if len(together) > 1:
            choices.append([together])
        for choice in choices:
            found = self._cheapest(task_class, choice, nodes)
            if found is not None:
                self._cleared.append(found)
                return found
        return None

    def _by_turn(self, leaves: list[QueueState]) -> list[list[QueueState]]:
        """Queues by how far they are above what they may keep, furthest first; those alike together."""
        if len(leaves) <= 1:
            return [leaves] if leaves else []
        keyed: dict[tuple[float, ...], list[QueueState]] = {}
        for leaf in leaves:
            keyed.setdefault(tuple(-one.saturation() for one in leaf.path[::-1]), []).append(leaf)
        return [keyed[key] for key in sorted(keyed)]

    def _cheapest(
        self, task_class: TaskClass, choices: list[list[QueueState]], nodes: Iterable[NodeState] | None
    ) -> NodeState | None:
        """Clear the cheapest node, each time with units of one of these lists of queues."""
        if nodes is not None:
            return self._cheapest_of(task_class, choices, nodes)
        if task_class.form != NONE:
            # Devices are what is scarce: costs are shared by all kinds that want the same ones.
            found = self._cheapest_in(task_class, self._placer.task_classes.bare(task_class), choices, _BARE_TRIED)
            if found is not None:
                return found
        return self._cheapest_in(task_class, task_class, choices, None)

    def _cheapest_in(
        self, task_class: TaskClass, priced: TaskClass, choices: list[list[QueueState]], tries: int | None
    ) -> NodeState | None:
        """By the ledgers of one kind, for another that wants at least as much."""
        ledgers = [self._ledger(priced, leaves) for leaves in choices]
        for ledger in ledgers:
            ledger.refresh(self._offers)
        found = None
        while tries is None or tries > 0:
            offers = [(offer, i) for i, ledger in enumerate(ledgers) if (offer := ledger.best(self._offers))]
            if not offers:
                break
            offer, i = min(offers, key=lambda one: (one[0][0], one[0][1].id))
            if self._evict(offer[2], task_class, offer[1]):
                found = offer[1]
                break
            ledgers[i].set_aside()  # not allowed now; perhaps for somebody else
            tries = None if tries is None else tries - 1
        for ledger in ledgers:
            ledger.restore()
        return found

    def _cheapest_of(
        self, task_class: TaskClass, choices: list[list[QueueState]], nodes: Iterable[NodeState]
    ) -> NodeState | None:
        offers = []
        for node in nodes:
            for leaves in choices:
                offer = self._offers.offer(task_class, node, leaves) if task_class.mask[node.id] else None
                if offer is not None:
                    offers.append((offer[0], node.id, node, offer[1]))
        for _, _, node, units in sorted(offers, key=lambda one: one[:2]):
            if self._evict(units, task_class, node):
                return node
        return None

    def _ledger(self, task_class: TaskClass, leaves: list[QueueState]) -> CandidateHeap:
        key = (task_class.id, self._rule.scope, tuple(leaf.name for leaf in leaves))
        found = self._ledgers.get(key)
        if found is None:
            found = self._ledgers[key] = CandidateHeap(self._offers, task_class, leaves)
        return found

    def _evict(
        self, units: Sequence[EvictionUnit], task_class: TaskClass | None = None, node: NodeState | None = None
    ) -> bool:
        """Stop these, if each may go at its turn and the task may then come to the node."""
        if node is not None and node.id in self._avoided:
            return False
        savepoint = self._pool.savepoint()
        for unit in units:
            if not self._rule.gives(unit[0].job.queue):
                self._pool.rollback(savepoint)
                return False
            self._offers.evict([unit])
        if task_class is not None and node is not None and not self._fits(task_class, node):
            self._pool.rollback(savepoint)
            return False
        return True

    def _fits(self, task_class: TaskClass, node: NodeState) -> bool:
        if not task_class.fits(node, node.after_release):
            return False
        return not self._offers.minds(task_class) or self._pool.pod_affinity.allows(task_class, node)

    # ---------------------------------------------------------------- afterwards

    def _fit_queues(self, job: JobState) -> bool:
        """Where there is room but a queue may not hold more, somebody below that queue makes way."""
        while (full := quota.exceeded_queue(job.queue, job.nonpreemptible)) is not None:
            units = [
                (self._offers.cost(unit), unit)
                for leaf in self._rule.leaves()
                if full in leaf.path and self._rule.gives(leaf)
                for number in self._victims.by_queue.get(leaf, {})
                for unit in self._victims.units_on(self._pool.nodes[number], leaf, self._rule)
            ]
            if not units:
                return False
            best = min(units, key=lambda one: (one[0], one[1][0].job.name))[1]
            if not self._evict([best]):
                return False
        return True

    def _keep(self, job: JobState, stopped: list[TaskSlot], fairly: bool) -> list[TaskSlot]:
        """Whoever need not go after all stays, the most deserving first; a job stays whole or goes whole. `fairly`:
        only if it is fair with those who are left."""
        pool = self._pool
        kept: set[TaskSlot] = set()
        for victim, mine in _deserving(stopped):
            if not all(pool.can_cancel_eviction(member) for member in mine):
                continue
            savepoint = pool.savepoint()
            for member in mine:
                if not self._may_stay(member):
                    break
                pool.cancel_eviction(member)
            else:
                if (
                    quota.exceeded_queue(job.queue, job.nonpreemptible) is None
                    and quota.exceeded_queue(victim.queue, victim.nonpreemptible) is None
                    and (not fairly or self._rule.fair(_without(stopped, {*kept, *mine})))
                ):
                    kept.update(mine)
                    continue
            pool.rollback(savepoint)
        return _without(stopped, kept)

    def _may_stay(self, member: TaskSlot) -> bool:
        if not self._pool.can_cancel_eviction(member):
            return False
        if not self._pool.pod_affinity.watched or member.origin is None:
            return True
        return self._pool.pod_affinity.allows(self._placer.task_class(member), member.origin[0])

    def _move(self, stopped: list[TaskSlot]) -> None:
        """Another place for those who go, if there is one: the most deserving first, each job whole."""
        for victim, mine in _deserving(stopped):
            savepoint = self._pool.savepoint()
            if (
                not self._placer.replace(victim, mine)
                or quota.exceeded_queue(victim.queue, victim.nonpreemptible) is not None
            ):
                self._pool.rollback(savepoint)


def _without(members: Iterable[TaskSlot], some: set[TaskSlot]) -> list[TaskSlot]:
    return [member for member in members if member not in some]


def _deserving(members: Iterable[TaskSlot]) -> list[tuple[JobState, list[TaskSlot]]]:
    return sorted(by_job(members).items(), key=lambda item: item[0].order())
