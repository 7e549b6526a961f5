"""Gang placement: all tasks that start together get a node, or none does.

Subgroups are placed from the outer to the inner. Each tries the sets of nodes that its topology constraint allows, and
takes the first in which all of it fits. Within a set of nodes tasks choose one after the other. If that fails, a
bounded search tries other orders and other nodes for the earlier tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from aliquot.planner.jobs import BOUND, NOMINATED, PRESENT, RELEASING, RUNNING, GroupNode, JobState, TaskSet, TaskSlot
from aliquot.planner.model import Amount, TopologyConstraint
from aliquot.planner.placement.node_state import DeviceAlloc, NodeState
from aliquot.planner.placement.pool_state import PoolState
from aliquot.planner.placement.task_class import FRACTION, TaskClass, TaskClasses
from aliquot.planner.placement.topology import Stages, Topologies
from aliquot.planner.queues import quota

# Nodes that a search looks at before it gives up. It is a bound on work, not on time, so that plans are the same on
# every machine. It allows every arrangement of a handful of tasks on a handful of nodes.
_SEARCH_WORK = 3000


class Placer:
    def __init__(self, pool: PoolState, task_classes: TaskClasses, topologies: Topologies) -> None:
        self.pool = pool
        self.task_classes = task_classes
        self._topologies = topologies
        self.failed: TaskClass | None = None  # what did not fit, when a placement failed
        # Evicts tasks so that a task of the class fits, and returns the node. Set while evictions are allowed.
        self.make_room: Callable[[TaskClass, Iterable[NodeState] | None], NodeState | None] | None = None

    def task_class(self, member: TaskSlot) -> TaskClass:
        task_class = member.task_class
        if task_class is None:
            task_class = member.task_class = self.task_classes.of(member.task, member.job.source)
        return task_class

    # ---------------------------------------------------------------- amounts

    def requested(self, members: Sequence[TaskSlot]) -> Amount:
        if len(members) == 1:
            return self.task_class(members[0]).amount
        gpu = cpu = memory = 0
        for member in members:
            amount = self.task_class(member).amount
            gpu, cpu, memory = gpu + amount[0], cpu + amount[1], memory + amount[2]
        return (gpu, cpu, memory)

    def min_requested(self, members: Sequence[TaskSlot]) -> Amount:
        """What the tasks would count against quota if each had the device on which it counts least."""
        if len(members) == 1:
            return self.task_class(members[0]).min_amount
        amounts = [self.task_class(member).min_amount for member in members]
        return (sum(a[0] for a in amounts), sum(a[1] for a in amounts), sum(a[2] for a in amounts))

    def next_request(self, job: JobState) -> Amount:
        """What the job would start next."""
        return self.requested(job.next_tasks())

    # ---------------------------------------------------------------- placing a job

    def place(self, job: JobState, members: Sequence[TaskSlot], nominate_only: bool = False) -> bool:
        """Place these tasks of a job, all or none. When it fails, `failed` is the class that did not fit, or None where
        a queue may not use that much."""
        source = job.source
        self.failed = None
        savepoint = self.pool.savepoint()
        if len(members) == 1 and not source.subgroups and source.topology_constraint is None:
            if not self._place_single(members[0], nominate_only):
                return False
        elif not self._place_group(job, job.root, set(members), None, nominate_only):
            self.pool.rollback(savepoint)
            return False
        elif not self._within_quota(members):
            self.pool.rollback(savepoint)
            self.failed = None
            return False
        if not nominate_only and len(job.members) > 1:
            self._defer_partial_gang(job, members)
        return True

    def _place_single(self, member: TaskSlot, nominate_only: bool) -> bool:
        task_class = self.task_class(member)
        node = self._find(task_class, None, nominate_only)
        if node is None:
            self.failed = task_class
            return False
        savepoint = self.pool.savepoint()
        self._place_on_node(member, task_class, node, nominate_only)
        if not task_class.varies:
            return True
        queue, nonpreemptible = member.job.queue, member.job.nonpreemptible
        if quota.exceeded_queue(queue, nonpreemptible) is None:
            return True
        # On a larger device it counts for less, and may then be within quota.
        self.pool.rollback(savepoint)
        nodes = self.pool.nodes
        for size in sorted({size for node in nodes for size in node.sizes}, reverse=True):
            other = self.pool.best(task_class, [node for node in nodes if size in node.sizes], nominate_only)
            if other is not None:
                self._place_on_node(member, task_class, other, nominate_only)
                if quota.exceeded_queue(queue, nonpreemptible) is None:
                    return True
                self.pool.rollback(savepoint)
        return False

    def _place_on_node(self, member: TaskSlot, task_class: TaskClass, node: NodeState, nominate_only: bool) -> None:
        if member.origin is not None and self._belongs_where_it_was(member, task_class, node):
            self.pool.cancel_eviction(member)
        else:
            self.pool.place(member, task_class, node, nominate_only)

    def _belongs_where_it_was(self, member: TaskSlot, task_class: TaskClass, node: NodeState) -> bool:
        """Whether the best devices for a task that was evicted in this cycle are those that it had."""
        assert member.origin is not None
        return (
            member.origin[0] is node
            and self.pool.can_cancel_eviction(member)
            and self.pool.would_get_same_device(member, task_class)
        )

    def _within_quota(self, members: Iterable[TaskSlot]) -> bool:
        """Whether the queues may use what these tasks count on their devices. Only tasks whose amount depends on the
        device need this check."""
        return all(
            not self.task_class(member).varies
            or quota.exceeded_queue(member.job.queue, member.job.nonpreemptible) is None
            for member in members
        )

    def _defer_partial_gang(self, job: JobState, members: Sequence[TaskSlot]) -> None:
        """Nominate all of these tasks if the job's minimum cannot start as a whole now."""
        if not any(member.state is NOMINATED for member in job.members):
            return
        for task_set in job.task_sets:
            started = sum(member.state is BOUND or member.state is RUNNING for member in task_set.members)
            if started < min(task_set.min_available, task_set.present):
                break
        else:
            return
        for member in members:
            if member.state is BOUND:
                self.pool.defer(member)

    # ---------------------------------------------------------------- placing evicted tasks again

    def replace(self, job: JobState, members: Sequence[TaskSlot]) -> bool:
        """Place tasks of a job that were evicted in this cycle: all of them, or at least as many as its minimum needs
        and then as many as fit. True when one of them is placed."""
        savepoint = self.pool.savepoint()
        if self._replace(job, members):
            return True
        self.pool.rollback(savepoint)
        if len(members) == 1:
            return False
        needed: list[TaskSlot] = []
        for task_set in job.task_sets:
            evicted = [member for member in task_set.members if member in members]
            needed += evicted[: max(task_set.min_available - task_set.present, 0)]
        if needed and (len(needed) == len(members) or not self._replace(job, needed)):
            self.pool.rollback(savepoint)
            return False
        placed = bool(needed)
        for member in members:
            if member not in needed:
                inner = self.pool.savepoint()
                if self._replace(job, [member]):
                    placed = True
                else:
                    self.pool.rollback(inner)
        return placed

    def _replace(self, job: JobState, members: Sequence[TaskSlot]) -> bool:
        source = job.source
        if source.subgroups or source.topology_constraint is not None:
            placed = self._place_group(job, job.root, set(members), None, False)
        else:
            placed = self._place_tasks(list(members), None, False)
        return placed and self._within_quota(members)

    def arrange(self, members: Sequence[TaskSlot]) -> bool:
        """Nominate nodes for tasks of several jobs, by a search over all arrangements."""
        savepoint = self.pool.savepoint()
        # A task with pod affinity comes after the tasks that it must be near.
        order = sorted(self._largest_first(members), key=lambda member: member.job.source.pod_affinity is not None)
        jobs = list({member.job: None for member in members})
        arranged = self._arrange(order, 0, self.pool.nodes, [_SEARCH_WORK], nominate_only=True, jobs=jobs)
        if arranged and self._within_quota(members):
            return True
        self.pool.rollback(savepoint)
        return False

    # ---------------------------------------------------------------- subgroups and their nodes

    def _place_group(
        self, job: JobState, group: GroupNode, wanted: set[TaskSlot], outer: Stages | None, nominate_only: bool
    ) -> bool:
        inside = [member for task_set in group.all_task_sets() for member in task_set.members]
        members = [member for member in inside if member in wanted]
        if not members:
            return True

        def attempt(stages: Stages | None) -> bool:
            return all(
                self._place_group(job, child, wanted, stages, nominate_only) for child in group.children
            ) and all(
                self._place_task_set(task_set, wanted, stages, nominate_only)
                for task_set in sorted(group.task_sets, key=TaskSet.order)
            )

        if self._first_stages(self._node_sets(group.topology_constraint, members, inside, outer), attempt):
            return True
        # One subgroup may have taken a node that only another could use.
        unconstrained = (
            group.topology_constraint is None
            and not group.children
            and all(task_set.topology_constraint is None for task_set in group.task_sets)
        )
        return (
            unconstrained
            and len(group.task_sets) > 1
            and self.make_room is None
            and self._search(members, outer, nominate_only)
        )

    def _place_task_set(
        self, task_set: TaskSet, wanted: set[TaskSlot], outer: Stages | None, nominate_only: bool
    ) -> bool:
        members = [member for member in task_set.members if member in wanted]
        if not members:
            return True
        return self._first_stages(
            self._node_sets(task_set.topology_constraint, members, task_set.members, outer),
            lambda stages: self._place_tasks(members, stages, nominate_only),
        )

    def _first_stages(self, choices: Iterable[Stages | None], attempt: Callable[[Stages | None], bool]) -> bool:
        """Take the first set of nodes with which the attempt succeeds. Where tasks are evicted for it, take the set
        with the fewest evictions."""
        best: tuple[tuple[int, int], Stages | None] | None = None
        only = isinstance(choices, list) and len(choices) == 1
        for stages in choices:
            savepoint = self.pool.savepoint()
            if attempt(stages):
                if only or self.make_room is None:
                    return True
                evicted = [member for member in self.pool.changed_since(savepoint) if member.state is RELEASING]
                cost = (len(evicted), sum(member.amount[0] for member in evicted))
                if cost == (0, 0):
                    return True
                if best is None or cost < best[0]:
                    best = (cost, stages)
            self.pool.rollback(savepoint)
        return best is not None and attempt(best[1])

    def _node_sets(
        self,
        constraint: TopologyConstraint | None,
        members: Sequence[TaskSlot],
        inside: Sequence[TaskSlot],
        outer: Stages | None,
    ) -> Iterable[Stages | None]:
        """The sets of nodes that the constraint allows for these tasks of the group `inside`."""
        if constraint is None or not (constraint.required or constraint.preferred):
            return [outer]
        used = [member.node for member in inside if member.state in PRESENT and member.node is not None]
        mask = self.task_class(members[0]).mask
        nodes = self.pool.nodes if outer is None else [node for stage in outer for node in stage]
        self.failed = self.task_class(members[0])
        return self._topologies.candidates(
            constraint,
            self.requested(members),
            [node for node in nodes if mask[node.id]],
            used,
            free_only=self.make_room is None,
        )

    # ---------------------------------------------------------------- tasks within a set of nodes

    def _place_tasks(self, members: list[TaskSlot], stages: Stages | None, nominate_only: bool) -> bool:
        """Give each task the best node, one after the other; if that fails, search for another arrangement."""
        savepoint = self.pool.savepoint()
        for member in members:
            task_class = self.task_class(member)
            node = self._find(task_class, stages, nominate_only)
            if node is None:
                self.failed = task_class
                self.pool.rollback(savepoint)
                return self._search(members, stages, nominate_only)
            self._place_on_node(member, task_class, node, nominate_only)
        return True

    def _find(self, task_class: TaskClass, stages: Stages | None, nominate_only: bool) -> NodeState | None:
        if stages is None:
            node = self.pool.find(task_class, nominate_only)
            return self.make_room(task_class, None) if node is None and self.make_room is not None else node
        for nodes in stages:
            node = self.pool.best(task_class, nodes, nominate_only)
            if node is not None:
                return node
        if self.make_room is None:
            return None
        return self.make_room(task_class, [node for nodes in stages for node in nodes])

    def _search(self, members: list[TaskSlot], stages: Stages | None, nominate_only: bool) -> bool:
        """Try other arrangements. Tasks of one class without pod affinity have no other: what a task leaves to the next
        does not depend on its node, unless it takes fractions of several devices."""
        task_classes = {self.task_class(member).id for member in members}
        first = self.task_class(members[0])
        several = first.form == FRACTION and first.devices > 1
        if len(members) == 1 or (
            len(task_classes) == 1 and first.pod_affinity is None and first.pod_anti_affinity is None and not several
        ):
            return False
        nodes = self.pool.nodes if stages is None else [node for stage in stages for node in stage]
        return self._arrange(self._largest_first(members), 0, nodes, [_SEARCH_WORK], nominate_only)

    def _largest_first(self, members: Sequence[TaskSlot]) -> list[TaskSlot]:
        return sorted(
            members, key=lambda member: (*(-amount for amount in self.task_class(member).amount), member.task.name)
        )

    def _arrange(
        self,
        members: list[TaskSlot],
        position: int,
        nodes: Sequence[NodeState],
        work_left: list[int],
        nominate_only: bool,
        jobs: Sequence[JobState] = (),
    ) -> bool:
        """Place the tasks from `position` on, by depth-first search. `jobs`: those whose topology constraints the
        choice of nodes does not guarantee."""
        if position == len(members):
            return all(self._satisfies_constraints(job.root) for job in jobs)
        member = members[position]
        task_class = self.task_class(member)
        fitting = [node for node in nodes if task_class.mask[node.id] and task_class.fits(node, node.after_release)]
        work_left[0] -= len(nodes)
        fitting.sort(key=lambda node: self.pool.preference(task_class, node))
        for node in fitting:
            if not self.pool.pod_affinity.allows(task_class, node):
                continue
            for allocs in _device_choices(task_class, node):
                if work_left[0] <= 0:
                    return False
                savepoint = self.pool.savepoint()
                if (
                    member.origin is not None
                    and member.origin[:2] == (node, allocs)
                    and self.pool.can_cancel_eviction(member)
                ):
                    self.pool.cancel_eviction(member)
                else:
                    self.pool.place_on(member, task_class, node, allocs, nominate_only)
                if self._arrange(members, position + 1, nodes, work_left, nominate_only, jobs):
                    return True
                self.pool.rollback(savepoint)
        return False

    def _satisfies_constraints(self, group: GroupNode) -> bool:
        """Whether the tasks of the group are in the topology domains that its constraints require."""
        parts: list[GroupNode | TaskSet] = [group, *group.task_sets]
        for part in parts:
            if part.topology_constraint is not None:
                task_sets = [part] if isinstance(part, TaskSet) else list(part.all_task_sets())
                used = [
                    member.node
                    for task_set in task_sets
                    for member in task_set.members
                    if member.state in PRESENT and member.node
                ]
                if not self._topologies.satisfied(part.topology_constraint, used):
                    return False
        return all(map(self._satisfies_constraints, group.children))


def _device_choices(task_class: TaskClass, node: NodeState) -> list[tuple[DeviceAlloc, ...]]:
    """The different choices of devices on a node. Devices of one size with equal free parts are alike, and so are all
    whole devices."""
    if task_class.form != FRACTION:
        allocs = task_class.find_devices(node, node.after_release)
        return [] if allocs is None else [tuple(allocs)]
    free = node.after_release
    fitting = []
    for device, size in enumerate(node.sizes):
        milli, mib = task_class.need(size)
        if free.milli[device] >= milli and free.mib[device] >= mib and not (node.profiles and node.profiles[device]):
            fitting.append(((free.milli[device], free.mib[device], size), (device, milli, mib)))
    fitting.sort()
    choices: dict[tuple[object, ...], tuple[DeviceAlloc, ...]] = {}
    for devices in combinations(fitting, task_class.devices):
        choices.setdefault(tuple(like for like, _ in devices), tuple(alloc for _, alloc in devices))
    return list(choices.values())
