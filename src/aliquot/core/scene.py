"""A snapshot made ready for one cycle in one node pool: who holds what, who waits, what everybody is due."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.core.jobs import ABSENT, PENDING, RESERVED, RUNNING, STOPPED, STUCK, JobState, Member
from aliquot.core.kinds import Kinds
from aliquot.core.model import DEFAULT_POOL, GPU, Amount, Job, Policy, Snapshot, Task, TaskState, slices_of
from aliquot.core.place import Placer
from aliquot.core.room import Room
from aliquot.core.topology import Topologies
from aliquot.core.tree import Tree

_GONE = (TaskState.SUCCEEDED, TaskState.FAILED)


class Scene:
    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, pool: str = DEFAULT_POOL) -> None:
        self.policy = policy
        self.now = now
        self.pool = pool
        self.claims = snapshot.claims
        self.tree = Tree(snapshot.queues, pool)
        self.room = Room((node for node in snapshot.nodes if node.pool == pool), policy)
        kinds = Kinds(self.room.nodes)
        self.placer = Placer(self.room, kinds, Topologies(snapshot.topologies, self.room.nodes))
        self.jobs: list[JobState] = []
        self.homeless: list[Job] = []  # of queues that do not exist
        for job in snapshot.jobs:
            self.room.neighbours.watch(job.near)
            self.room.neighbours.watch(job.apart, refusing=True)

    def admit(self, jobs: Iterable[Job]) -> None:
        """Put in every job: those that hold something here, and those that wait for something here."""
        queues, by_name, placer = self.tree.queues, self.room.by_name, self.placer
        watched = self.room.neighbours.watched
        for job in jobs:
            queue = queues.get(job.queue)
            if queue is None or queue.children:
                self.homeless.append(job)
                continue
            state = JobState(job, queue)
            used, fixed, wanted = queue.used, queue.fixed, queue.wanted
            for task in job.tasks:
                said = task.state
                if said is TaskState.PENDING:
                    member = Member(state, task, PENDING)
                    state.waits = True
                    gpu, cpu, memory = placer.kind(member).amount
                    wanted[0] += gpu
                    wanted[1] += cpu
                    wanted[2] += memory
                elif said is TaskState.GATED or said in _GONE:
                    member = Member(state, task, ABSENT)
                else:
                    member = Member(state, task, self._stands(task))
                    node = by_name.get(task.node)
                    if node is not None:
                        member.node = node
                        member.rows = rows = node.rows_of(task.shares)
                        request = task.request
                        size = node.sizes[rows[0][0]] if rows and request.memory_mib else 0
                        gpu, cpu, memory = member.amount = (request.quota(size), request.cpu, request.memory)
                        member.home = (node, rows, member.amount)
                        self.room.put(member)
                        if member.state <= RUNNING:
                            used[0] += gpu
                            used[1] += cpu
                            used[2] += memory
                            if state.fixed:
                                fixed[0] += gpu
                                fixed[1] += cpu
                                fixed[2] += memory
                            if watched:
                                self.room.neighbours.enter(member)
                state.members.append(member)
            self.jobs.append(state)
        self.room.open()
        self._sum()

    def _stands(self, task: Task) -> int:
        if task.state is TaskState.RUNNING:
            return RUNNING
        if task.state is TaskState.RESERVED:
            return RESERVED
        # One that takes too long to leave may never leave: nothing is planned on its place.
        grace, since = self.policy.terminating_grace, task.releasing_since
        return STUCK if grace is not None and since is not None and self.now - since > grace else STOPPED

    def _sum(self) -> None:
        """Count what leaves hold and want at the queues above them, and see what everybody is due."""
        for leaf in self.tree.leaves:
            for r in range(3):
                leaf.wanted[r] += leaf.used[r]
            for queue in leaf.path[1:]:
                for r in range(3):
                    queue.used[r] += leaf.used[r]
                    queue.fixed[r] += leaf.fixed[r]
        self.tree.settle(self._total(), self.policy)

    def _total(self) -> Amount:
        """What is shared: nodes that are ready, less what other schedulers' pods use there."""
        gpu = cpu = memory = 0
        for state in self.room.nodes:
            node = state.source
            if node.ready and node.pool == self.pool:
                whole = GPU * len(state.sizes)
                if state.profiles is not None:
                    whole = sum(GPU * (slices_of(profile) if profile else 1) for profile in state.profiles)
                gpu += whole - node.foreign[0]
                cpu += node.cpu - node.foreign[1]
                memory += node.memory - node.foreign[2]
        return (gpu, cpu, memory)
