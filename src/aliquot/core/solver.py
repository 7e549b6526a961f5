"""Room for a job at the expense of others, with as little disruption as possible.

One solver for the three rules of `victims`. First it counts: what cannot be enough is refused without a search. Then
tasks choose nodes one after the other, a free one where there is one, else the node that is cheapest to clear. Costs
are kept per kind of task and queue in heaps, and worked out again only for nodes that changed; so a thousand jobs that
take one GPU each, or one job that takes a thousand, cost about the same per GPU. In the end whoever need not go stays,
and whoever goes is given another place if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from heapq import heapify, heappop, heappush, heapreplace
from itertools import combinations
from typing import TYPE_CHECKING

from aliquot.core import gate
from aliquot.core.jobs import RUNNING, STOPPED, JobState, Member
from aliquot.core.kinds import WHOLE, Kind
from aliquot.core.model import GPU
from aliquot.core.room import Mark, Room
from aliquot.core.rows import NodeState, View
from aliquot.core.tree import QueueState
from aliquot.core.victims import Consolidate, Cost, Preempt, Rule, Tenants, Unit, by_job

if TYPE_CHECKING:
    from aliquot.core.scene import Scene

Offer = tuple[Cost, list[Unit]]
_NOBODY: frozenset[Member] = frozenset()
# Up to this many units, all ways to choose among them are tried before a job is refused, and this many ways at most:
# work, not time, so that plans are the same everywhere.
_FEW = 12
_WAYS_TRIED = 200


class Solver:
    def __init__(self, scene: Scene, tenants: Tenants, rule: Rule, ledgers: dict[object, Ledger]) -> None:
        self._scene = scene
        self._room: Room = scene.room
        self._placer = scene.placer
        self._tenants = tenants
        self._rule = rule
        self._ledgers = ledgers
        self._costs = scene.costs
        self._by_priority = rule.step == "preempt"
        self._many = False  # whether several queues are looked at together
        bound = scene.policy.disruption_bound
        self._most = None if bound is None or rule.owed else bound * max(rule.asked[0], 1)

    def solve(self, members: Sequence[Member]) -> list[Member] | None:
        """Place these tasks; who had to make way, or None. What was done stays in the room's log."""
        job, placer = self._rule.job, self._placer
        mark = self._room.mark()
        placer.rescue = self._clear
        try:
            placed = placer.place(job, members, promise_only=True)
        finally:
            placer.rescue = None
        if placed and self._fit_queues(job):
            found = self._finish(mark, members)
            if found is not None:
                return found
        self._room.undo(mark)
        return self._exhaust(members)

    def _finish(self, mark: Mark, members: Sequence[Member]) -> list[Member] | None:
        """Spare whom we can, and see whether the whole is allowed."""
        job, room = self._rule.job, self._room
        stopped = self._keep(job, [member for member in room.since(mark) if member.state == STOPPED])
        self._move(stopped)
        stopped = [member for member in stopped if member.state != RUNNING]
        if not self._allowed(job, stopped):
            return None
        if not stopped:  # nothing had to be done for it: it need not wait either
            room.undo(mark)
            return [] if self._placer.place(job, members) else None
        return stopped

    def _allowed(self, job: JobState, stopped: Sequence[Member]) -> bool:
        lost = [member for member in stopped if member.state == STOPPED]
        if gate.broken(job.queue, job.fixed) is not None or (lost and isinstance(self._rule, Consolidate)):
            return False
        if self._most is not None and sum(member.amount[0] for member in stopped) > self._most:
            return False
        return self._rule.fair(lost)

    def _exhaust(self, members: Sequence[Member]) -> list[Member] | None:
        """Where there are few who could go, try all ways, the smallest first: what is refused is then truly refused."""
        room, job = self._room, self._rule.job
        units = self._all_units()
        if not units or len(units) > _FEW:
            return None
        mark = room.mark()
        self._stop_all(units)
        helps = self._placer.place(job, members, promise_only=True)
        room.undo(mark)
        if not helps:  # if even that does not do, nothing does
            return None
        tried = 0
        for count in range(1, len(units) + 1):
            for some in combinations(units, count):
                tried += 1
                if tried > _WAYS_TRIED:
                    return None
                mark = room.mark()
                self._stop_all(some)
                if self._placer.place(job, members, promise_only=True) and self._fit_queues(job):
                    found = self._finish(mark, members)
                    if found is not None:
                        return found
                room.undo(mark)
                found = self._rearrange(members, some)
                if found is not None:
                    return found
        return None

    def _rearrange(self, members: Sequence[Member], units: Sequence[Unit]) -> list[Member] | None:
        """New places for all of them at once, whoever comes first."""
        mark = self._room.mark()
        self._stop_all(units)
        stopped = [member for member in self._room.since(mark) if member.state == STOPPED]
        if (
            self._placer.arrange([*members, *stopped])
            and gate.broken(self._rule.job.queue, self._rule.job.fixed) is None
        ):
            stopped = [member for member in stopped if member.state != RUNNING]
            if self._allowed(self._rule.job, stopped):
                return stopped
        self._room.undo(mark)
        return None

    def _stop_all(self, units: Iterable[Unit]) -> None:
        for unit in units:
            for member in unit:
                if member.state == RUNNING:
                    self._room.stop(member)

    def _all_units(self) -> list[Unit]:
        """Everybody who could go, cheapest first."""
        units: dict[Unit, None] = {}
        rule = self._rule
        for leaf, numbers in self._tenants.by_queue.items():
            if isinstance(rule, Preempt) and leaf is not rule.job.queue:
                continue
            for number in numbers:
                units |= dict.fromkeys(self._tenants.units_on(self._room.nodes[number], leaf, rule))
                if len(units) > _FEW:
                    return list(units)
        return sorted(units, key=lambda unit: (self._cost(unit), unit[0].task.name))

    # ---------------------------------------------------------------- choosing whom to stop

    def _clear(self, kind: Kind, nodes: Iterable[NodeState] | None) -> NodeState | None:
        """Stop somebody so that a task of this kind fits on some node, and say which."""
        groups = self._by_turn([leaf for leaf in self._rule.leaves() if self._rule.gives(leaf)])
        for leaves in groups:
            found = self._cheapest(kind, [[leaf] for leaf in leaves], nodes)
            if found is not None:
                return found
        together = [leaf for leaves in groups for leaf in leaves]
        return self._cheapest(kind, [together], nodes) if len(together) > 1 else None

    def _by_turn(self, leaves: list[QueueState]) -> list[list[QueueState]]:
        """Queues by how far they are above what they may keep, furthest first; those alike together."""
        if len(leaves) <= 1:
            return [leaves] if leaves else []
        keyed: dict[tuple[float, ...], list[QueueState]] = {}
        for leaf in leaves:
            keyed.setdefault(tuple(-one.saturation() for one in leaf.path[::-1]), []).append(leaf)
        return [keyed[key] for key in sorted(keyed)]

    def _cheapest(
        self, kind: Kind, choices: list[list[QueueState]], nodes: Iterable[NodeState] | None
    ) -> NodeState | None:
        """Clear the cheapest node, each time with units of one of these lists of queues."""
        if nodes is not None:
            return self._cheapest_of(kind, choices, nodes)
        ledgers = [self._ledger(kind, leaves) for leaves in choices]
        for ledger in ledgers:
            ledger.refresh(self)
        found = None
        while True:
            offers = [(offer, i) for i, ledger in enumerate(ledgers) if (offer := ledger.best(self))]
            if not offers:
                break
            offer, i = min(offers, key=lambda one: (one[0][0], one[0][1].id))
            if self._stop(offer[2], kind, offer[1]):
                found = offer[1]
                break
            ledgers[i].set_aside()  # not allowed now; perhaps for somebody else
        for ledger in ledgers:
            ledger.restore()
        return found

    def _cheapest_of(self, kind: Kind, choices: list[list[QueueState]], nodes: Iterable[NodeState]) -> NodeState | None:
        offers = []
        for node in nodes:
            for leaves in choices:
                offer = self.offer(kind, node, leaves) if kind.mask[node.id] else None
                if offer is not None:
                    offers.append((offer[0], node.id, node, offer[1]))
        for _, _, node, units in sorted(offers, key=lambda one: one[:2]):
            if self._stop(units, kind, node):
                return node
        return None

    def _ledger(self, kind: Kind, leaves: list[QueueState]) -> Ledger:
        key = (kind.id, self._rule.scope, tuple(leaf.name for leaf in leaves))
        found = self._ledgers.get(key)
        if found is None:
            found = self._ledgers[key] = Ledger(self, kind, leaves)
        return found

    def candidates(self, leaves: list[QueueState]) -> list[NodeState]:
        """Nodes with tasks of these queues."""
        numbers: dict[int, None] = {}
        for leaf in leaves:
            numbers |= self._tenants.by_queue.get(leaf, {})
        return [self._room.nodes[number] for number in numbers]

    @property
    def gained(self) -> list[NodeState]:
        return self._room.gained

    def offer(self, kind: Kind, node: NodeState, leaves: list[QueueState]) -> Offer | None:
        """The cheapest units that make room on a node: as few as can be, the smallest that is large enough last."""
        units = [unit for leaf in leaves for unit in self._tenants.units_on(node, leaf, self._rule)]
        if self._minds(kind):
            return self._pick_by_trial(kind, node, units)
        self._many = len(leaves) > 1
        best = self._pick_whole(kind, node, units) if kind.form == WHOLE and not self._many else None
        if best is not None:
            return (*best[0], self._room.rank(kind, node)), best[1]
        best = self._pick(kind, node, units)
        single = [unit for unit in units if len(unit) == 1]
        if len(single) < len(units) and single:  # a few spare tasks may do where a whole job would go otherwise
            other = self._pick(kind, node, single)
            if other is not None and (best is None or other[0] < best[0]):
                best = other
        if best is None:
            return None
        return (*best[0], self._room.rank(kind, node)), best[1]

    def _cost(self, members: Sequence[Member]) -> Cost:
        return self._costs.of(members, self._by_priority)

    def _pick(self, kind: Kind, node: NodeState, units: Sequence[Unit]) -> tuple[Cost, list[Unit]] | None:
        rule = self._rule
        view = node.soon.copy()
        left = [(unit, _rows_here(unit, node)) for unit in units]
        chosen: list[Unit] = []
        gone: set[Member] = set()
        taken: dict[QueueState, list[int]] = {}
        while left:
            missing = kind.devices - view.whole if kind.form == WHOLE else 0
            allowed = [one for one in left if rule.gives(one[0][0].job.queue, taken)] if taken else left
            enough = [unit for unit, rows in allowed if rows >= missing and self._does(kind, node, view, unit, gone)]
            if enough:
                chosen.append(min(enough, key=lambda unit: (self._cost(unit), unit[0].job.name)))
                everybody = chosen[0] if len(chosen) == 1 else list(dict.fromkeys(m for one in chosen for m in one))
                return self._cost(everybody), chosen
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

    def _pick_whole(self, kind: Kind, node: NodeState, units: Sequence[Unit]) -> Offer | None:
        """The same for the common case, by counting: single tasks of one queue that have whole devices. None where it
        is not that simple."""
        missing = kind.devices - node.soon.whole
        sized: list[tuple[int, Cost, str, Unit]] = []
        for unit in units:
            rows = unit[0].rows
            if len(unit) > 1 or not rows or rows[0][1] != GPU:
                return None
            sized.append((-len(rows), self._cost(unit), unit[0].job.name, unit))
        sized.sort()
        chosen: list[Unit] = []
        while missing > 0:
            enough = [one for one in sized if -one[0] >= missing]
            if not sized:
                return None
            best = min(enough, key=lambda one: one[1:3]) if enough else sized[0]
            sized.remove(best)
            chosen.append(best[3])
            missing += best[0]
        view = node.soon.copy()
        for unit in chosen:
            _free(node, view, unit, _NOBODY)
        if not chosen or not kind.fits(node, view):
            return None
        return self._cost([unit[0] for unit in chosen]), chosen

    def _does(self, kind: Kind, node: NodeState, view: View, unit: Unit, gone: set[Member]) -> bool:
        """Whether the task fits once this unit is gone too."""
        trial = view.copy()
        _free(node, trial, unit, gone)
        return kind.fits(node, trial)

    def _weight(self, unit: Unit, rows: int, taken: dict[QueueState, list[int]]) -> tuple[object, ...]:
        """Who goes first where one is not enough: of the queue furthest above its due, the largest, the cheapest."""
        queue = unit[0].job.queue
        standing = tuple(one.saturation(taken.get(one)) for one in queue.path[::-1]) if self._many else ()
        return (standing, rows, tuple(-one for one in self._cost(unit)), unit[0].job.name)

    def _minds(self, kind: Kind) -> bool:
        """Whether it matters who is near."""
        return bool(kind.near or kind.apart or self._room.neighbours.watched)

    def _pick_by_trial(self, kind: Kind, node: NodeState, units: list[Unit]) -> Offer | None:
        """Where it matters who is near, whoever goes may be in the way as a neighbour too: stop one after the other
        until the task may come."""
        chosen: list[Unit] = []
        mark = self._room.mark()
        found = False
        for unit in sorted(units, key=lambda unit: (self._cost(unit), unit[0].job.name)):
            chosen.append(unit)
            self._stop_all([unit])
            if kind.fits(node, node.soon) and self._room.neighbours.allows(kind, node):
                found = True
                break
        self._room.undo(mark)
        if not found:
            return None
        everybody = list(dict.fromkeys(member for unit in chosen for member in unit))
        return (*self._cost(everybody), self._room.rank(kind, node)), chosen

    def _stop(self, units: Sequence[Unit], kind: Kind | None = None, node: NodeState | None = None) -> bool:
        """Stop these, if each may go at its turn and the task may then come to the node."""
        mark = self._room.mark()
        for unit in units:
            if not self._rule.gives(unit[0].job.queue):
                self._room.undo(mark)
                return False
            self._stop_all([unit])
        minds = kind is not None and node is not None and self._minds(kind)
        if minds and not self._room.neighbours.allows(kind, node):  # type: ignore[arg-type]  # they were asked for
            self._room.undo(mark)
            return False
        return True

    # ---------------------------------------------------------------- afterwards

    def _fit_queues(self, job: JobState) -> bool:
        """Where there is room but a queue may not hold more, somebody below that queue makes way."""
        while (full := gate.broken(job.queue, job.fixed)) is not None:
            units = [
                (self._cost(unit), unit)
                for leaf in self._rule.leaves()
                if full in leaf.path and self._rule.gives(leaf)
                for number in self._tenants.by_queue.get(leaf, {})
                for unit in self._tenants.units_on(self._room.nodes[number], leaf, self._rule)
            ]
            if not units:
                return False
            best = min(units, key=lambda one: (one[0], one[1][0].job.name))[1]
            if not self._stop([best]):
                return False
        return True

    def _keep(self, job: JobState, stopped: list[Member]) -> list[Member]:
        """Whoever need not go after all stays, the most deserving first; a job stays whole or goes whole."""
        room = self._room
        kept: set[Member] = set()
        for victim, mine in _deserving(stopped):
            if not all(room.can_keep(member) for member in mine):
                continue
            mark = room.mark()
            for member in mine:
                if not self._may_stay(member):
                    break
                room.keep(member)
            else:
                if gate.broken(job.queue, job.fixed) is None and gate.broken(victim.queue, victim.fixed) is None:
                    kept.update(mine)
                    continue
            room.undo(mark)
        return [member for member in stopped if member not in kept]

    def _may_stay(self, member: Member) -> bool:
        if not self._room.can_keep(member):
            return False
        if not self._room.neighbours.watched or member.home is None:
            return True
        return self._room.neighbours.allows(self._placer.kind(member), member.home[0])

    def _move(self, stopped: list[Member]) -> None:
        """Another place for those who go, if there is one: the most deserving first, each job whole."""
        for victim, mine in _deserving(stopped):
            mark = self._room.mark()
            if not self._placer.replace(victim, mine) or gate.broken(victim.queue, victim.fixed) is not None:
                self._room.undo(mark)


def _deserving(members: Iterable[Member]) -> list[tuple[JobState, list[Member]]]:
    return sorted(by_job(members).items(), key=lambda item: item[0].order())


def _rows_here(unit: Unit, node: NodeState) -> int:
    return sum(len(member.rows) for member in unit if member.node is node)


def _free(node: NodeState, view: View, unit: Iterable[Member], gone: Set[Member]) -> None:
    for member in unit:
        if member.node is node and member not in gone:
            request = member.task.request
            node.give(view, request.cpu, request.memory, member.rows)


class Ledger:
    """What clearing each node for a kind of task would cost, cheapest first. An offer holds until its node changes."""

    def __init__(self, solver: Solver, kind: Kind, leaves: list[QueueState]) -> None:
        self._kind = kind
        self._leaves = leaves
        self._heap: list[tuple[Cost, int]] = []
        self._aside: list[tuple[Cost, int]] = []
        self._nodes: dict[int, NodeState] = {}
        self._offers: dict[int, tuple[int, Offer | None]] = {}  # by node: the version it was made for, and itself
        self._seen = len(solver.gained)
        for node in solver.candidates(leaves):
            if kind.mask[node.id]:
                self._nodes[node.id] = node
                offer = self._ask(solver, node)
                if offer is not None:
                    self._heap.append((offer[0], node.id))
        heapify(self._heap)

    def _ask(self, solver: Solver, node: NodeState) -> Offer | None:
        known = self._offers.get(node.id)
        if known is not None and known[0] == node.version:
            return known[1]
        offer = solver.offer(self._kind, node, self._leaves)
        self._offers[node.id] = (node.version, offer)
        return offer

    def refresh(self, solver: Solver) -> None:
        """Where somebody was stopped it may be cheaper now, or possible at all."""
        gained = solver.gained
        if self._seen < len(gained):
            for node in dict.fromkeys(gained[self._seen :]):
                if node.id in self._nodes:
                    before = self._offers.get(node.id)
                    offer = self._ask(solver, node)
                    if offer is not None and (before is None or before[1] is None or before[1][0] != offer[0]):
                        heappush(self._heap, (offer[0], node.id))
            self._seen = len(gained)

    def best(self, solver: Solver) -> tuple[Cost, NodeState, list[Unit]] | None:
        heap = self._heap
        while heap:
            known, number = heap[0]
            node = self._nodes[number]
            offer = self._ask(solver, node)
            if offer is None:
                heappop(heap)
            elif offer[0] != known:
                heapreplace(heap, (offer[0], number))
            else:
                return offer[0], node, offer[1]
        return None

    def set_aside(self) -> None:
        self._aside.append(heappop(self._heap))

    def restore(self) -> None:
        for entry in self._aside:
            heappush(self._heap, entry)
        self._aside.clear()
