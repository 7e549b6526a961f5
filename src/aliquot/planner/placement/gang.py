"""A place for every task that starts together, or for none.

Subgroups go outer to inner: each tries the sets of nodes its closeness allows, and the first in which all of it fits is
taken. Inside a set of nodes tasks choose one after the other; should that fail where another order or another node
for an earlier task would do, a bounded search looks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from aliquot.planner.jobs import BOUND, RESERVED, RUNNING, STOPPED, GroupNode, JobState, TaskSet, TaskSlot
from aliquot.planner.model import Amount, TopologyConstraint
from aliquot.planner.placement.node_state import DeviceAlloc, NodeState
from aliquot.planner.placement.pool_state import PoolState
from aliquot.planner.placement.task_class import PART, TaskClass, TaskClasses
from aliquot.planner.placement.topology import Stages, Topologies
from aliquot.planner.queues import quota

# Nodes looked at before a search for another arrangement gives up: work, not time, so that plans stay the same
# everywhere. Enough for every arrangement of a handful of tasks on a handful of nodes.
_SEARCH_WORK = 3000


class Placer:
    def __init__(self, room: PoolState, kinds: TaskClasses, topologies: Topologies) -> None:
        self.room = room
        self.kinds = kinds
        self._topologies = topologies
        self.failed: TaskClass | None = None  # what did not fit, when a placement failed
        # Makes room for a task where there is none, and says on which node; set while others may be stopped for it.
        self.rescue: Callable[[TaskClass, Iterable[NodeState] | None], NodeState | None] | None = None

    def kind(self, member: TaskSlot) -> TaskClass:
        found = member.kind
        if found is None:
            found = member.kind = self.kinds.of(member.task, member.job.source)
        return found

    def asked(self, members: Sequence[TaskSlot]) -> Amount:
        if len(members) == 1:
            return self.kind(members[0]).amount
        gpu = cpu = memory = 0
        for member in members:
            amount = self.kind(member).amount
            gpu, cpu, memory = gpu + amount[0], cpu + amount[1], memory + amount[2]
        return (gpu, cpu, memory)

    def least(self, members: Sequence[TaskSlot]) -> Amount:
        """What they would count if each had the device on which it counts least."""
        if len(members) == 1:
            return self.kind(members[0]).least
        amounts = [self.kind(member).least for member in members]
        return (sum(a[0] for a in amounts), sum(a[1] for a in amounts), sum(a[2] for a in amounts))

    def asks(self, job: JobState) -> Amount:
        """What it would start next."""
        return self.asked(job.next_tasks())

    def place(self, job: JobState, members: Sequence[TaskSlot], promise_only: bool = False) -> bool:
        """Place these tasks of a job, all or none. What was done stays in the room's log. When it fails, `failed` is
        what did not fit, or None where a queue may not hold it."""
        source = job.source
        self.failed = None
        mark = self.room.mark()
        if len(members) == 1 and not source.groups and source.closeness is None:
            if not self._one(members[0], promise_only):
                return False
        elif not self._branch(job, job.root, set(members), None, promise_only):
            self.room.undo(mark)
            return False
        elif not self._may_hold(members):
            self.room.undo(mark)
            self.failed = None
            return False
        if not promise_only and len(job.members) > 1:
            self._together(job, members)
        return True

    def _one(self, member: TaskSlot, promise_only: bool) -> bool:
        kind = self.kind(member)
        node = self._find(kind, None, promise_only)
        if node is None:
            self.failed = kind
            return False
        mark = self.room.mark()
        self._put(member, kind, node, promise_only)
        if not kind.varies:
            return True
        job = member.job
        if quota.exceeded_queue(job.queue, job.fixed) is None:
            return True
        # It counts for less on a larger device, and then it may be allowed.
        self.room.undo(mark)
        for size in sorted({size for one in self.room.nodes for size in one.sizes}, reverse=True):
            other = self.room.best(kind, [one for one in self.room.nodes if size in one.sizes], promise_only)
            if other is not None:
                self._put(member, kind, other, promise_only)
                if quota.exceeded_queue(job.queue, job.fixed) is None:
                    return True
                self.room.undo(mark)
        return False

    def _put(self, member: TaskSlot, kind: TaskClass, node: NodeState, promise_only: bool) -> None:
        if member.home is not None and self._best_at_home(member, kind, node):
            self.room.keep(member)
        else:
            self.room.place(member, kind, node, promise_only)

    def _best_at_home(self, member: TaskSlot, kind: TaskClass, node: NodeState) -> bool:
        """Whether the best place for somebody who was stopped in this cycle is where it was."""
        assert member.home is not None
        return member.home[0] is node and self.room.can_keep(member) and self.room.stays(member, kind)

    def replace(self, job: JobState, members: Sequence[TaskSlot]) -> bool:
        """Another place for tasks of a job that were stopped in this cycle: for all, or at least for as many as its
        minimum needs and then for any more. True when some have one."""
        mark = self.room.mark()
        if self._again(job, members):
            return True
        self.room.undo(mark)
        if len(members) == 1:
            return False
        needed: list[TaskSlot] = []
        for one in job.sets:
            here = [member for member in one.members if member in members]
            needed += here[: max(one.least - one.present, 0)]
        if needed and (len(needed) == len(members) or not self._again(job, needed)):
            self.room.undo(mark)
            return False
        some = bool(needed)
        for member in members:
            if member not in needed:
                inner = self.room.mark()
                if self._again(job, [member]):
                    some = True
                else:
                    self.room.undo(inner)
        return some

    def _again(self, job: JobState, members: Sequence[TaskSlot]) -> bool:
        source = job.source
        if source.groups or source.closeness is not None:
            placed = self._branch(job, job.root, set(members), None, False)
        else:
            placed = self._tasks(list(members), None, False)
        return placed and self._may_hold(members)

    def _may_hold(self, members: Iterable[TaskSlot]) -> bool:
        """Whether queues may hold what these count where they are now, for those that count by their device."""
        return all(
            not self.kind(member).varies or quota.exceeded_queue(member.job.queue, member.job.fixed) is None
            for member in members
        )

    def _together(self, job: JobState, members: Sequence[TaskSlot]) -> None:
        """A job whose minimum cannot all start now starts nothing yet."""
        if not any(member.state == RESERVED for member in job.members):
            return
        for one in job.sets:
            started = sum(member.state in (BOUND, RUNNING) for member in one.members)
            if started < min(one.least, one.present):
                break
        else:
            return
        for member in members:
            if member.state == BOUND:
                self.room.defer(member)

    def _branch(
        self, job: JobState, branch: GroupNode, wanted: set[TaskSlot], outer: Stages | None, promise_only: bool
    ) -> bool:
        inside = [member for one in branch.all_sets() for member in one.members]
        mine = [member for member in inside if member in wanted]
        if not mine:
            return True

        def attempt(stages: Stages | None) -> bool:
            return all(self._branch(job, child, wanted, stages, promise_only) for child in branch.branches) and all(
                self._set(one, wanted, stages, promise_only) for one in sorted(branch.sets, key=TaskSet.order)
            )

        if self._first(self._sets_of_nodes(branch.closeness, mine, inside, outer), attempt):
            return True
        # One subgroup may have taken what only another could use.
        free = branch.closeness is None and not branch.branches and all(one.closeness is None for one in branch.sets)
        return free and len(branch.sets) > 1 and self.rescue is None and self._search(mine, outer, promise_only)

    def _set(self, one: TaskSet, wanted: set[TaskSlot], outer: Stages | None, promise_only: bool) -> bool:
        members = [member for member in one.members if member in wanted]
        if not members:
            return True
        return self._first(
            self._sets_of_nodes(one.closeness, members, one.members, outer),
            lambda stages: self._tasks(members, stages, promise_only),
        )

    def _first(self, choices: Iterable[Stages | None], attempt: Callable[[Stages | None], bool]) -> bool:
        """The first set of nodes that does; where others are stopped for it, the one that costs them least."""
        best: tuple[tuple[int, int], Stages | None] | None = None
        only = isinstance(choices, list) and len(choices) == 1
        for stages in choices:
            mark = self.room.mark()
            if attempt(stages):
                if only or self.rescue is None:
                    return True
                stopped = [member for member in self.room.since(mark) if member.state == STOPPED]
                cost = (len(stopped), sum(member.amount[0] for member in stopped))
                if cost == (0, 0):
                    return True
                if best is None or cost < best[0]:
                    best = (cost, stages)
            self.room.undo(mark)
        return best is not None and attempt(best[1])

    def _sets_of_nodes(
        self,
        closeness: TopologyConstraint | None,
        members: Sequence[TaskSlot],
        inside: Sequence[TaskSlot],
        outer: Stages | None,
    ) -> Iterable[Stages | None]:
        if closeness is None or not (closeness.required or closeness.preferred):
            return [outer]
        held = [member.node for member in inside if member.state <= RUNNING and member.node is not None]
        mask = self.kind(members[0]).mask
        nodes = self.room.nodes if outer is None else [node for stage in outer for node in stage]
        self.failed = self.kind(members[0])
        return self._topologies.candidates(
            closeness, self.asked(members), [node for node in nodes if mask[node.id]], held, self.rescue is None
        )

    def _tasks(self, members: list[TaskSlot], stages: Stages | None, promise_only: bool) -> bool:
        """Each task the best node, one after the other; if that fails, look for another arrangement."""
        mark = self.room.mark()
        for member in members:
            kind = self.kind(member)
            node = self._find(kind, stages, promise_only)
            if node is None:
                self.failed = kind
                self.room.undo(mark)
                return self._search(members, stages, promise_only)
            self._put(member, kind, node, promise_only)
        return True

    def _find(self, kind: TaskClass, stages: Stages | None, promise_only: bool) -> NodeState | None:
        if stages is None:
            found = self.room.find(kind, promise_only)
            return self.rescue(kind, None) if found is None and self.rescue is not None else found
        for nodes in stages:
            found = self.room.best(kind, nodes, promise_only)
            if found is not None:
                return found
        return self.rescue(kind, [node for nodes in stages for node in nodes]) if self.rescue is not None else None

    def _search(self, members: list[TaskSlot], stages: Stages | None, promise_only: bool) -> bool:
        """Another arrangement. Tasks that are alike and do not mind their neighbours have none: what one of them
        leaves to the next does not depend on which node it takes, unless each has parts of several devices."""
        kinds = {self.kind(member).id for member in members}
        first = self.kind(members[0])
        several = first.form == PART and first.devices > 1
        if len(members) == 1 or (len(kinds) == 1 and first.near is None and first.apart is None and not several):
            return False
        nodes = self.room.nodes if stages is None else [node for stage in stages for node in stage]
        return self._arrange(self._hardest_first(members), 0, nodes, [_SEARCH_WORK], promise_only)

    def arrange(self, members: Sequence[TaskSlot]) -> bool:
        """Places for tasks of several jobs."""
        mark = self.room.mark()
        # Whoever must be near another comes after it.
        order = sorted(self._hardest_first(members), key=lambda member: member.job.source.near is not None)
        jobs = list({member.job: None for member in members})
        found = self._arrange(order, 0, self.room.nodes, [_SEARCH_WORK], promise_only=True, jobs=jobs)
        if found and self._may_hold(members):
            return True
        self.room.undo(mark)
        return False

    def _hardest_first(self, members: Sequence[TaskSlot]) -> list[TaskSlot]:
        return sorted(members, key=lambda m: (*(-a for a in self.kind(m).amount), m.task.name))

    def _is_close(self, branch: GroupNode) -> bool:
        """Whether those who must be in one part of the cluster are."""
        parts: list[GroupNode | TaskSet] = [branch, *branch.sets]
        for part in parts:
            if part.closeness is not None:
                sets = [part] if isinstance(part, TaskSet) else list(part.all_sets())
                held = [one.node for each in sets for one in each.members if one.state <= RUNNING and one.node]
                if not self._topologies.holds(part.closeness, held):
                    return False
        return all(map(self._is_close, branch.branches))

    def _arrange(
        self,
        members: list[TaskSlot],
        at: int,
        nodes: Sequence[NodeState],
        work: list[int],
        promise_only: bool,
        jobs: Sequence[JobState] = (),
    ) -> bool:
        """`jobs`: those whose closeness the nodes do not settle."""
        if at == len(members):
            return all(self._is_close(job.root) for job in jobs)
        member = members[at]
        kind = self.kind(member)
        open_ = [node for node in nodes if kind.mask[node.id] and kind.fits(node, node.soon)]
        work[0] -= len(nodes)
        open_.sort(key=lambda node: self.room.preference(kind, node))
        for node in open_:
            if not self.room.neighbours.allows(kind, node):
                continue
            for rows in _ways(kind, node):
                if work[0] <= 0:
                    return False
                mark = self.room.mark()
                if member.home is not None and member.home[:2] == (node, rows) and self.room.can_keep(member):
                    self.room.keep(member)
                else:
                    self.room.take(member, kind, node, rows, promise_only)
                if self._arrange(members, at + 1, nodes, work, promise_only, jobs):
                    return True
                self.room.undo(mark)
        return False


def _ways(kind: TaskClass, node: NodeState) -> list[tuple[DeviceAlloc, ...]]:
    """Devices it could have on a node. Those that are equally full are alike, and so are all whole ones."""
    if kind.form != PART:
        rows = kind.open_rows(node, node.soon)
        return [] if rows is None else [tuple(rows)]
    soon = node.soon
    fitting = []
    for row, size in enumerate(node.sizes):
        milli, mib = kind.need(size)
        if soon.milli[row] >= milli and soon.mib[row] >= mib and not (node.profiles and node.profiles[row]):
            fitting.append(((soon.milli[row], soon.mib[row], size), (row, milli, mib)))
    fitting.sort()
    ways: dict[tuple[object, ...], tuple[DeviceAlloc, ...]] = {}
    for some in combinations(fitting, kind.devices):
        ways.setdefault(tuple(like for like, _ in some), tuple(row for _, row in some))
    return list(ways.values())
