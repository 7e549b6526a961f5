"""The state of jobs and their tasks during a cycle, and which tasks start or stop together.

The tasks of a job form one *task set*, or one task set per subgroup. A task set has a minimum: below it none of its
tasks run, above it tasks start and stop one by one. A plain job is one task set whose minimum is all of its tasks, so
that gangs, elastic jobs and single pods follow one rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import combinations, islice, product

from aliquot.planner.model import NOTHING, Amount, Job, SubGroup, Task, TaskState, TopologyConstraint
from aliquot.planner.placement.node_state import DeviceAlloc, NodeState
from aliquot.planner.placement.task_class import TaskClass
from aliquot.planner.queues.queue_tree import QueueState


class SlotState(IntEnum):
    """The state of a task during a cycle."""

    BOUND = 0  # this cycle starts it
    NOMINATED = 1  # this cycle nominates a node, on which it starts once the devices are released
    RUNNING = 2
    PENDING = 3
    RELEASING = 4  # it terminates, or this cycle evicts it
    STUCK = 5  # it terminates for longer than the policy's grace, and may never release its devices
    ABSENT = 6  # it holds nothing and is not to be scheduled: finished, or gated


# Looking a member up on the enum costs more than the comparison, and the planner compares states in its inner loops.
BOUND, NOMINATED, RUNNING, PENDING, RELEASING, STUCK, ABSENT = SlotState
# States given by this cycle.
PLACED = frozenset({BOUND, NOMINATED})
# States that count towards the minimum of a task set, and against the quota of a queue.
PRESENT = frozenset({BOUND, NOMINATED, RUNNING})

_OPTIONS_TRIED = 32  # ways to choose among subgroups

# Node, devices and amount against quota.
Origin = tuple[NodeState, tuple[DeviceAlloc, ...], Amount]


class TaskSlot:
    """One task. `origin` is where it ran when the cycle began."""

    __slots__ = ("allocs", "amount", "job", "node", "origin", "state", "task", "task_class")

    def __init__(self, job: JobState, task: Task, state: SlotState) -> None:
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
        self, name: str, members: list[TaskSlot], min_available: int, topology_constraint: TopologyConstraint | None
    ) -> None:
        self.name = name
        self.members = members
        self.min_available = min_available
        self.topology_constraint = topology_constraint

    @property
    def present(self) -> int:
        return sum(member.state in PRESENT for member in self.members)

    @property
    def unmoved(self) -> int:
        """How many tasks run on where they are."""
        return sum(member.state is RUNNING for member in self.members)

    def waiting(self) -> list[TaskSlot]:
        return [member for member in self.members if member.state is PENDING]

    def next_tasks(self) -> list[TaskSlot]:
        """The tasks that start together next; empty when too few exist. Below the minimum these are all that are
        missing, since a subgroup that is not required starts as a whole or not at all."""
        waiting = self.waiting()
        missing = max(self.min_available - self.present, 1)
        return waiting[:missing] if len(waiting) >= missing else []

    def order(self) -> tuple[bool, float, str]:
        present = self.present
        return (present >= self.min_available, present / max(self.min_available, 1), self.name)


class GroupNode:
    """A subgroup that contains others, or the job itself."""

    __slots__ = ("children", "min_children", "name", "task_sets", "topology_constraint")

    def __init__(self, name: str, topology_constraint: TopologyConstraint | None, min_children: int | None) -> None:
        self.name = name
        self.topology_constraint = topology_constraint
        self.min_children = min_children  # how many of its children must have their minimum; None: all
        self.children: list[GroupNode] = []
        self.task_sets: list[TaskSet] = []

    def all_task_sets(self) -> Iterator[TaskSet]:
        yield from self.task_sets
        for child in self.children:
            yield from child.all_task_sets()

    def needed(self) -> int:
        """How many of its children must have their minimum."""
        children = len(self.task_sets) + len(self.children)
        return children if self.min_children is None else min(self.min_children, children)

    def satisfied(self, in_place: bool = False) -> bool:
        """Whether enough of its children have their minimum; `in_place`: without the tasks that are moved."""
        have = sum(
            (task_set.unmoved if in_place else task_set.present) >= task_set.min_available
            for task_set in self.task_sets
        )
        return have + sum(child.satisfied(in_place) for child in self.children) >= self.needed()

    def ways_to_minimum(self) -> Iterator[list[TaskSlot]]:
        """Each choice of pending tasks that would complete the minimum; none when too few tasks exist. Where not every
        child is needed, the children that lack the fewest tasks come first."""
        have = 0
        choices: list[tuple[int, str, list[list[TaskSlot]]]] = []
        for task_set in self.task_sets:
            if task_set.present >= task_set.min_available:
                have += 1
            elif tasks := task_set.next_tasks():
                choices.append((len(tasks), task_set.name, [tasks]))
        for child in self.children:
            if child.satisfied():
                have += 1
            elif ways := list(islice(child.ways_to_minimum(), _OPTIONS_TRIED)):
                choices.append((len(ways[0]), child.name, ways))
        if self.min_children is not None:
            choices.sort(key=lambda choice: choice[:2])
        for chosen in combinations(choices, self.needed() - have):
            for ways_chosen in product(*(ways for _, _, ways in chosen)):
                yield [member for members in ways_chosen for member in members]


class JobState:
    __slots__ = ("_elastic", "_no_gang", "_root", "members", "name", "nonpreemptible", "pending", "queue", "source")

    def __init__(self, source: Job, queue: QueueState) -> None:
        self.source = source
        self.queue = queue
        self.name = source.name
        self.nonpreemptible = not source.preemptible
        self.pending = False  # whether the snapshot has pending tasks of it
        self.members: list[TaskSlot] = []
        self._root: GroupNode | None = None
        self._elastic: bool | None = None
        self._no_gang = not source.subgroups and (source.min_available or 1) <= 1

    @property
    def root(self) -> GroupNode:
        """The task sets as a tree. Built on demand, since single tasks never need it."""
        if self._root is None:
            self._root = _group_tree(self.source, self.members)
        return self._root

    @property
    def single_task(self) -> bool:
        """Whether it has one task, which waits for no other. Most jobs do."""
        return self._no_gang and len(self.members) == 1

    @property
    def elastic(self) -> bool:
        """Whether some of its tasks may start and stop alone."""
        if self._elastic is None:
            self._elastic = len(self.members) > 1 and any(
                task_set.min_available < len(task_set.members) for task_set in self.task_sets
            )
        return self._elastic

    @property
    def task_sets(self) -> list[TaskSet]:
        return list(self.root.all_task_sets())

    @property
    def present(self) -> int:
        return sum(member.state in PRESENT for member in self.members)

    def waiting(self) -> bool:
        return any(member.state is PENDING for member in self.members)

    def satisfied(self) -> bool:
        return self.root.satisfied()

    def keeps_minimum(self) -> bool:
        """Whether the tasks that are neither evicted nor moved make up its minimum."""
        return self.root.satisfied(in_place=True)

    def order(self) -> tuple[int, int, float, str]:
        """Its position in its queue: by priority, then jobs below their minimum, then age."""
        return (-self.source.priority, self._fullness(), self.source.created, self.name)

    def _fullness(self) -> int:
        """0 below its minimum, 1 at it, 2 above."""
        if self.single_task:
            return 1 if self.members[0].state in PRESENT else 0
        if not self.satisfied():
            return 0
        return 2 if any(task_set.present > task_set.min_available for task_set in self.task_sets) else 1

    def next_tasks(self) -> list[TaskSlot]:
        """The tasks that start together next: all that are missing to the minimum, or one more. Empty when nothing is
        pending, or when too few tasks exist yet."""
        if self.single_task:
            member = self.members[0]
            return [member] if member.state is PENDING else []
        if not self.satisfied():
            return next(self.root.ways_to_minimum(), [])
        return next(self._beyond_minimum(), [])

    def start_options(self) -> Iterable[list[TaskSlot]]:
        """The alternatives for what starts together next, `next_tasks` first. There are several where not all
        subgroups are needed."""
        if not self.source.subgroups:
            return [self.next_tasks()]
        if not self.satisfied():
            return islice(self.root.ways_to_minimum(), _OPTIONS_TRIED)
        return list(self._beyond_minimum())

    def _beyond_minimum(self) -> Iterator[list[TaskSlot]]:
        """What a job that has its minimum may start next, by task set."""
        for task_set in sorted(self.task_sets, key=TaskSet.order):
            if tasks := task_set.next_tasks():
                yield tasks

    def eviction_units(self) -> list[list[TaskSlot]]:
        """Tasks that are evicted together: one by one those above a minimum, then all the rest."""
        running = [member for member in self.members if member.state is RUNNING and member.origin is not None]
        if len(running) <= 1 or len(self.members) == 1:
            return [running] if running else []
        above_minimum: list[list[TaskSlot]] = []
        task_sets = self.task_sets
        present = {task_set.name: task_set.present for task_set in task_sets}
        minimum = {task_set.name: task_set.min_available for task_set in task_sets}
        evictable = {
            task_set.name: [m for m in task_set.members if m.state is RUNNING and m.origin is not None]
            for task_set in task_sets
        }
        while above := [name for name in evictable if present[name] > minimum[name] and evictable[name]]:
            fullest = max(above, key=lambda name: (present[name] / max(minimum[name], 1), name))
            above_minimum.append([evictable[fullest].pop()])
            present[fullest] -= 1
        rest = [member for members in evictable.values() for member in members]
        return [*above_minimum, rest] if rest else above_minimum


def _group_tree(job: Job, members: list[TaskSlot]) -> GroupNode:
    root = GroupNode("", job.topology_constraint, job.min_subgroups)
    members = sorted(members, key=TaskSlot.order)
    if not job.subgroups:
        root.topology_constraint = None
        root.task_sets.append(TaskSet("", members, _minimum(job.min_available, members), job.topology_constraint))
        return root
    parents = {subgroup.parent for subgroup in job.subgroups}
    nodes = {
        subgroup.name: GroupNode(subgroup.name, subgroup.topology_constraint, subgroup.min_subgroups)
        for subgroup in job.subgroups
    }
    nodes[""] = root
    by_subgroup: dict[str, list[TaskSlot]] = {}
    for member in members:
        by_subgroup.setdefault(member.task.subgroup, []).append(member)
    for subgroup in sorted(job.subgroups, key=lambda subgroup: subgroup.name):
        parent = nodes.get(subgroup.parent, root)
        if subgroup.name in parents:
            parent.children.append(nodes[subgroup.name])
            if subgroup.name in by_subgroup:
                nodes[subgroup.name].task_sets.append(_task_set(subgroup, by_subgroup, None))
        else:
            parent.task_sets.append(_task_set(subgroup, by_subgroup, subgroup.topology_constraint))
    if "" in by_subgroup:
        root.task_sets.append(TaskSet("", by_subgroup[""], _minimum(job.min_available, by_subgroup[""]), None))
    return root


def _task_set(
    subgroup: SubGroup, by_subgroup: Mapping[str, list[TaskSlot]], topology_constraint: TopologyConstraint | None
) -> TaskSet:
    members = by_subgroup.get(subgroup.name, [])
    return TaskSet(subgroup.name, members, _minimum(subgroup.min_available, members), topology_constraint)


def _minimum(min_available: int | None, members: list[TaskSlot]) -> int:
    """Tasks that have succeeded count towards the minimum."""
    succeeded = sum(member.task.state is TaskState.SUCCEEDED for member in members)
    return max((len(members) if min_available is None else min_available) - succeeded, 0 if succeeded else 1)
