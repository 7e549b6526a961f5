"""A place for every task that starts together, or for none.

Subgroups go outer to inner: each tries the sets of nodes its closeness allows, and the first in which all of it fits is
taken. Inside a set of nodes tasks choose one after the other; should that fail where another order or another node
for an earlier task would do, a bounded search looks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from aliquot.planner.jobs import BOUND, NOMINATED, RELEASING, RUNNING, GroupNode, JobState, TaskSet, TaskSlot
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
    def __init__(self, pool: PoolState, task_classes: TaskClasses, topologies: Topologies) -> None:
        self.pool = pool
        self.task_classes = task_classes
        self._topologies = topologies
        self.failed: TaskClass | None = None  # what did not fit, when a placement failed
        # Makes room for a task where there is none, and says on which node; set while others may be stopped for it.
        self.rescue: Callable[[TaskClass, Iterable[NodeState] | None], NodeState | None] | None = None

    def task_class(self, member: TaskSlot) -> TaskClass:
        found = member.task_class
        if found is None:
            found = member.task_class = self.task_classes.of(member.task, member.job.source)
        return found

    def requested(self, members: Sequence[TaskSlot]) -> Amount:
        if len(members) == 1:
            return self.task_class(members[0]).amount
        gpu = cpu = memory = 0
        for member in members:
            amount = self.task_class(member).amount
            gpu, cpu, memory = gpu + amount[0], cpu + amount[1], memory + amount[2]
        return (gpu, cpu, memory)

    def min_requested(self, members: Sequence[TaskSlot]) -> Amount:
        """What they would count if each had the device on which it counts least."""
        if len(members) == 1:
            return self.task_class(members[0]).least
        amounts = [self.task_class(member).least for member in members]
        return (sum(a[0] for a in amounts), sum(a[1] for a in amounts), sum(a[2] for a in amounts))

    def next_request(self, job: JobState) -> Amount:
        """What it would start next."""
        return self.requested(job.next_tasks())

    def place(self, job: JobState, members: Sequence[TaskSlot], nominate_only: bool = False) -> bool:
        """Place these tasks of a job, all or none. What was done stays in the room's log. When it fails, `failed` is
        what did not fit, or None where a queue may not hold it."""
        source = job.source
        self.failed = None
        savepoint = self.pool.savepoint()
        if len(members) == 1 and not source.subgroups and source.topology_constraint is None:
            if not self._one(members[0], nominate_only):
                return False
        elif not self._branch(job, job.root, set(members), None, nominate_only):
            self.pool.rollback(savepoint)
            return False
        elif not self._may_hold(members):
            self.pool.rollback(savepoint)
            self.failed = None
            return False
        if not nominate_only and len(job.members) > 1:
            self._together(job, members)
        return True

    def _one(self, member: TaskSlot, nominate_only: bool) -> bool:
        task_class = self.task_class(member)
        node = self._find(task_class, None, nominate_only)
        if node is None:
            self.failed = task_class
            return False
        savepoint = self.pool.savepoint()
        self._put(member, task_class, node, nominate_only)
        if not task_class.varies:
            return True
        job = member.job
        if quota.exceeded_queue(job.queue, job.nonpreemptible) is None:
            return True
        # It counts for less on a larger device, and then it may be allowed.
        self.pool.rollback(savepoint)
        for size in sorted({size for one in self.pool.nodes for size in one.sizes}, reverse=True):
            other = self.pool.best(task_class, [one for one in self.pool.nodes if size in one.sizes], nominate_only)
            if other is not None:
                self._put(member, task_class, other, nominate_only)
                if quota.exceeded_queue(job.queue, job.nonpreemptible) is None:
                    return True
                self.pool.rollback(savepoint)
        return False

    def _put(self, member: TaskSlot, task_class: TaskClass, node: NodeState, nominate_only: bool) -> None:
        if member.origin is not None and self._best_at_home(member, task_class, node):
            self.pool.cancel_eviction(member)
        else:
            self.pool.place(member, task_class, node, nominate_only)

    def _best_at_home(self, member: TaskSlot, task_class: TaskClass, node: NodeState) -> bool:
        """Whether the best place for somebody who was stopped in this cycle is where it was."""
        assert member.origin is not None
        return (
            member.origin[0] is node and self.pool.can_cancel_eviction(member) and self.pool.stays(member, task_class)
        )

    def replace(self, job: JobState, members: Sequence[TaskSlot]) -> bool:
        """Another place for tasks of a job that were stopped in this cycle: for all, or at least for as many as its
        minimum needs and then for any more. True when some have one."""
        savepoint = self.pool.savepoint()
        if self._again(job, members):
            return True
        self.pool.rollback(savepoint)
        if len(members) == 1:
            return False
        needed: list[TaskSlot] = []
        for one in job.task_sets:
            here = [member for member in one.members if member in members]
            needed += here[: max(one.min_available - one.present, 0)]
        if needed and (len(needed) == len(members) or not self._again(job, needed)):
            self.pool.rollback(savepoint)
            return False
        some = bool(needed)
        for member in members:
            if member not in needed:
                inner = self.pool.savepoint()
                if self._again(job, [member]):
                    some = True
                else:
                    self.pool.rollback(inner)
        return some

    def _again(self, job: JobState, members: Sequence[TaskSlot]) -> bool:
        source = job.source
        if source.subgroups or source.topology_constraint is not None:
            placed = self._branch(job, job.root, set(members), None, False)
        else:
            placed = self._tasks(list(members), None, False)
        return placed and self._may_hold(members)

    def _may_hold(self, members: Iterable[TaskSlot]) -> bool:
        """Whether queues may hold what these count where they are now, for those that count by their device."""
        return all(
            not self.task_class(member).varies
            or quota.exceeded_queue(member.job.queue, member.job.nonpreemptible) is None
            for member in members
        )

    def _together(self, job: JobState, members: Sequence[TaskSlot]) -> None:
        """A job whose minimum cannot all start now starts nothing yet."""
        if not any(member.state == NOMINATED for member in job.members):
            return
        for one in job.task_sets:
            started = sum(member.state in (BOUND, RUNNING) for member in one.members)
            if started < min(one.min_available, one.present):
                break
        else:
            return
        for member in members:
            if member.state == BOUND:
                self.pool.defer(member)

    def _branch(
        self, job: JobState, branch: GroupNode, wanted: set[TaskSlot], outer: Stages | None, nominate_only: bool
    ) -> bool:
        inside = [member for one in branch.all_sets() for member in one.members]
        mine = [member for member in inside if member in wanted]
        if not mine:
            return True

        def attempt(stages: Stages | None) -> bool:
            return all(self._branch(job, child, wanted, stages, nominate_only) for child in branch.branches) and all(
                self._set(one, wanted, stages, nominate_only) for one in sorted(branch.task_sets, key=TaskSet.order)
            )

        if self._first(self._sets_of_nodes(branch.topology_constraint, mine, inside, outer), attempt):
            return True
        # One subgroup may have taken what only another could use.
        free = (
            branch.topology_constraint is None
            and not branch.branches
            and all(one.topology_constraint is None for one in branch.task_sets)
        )
        return free and len(branch.task_sets) > 1 and self.rescue is None and self._search(mine, outer, nominate_only)

    def _set(self, one: TaskSet, wanted: set[TaskSlot], outer: Stages | None, nominate_only: bool) -> bool:
        members = [member for member in one.members if member in wanted]
        if not members:
            return True
        return self._first(
            self._sets_of_nodes(one.topology_constraint, members, one.members, outer),
            lambda stages: self._tasks(members, stages, nominate_only),
        )

    def _first(self, choices: Iterable[Stages | None], attempt: Callable[[Stages | None], bool]) -> bool:
        """The first set of nodes that does; where others are stopped for it, the one that costs them least."""
        best: tuple[tuple[int, int], Stages | None] | None = None
        only = isinstance(choices, list) and len(choices) == 1
        for stages in choices:
            savepoint = self.pool.savepoint()
            if attempt(stages):
                if only or self.rescue is None:
                    return True
                stopped = [member for member in self.pool.since(savepoint) if member.state == RELEASING]
                cost = (len(stopped), sum(member.amount[0] for member in stopped))
                if cost == (0, 0):
                    return True
                if best is None or cost < best[0]:
                    best = (cost, stages)
            self.pool.rollback(savepoint)
        return best is not None and attempt(best[1])

    def _sets_of_nodes(
        self,
        topology_constraint: TopologyConstraint | None,
        members: Sequence[TaskSlot],
        inside: Sequence[TaskSlot],
        outer: Stages | None,
    ) -> Iterable[Stages | None]:
        if topology_constraint is None or not (topology_constraint.required or topology_constraint.preferred):
            return [outer]
        held = [member.node for member in inside if member.state <= RUNNING and member.node is not None]
        mask = self.task_class(members[0]).mask
        nodes = self.pool.nodes if outer is None else [node for stage in outer for node in stage]
        self.failed = self.task_class(members[0])
        return self._topologies.candidates(
            topology_constraint,
            self.requested(members),
            [node for node in nodes if mask[node.id]],
            held,
            self.rescue is None,
        )

    def _tasks(self, members: list[TaskSlot], stages: Stages | None, nominate_only: bool) -> bool:
        """Each task the best node, one after the other; if that fails, look for another arrangement."""
        savepoint = self.pool.savepoint()
        for member in members:
            task_class = self.task_class(member)
            node = self._find(task_class, stages, nominate_only)
            if node is None:
                self.failed = task_class
                self.pool.rollback(savepoint)
                return self._search(members, stages, nominate_only)
            self._put(member, task_class, node, nominate_only)
        return True

    def _find(self, task_class: TaskClass, stages: Stages | None, nominate_only: bool) -> NodeState | None:
        if stages is None:
            found = self.pool.find(task_class, nominate_only)
            return self.rescue(task_class, None) if found is None and self.rescue is not None else found
        for nodes in stages:
            found = self.pool.best(task_class, nodes, nominate_only)
            if found is not None:
                return found
        return (
            self.rescue(task_class, [node for nodes in stages for node in nodes]) if self.rescue is not None else None
        )

    def _search(self, members: list[TaskSlot], stages: Stages | None, nominate_only: bool) -> bool:
        """Another arrangement. Tasks that are alike and do not mind their neighbours have none: what one of them
        leaves to the next does not depend on which node it takes, unless each has parts of several devices."""
        task_classes = {self.task_class(member).id for member in members}
        first = self.task_class(members[0])
        several = first.form == PART and first.devices > 1
        if len(members) == 1 or (
            len(task_classes) == 1 and first.pod_affinity is None and first.pod_anti_affinity is None and not several
        ):
            return False
        nodes = self.pool.nodes if stages is None else [node for stage in stages for node in stage]
        return self._arrange(self._hardest_first(members), 0, nodes, [_SEARCH_WORK], nominate_only)

    def arrange(self, members: Sequence[TaskSlot]) -> bool:
        """Places for tasks of several jobs."""
        savepoint = self.pool.savepoint()
        # Whoever must be near another comes after it.
        order = sorted(self._hardest_first(members), key=lambda member: member.job.source.pod_affinity is not None)
        jobs = list({member.job: None for member in members})
        found = self._arrange(order, 0, self.pool.nodes, [_SEARCH_WORK], nominate_only=True, jobs=jobs)
        if found and self._may_hold(members):
            return True
        self.pool.rollback(savepoint)
        return False

    def _hardest_first(self, members: Sequence[TaskSlot]) -> list[TaskSlot]:
        return sorted(members, key=lambda m: (*(-a for a in self.task_class(m).amount), m.task.name))

    def _is_close(self, branch: GroupNode) -> bool:
        """Whether those who must be in one part of the cluster are."""
        parts: list[GroupNode | TaskSet] = [branch, *branch.task_sets]
        for part in parts:
            if part.topology_constraint is not None:
                sets = [part] if isinstance(part, TaskSet) else list(part.all_sets())
                held = [one.node for each in sets for one in each.members if one.state <= RUNNING and one.node]
                if not self._topologies.holds(part.topology_constraint, held):
                    return False
        return all(map(self._is_close, branch.branches))

    def _arrange(
        self,
        members: list[TaskSlot],
        at: int,
        nodes: Sequence[NodeState],
        work: list[int],
        nominate_only: bool,
        jobs: Sequence[JobState] = (),
    ) -> bool:
        """`jobs`: those whose closeness the nodes do not settle."""
        if at == len(members):
            return all(self._is_close(job.root) for job in jobs)
        member = members[at]
        task_class = self.task_class(member)
        open_ = [node for node in nodes if task_class.mask[node.id] and task_class.fits(node, node.after_release)]
        work[0] -= len(nodes)
        open_.sort(key=lambda node: self.pool.preference(task_class, node))
        for node in open_:
            if not self.pool.pod_affinity.allows(task_class, node):
                continue
            for allocs in _ways(task_class, node):
                if work[0] <= 0:
                    return False
                savepoint = self.pool.savepoint()
                if (
                    member.origin is not None
                    and member.origin[:2] == (node, allocs)
                    and self.pool.can_cancel_eviction(member)
                ):
                    self.pool.cancel_eviction(member)
                else:
                    self.pool.take(member, task_class, node, allocs, nominate_only)
                if self._arrange(members, at + 1, nodes, work, nominate_only, jobs):
                    return True
                self.pool.rollback(savepoint)
        return False


def _ways(task_class: TaskClass, node: NodeState) -> list[tuple[DeviceAlloc, ...]]:
    """Devices it could have on a node. Those that are equally full are alike, and so are all whole ones."""
    if task_class.form != PART:
        allocs = task_class.find_devices(node, node.after_release)
        return [] if allocs is None else [tuple(allocs)]
    after_release = node.after_release
    fitting = []
    for row, size in enumerate(node.sizes):
        milli, mib = task_class.need(size)
        if (
            after_release.milli[row] >= milli
            and after_release.mib[row] >= mib
            and not (node.profiles and node.profiles[row])
        ):
            fitting.append(((after_release.milli[row], after_release.mib[row], size), (row, milli, mib)))
    fitting.sort()
    ways: dict[tuple[object, ...], tuple[DeviceAlloc, ...]] = {}
    for some in combinations(fitting, task_class.devices):
        ways.setdefault(tuple(like for like, _ in some), tuple(row for _, row in some))
    return list(ways.values())
