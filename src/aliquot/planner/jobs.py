"""Jobs and their tasks as they stand during a cycle: who has a place, who waits, and which of them come or go together.

A job's tasks are in one *set*, or in one set per subgroup. A set has a minimum: below it nothing of the set runs, above
it tasks come and go one by one. A plain job is one set whose minimum is all of its tasks, so gangs, elastic jobs and
single pods are one rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, islice, product

from aliquot.planner.model import NOTHING, Amount, Job, SubGroup, Task, TaskState, TopologyConstraint
from aliquot.planner.placement.node_state import DeviceAlloc, NodeState
from aliquot.planner.placement.task_class import TaskClass
from aliquot.planner.queues.queue_tree import QueueState

# What a task is during a cycle. Those up to RUNNING count as present in their set.
# STOPPED ones leave, STUCK ones should but do not, ABSENT ones hold nothing (done, or not to be scheduled yet).
BOUND, NOMINATED, RUNNING, PENDING, RELEASING, STUCK, ABSENT = range(7)

_OPTIONS_TRIED = 32  # ways to choose among subgroups

Origin = tuple[NodeState, tuple[DeviceAlloc, ...], Amount]


class TaskSlot:
    """One task. `home` is where it was when the cycle began."""

    __slots__ = ("allocs", "amount", "job", "node", "origin", "state", "task", "task_class")

    def __init__(self, job: JobState, task: Task, state: int) -> None:
        self.job = job
        self.task = task
        self.state = state
        self.node: NodeState | None = None
        self.allocs: tuple[DeviceAlloc, ...] = ()
        self.amount: Amount = NOTHING
        self.origin: Origin | None = None
        self.task_class: TaskClass | None = None

    def order(self) -> tuple[int, str]:
        return (-self.task.order, self.task.name)


class TaskSet:
    """Tasks with one minimum."""

    __slots__ = ("members", "min_available", "name", "topology_constraint")

    def __init__(
        self, name: str, members: list[TaskSlot], least: int, topology_constraint: TopologyConstraint | None
    ) -> None:
        self.name = name
        self.members = members
        self.min_available = least
        self.topology_constraint = topology_constraint

    @property
    def present(self) -> int:
        return sum(member.state <= RUNNING for member in self.members)

    @property
    def unmoved(self) -> int:
        """How many stay where they are."""
        return sum(member.state == RUNNING for member in self.members)

    def waiting(self) -> list[TaskSlot]:
        return [member for member in self.members if member.state == PENDING]

    def order(self) -> tuple[bool, float, str]:
        present = self.present
        return (present >= self.min_available, present / max(self.min_available, 1), self.name)


class GroupNode:
    """A subgroup that has others, or the job itself: how many of its children must have their minimum."""

    __slots__ = ("branches", "min_available", "name", "task_sets", "topology_constraint")

    def __init__(self, name: str, topology_constraint: TopologyConstraint | None, least: int | None) -> None:
        self.name = name
        self.topology_constraint = topology_constraint
        self.min_available = least
        self.branches: list[GroupNode] = []
        self.task_sets: list[TaskSet] = []

    def all_sets(self) -> Iterator[TaskSet]:
        yield from self.task_sets
        for branch in self.branches:
            yield from branch.all_sets()


class JobState:
    __slots__ = ("_elastic", "_free", "_root", "members", "name", "nonpreemptible", "queue", "source", "waits")

    def __init__(self, source: Job, queue: QueueState) -> None:
        self.source = source
        self.queue = queue
        self.name = source.name
        self.nonpreemptible = not source.preemptible
        self.members: list[TaskSlot] = []
        self._root: GroupNode | None = None
        self._elastic: bool | None = None
        self._free = not source.subgroups and (source.min_available or 1) <= 1
        self.waits = False

    @property
    def root(self) -> GroupNode:
        """Its sets as a tree; most jobs never need it."""
        if self._root is None:
            self._root = _branches(self.source, self.members)
        return self._root

    @property
    def alone(self) -> bool:
        """One task that waits for no other; most jobs are."""
        return self._free and len(self.members) == 1

    @property
    def elastic(self) -> bool:
        """Whether some of its tasks may come and go alone."""
        if self._elastic is None:
            self._elastic = len(self.members) > 1 and any(
                one.min_available < len(one.members) for one in self.task_sets
            )
        return self._elastic

    @property
    def task_sets(self) -> list[TaskSet]:
        return list(self.root.all_sets())

    @property
    def present(self) -> int:
        return sum(member.state <= RUNNING for member in self.members)

    def waiting(self) -> bool:
        return any(member.state == PENDING for member in self.members)

    def satisfied(self) -> bool:
        return satisfied(self.root)

    def keeps_minimum(self) -> bool:
        """Whether enough of it stay where they are."""
        return satisfied(self.root, in_place=True)

    def order(self) -> tuple[int, int, float, str]:
        """Its turn in its queue: by priority, then who lacks its minimum, then age."""
        return (-self.source.priority, self._fullness(), self.source.created, self.name)

    def _fullness(self) -> int:
        """0 below its minimum, 1 at it, 2 above."""
        if self.alone:
            return 0 if self.members[0].state > RUNNING else 1
        if not satisfied(self.root):
            return 0
        return 2 if any(one.present > one.min_available for one in self.task_sets) else 1

    def next_tasks(self) -> list[TaskSlot]:
        """Who starts together next: all that are missing to the minimum, or one more. Empty when nothing waits, or
        when too few tasks exist yet."""
        if self.alone:
            member = self.members[0]
            return [member] if member.state == PENDING else []
        if not satisfied(self.root):
            return next(_to_minimum(self.root), [])
        for one in sorted(self.task_sets, key=TaskSet.order):
            waiting = one.waiting()
            missing = max(
                one.min_available - one.present, 1
            )  # a subgroup that need not be there comes whole or not at all
            if len(waiting) >= missing:
                return waiting[:missing]
        return []

    def options(self) -> Iterable[list[TaskSlot]]:
        """Other tasks that could start together instead, the next ones first: where not all subgroups are needed, it
        may be any of them."""
        if not self.source.subgroups:
            return [self.next_tasks()]
        if not satisfied(self.root):
            return islice(_to_minimum(self.root), _OPTIONS_TRIED)
        found = []
        for one in sorted(self.task_sets, key=TaskSet.order):
            waiting = one.waiting()
            missing = max(one.min_available - one.present, 1)
            if len(waiting) >= missing:
                found.append(waiting[:missing])
        return found

    def eviction_units(self) -> list[list[TaskSlot]]:
        """Who stops together, first those that are spare: one by one what is above a minimum, then all the rest."""
        running = [member for member in self.members if member.state == RUNNING and member.origin is not None]
        if len(running) <= 1 or len(self.members) == 1:
            return [running] if running else []
        spare: list[list[TaskSlot]] = []
        counts = {one.name: one.present for one in self.task_sets}
        left = {
            one.name: [m for m in one.members if m.state == RUNNING and m.origin is not None] for one in self.task_sets
        }
        least = {one.name: one.min_available for one in self.task_sets}
        while True:
            over = [name for name in left if counts[name] > least[name] and left[name]]
            if not over:
                break
            fullest = max(over, key=lambda name: (counts[name] / max(least[name], 1), name))
            spare.append([left[fullest].pop()])
            counts[fullest] -= 1
        rest = [member for name in left for member in left[name]]
        return [*spare, rest] if rest else spare


def satisfied(branch: GroupNode, in_place: bool = False) -> bool:
    """Whether enough of its children have their minimum; `in_place`: without those who are moved."""
    have = sum((one.unmoved if in_place else one.present) >= one.min_available for one in branch.task_sets)
    return have + sum(satisfied(one, in_place) for one in branch.branches) >= _needed(branch)


def _needed(branch: GroupNode) -> int:
    children = len(branch.task_sets) + len(branch.branches)
    return children if branch.min_available is None else min(branch.min_available, children)


def _to_minimum(branch: GroupNode) -> Iterator[list[TaskSlot]]:
    """Whoever is missing to its minimum, in every way there is; nothing when they do not all exist. Where not every
    child is needed, those that lack the least come first."""
    have = 0
    children: list[tuple[int, str, list[list[TaskSlot]]]] = []
    for one in branch.task_sets:
        missing = one.min_available - one.present
        waiting = one.waiting()
        if missing <= 0:
            have += 1
        elif len(waiting) >= missing:
            children.append((missing, one.name, [waiting[:missing]]))
    for child in branch.branches:
        if satisfied(child):
            have += 1
        elif ways := list(islice(_to_minimum(child), _OPTIONS_TRIED)):
            children.append((len(ways[0]), child.name, ways))
    wanted = _needed(branch) - have
    if branch.min_available is not None:
        children.sort(key=lambda child: child[:2])
    for some in combinations(children, wanted):
        for ways_ in product(*(ways for _, _, ways in some)):
            yield [member for members in ways_ for member in members]


def _branches(job: Job, members: list[TaskSlot]) -> GroupNode:
    root = GroupNode("", job.topology_constraint, job.min_subgroups)
    members = sorted(members, key=TaskSlot.order)
    if not job.subgroups:
        root.topology_constraint = None
        root.task_sets.append(TaskSet("", members, _least(job.min_available, members), job.topology_constraint))
        return root
    parents = {subgroup.parent for subgroup in job.subgroups}
    branches = {
        subgroup.name: GroupNode(subgroup.name, subgroup.topology_constraint, subgroup.min_subgroups)
        for subgroup in job.subgroups
    }
    branches[""] = root
    by_subgroup: dict[str, list[TaskSlot]] = {}
    for member in members:
        by_subgroup.setdefault(member.task.subgroup, []).append(member)
    for subgroup in sorted(job.subgroups, key=lambda subgroup: subgroup.name):
        parent = branches.get(subgroup.parent, root)
        if subgroup.name in parents:
            parent.branches.append(branches[subgroup.name])
            if subgroup.name in by_subgroup:
                branches[subgroup.name].task_sets.append(_set(subgroup, by_subgroup, None))
        else:
            parent.task_sets.append(_set(subgroup, by_subgroup, subgroup.topology_constraint))
    if "" in by_subgroup:
        root.task_sets.append(TaskSet("", by_subgroup[""], _least(job.min_available, by_subgroup[""]), None))
    return root


def _set(
    subgroup: SubGroup, by_subgroup: Mapping[str, list[TaskSlot]], topology_constraint: TopologyConstraint | None
) -> TaskSet:
    members = by_subgroup.get(subgroup.name, [])
    return TaskSet(subgroup.name, members, _least(subgroup.min_available, members), topology_constraint)


def _least(wanted: int | None, members: list[TaskSlot]) -> int:
    """Tasks that are done need not be there again."""
    done = sum(member.task.state is TaskState.SUCCEEDED for member in members)
    return max((len(members) if wanted is None else wanted) - done, 0 if done else 1)
