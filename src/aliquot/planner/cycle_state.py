"""A snapshot made ready for one cycle in one node pool: who holds what, who waits, what everybody is due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from aliquot.planner.jobs import ABSENT, PENDING, RELEASING, RUNNING, STUCK, JobState, TaskSlot
from aliquot.planner.model import DEFAULT_POOL, GPU, NOTHING, Amount, Job, Policy, Snapshot, Task, TaskState
from aliquot.planner.placement.gang import Placer
from aliquot.planner.placement.node_state import DeviceAlloc, NodeState
from aliquot.planner.placement.pool_state import PoolState
from aliquot.planner.placement.task_class import TaskClasses
from aliquot.planner.placement.topology import Topologies
from aliquot.planner.plan import Refusal, Verdict
from aliquot.planner.preemption.candidates import CandidateHeap
from aliquot.planner.preemption.eviction_cost import EvictionCosts
from aliquot.planner.preemption.victims import Victims
from aliquot.planner.queues.queue_order import Batch
from aliquot.planner.queues.queue_tree import QueueState, QueueTree

Places = tuple[tuple[NodeState, tuple[DeviceAlloc, ...]], ...]  # devices, and what is free of each


@dataclass(frozen=True, slots=True)
class CapacityReservation:
    """Room that is kept for a job, and until when (see keeping.py)."""

    job: JobState
    places: Places
    until: float

    @property
    def nodes(self) -> list[str]:
        return [node.name for node, _ in self.places]


_HOLDING = (TaskState.RUNNING, TaskState.RELEASING, TaskState.EVICTED)
_GONE = (TaskState.SUCCEEDED, TaskState.FAILED)


class CycleState:
    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, pool_name: str = DEFAULT_POOL) -> None:
        self.policy = policy
        self.now = now
        self.pool_name = pool_name
        self.claims = snapshot.claims
        self.tree = QueueTree(snapshot.queues, pool_name)
        self.pool = PoolState((node for node in snapshot.nodes if node.pool == pool_name), policy)
        task_classes = TaskClasses(self.pool.nodes)
        self.placer = Placer(self.pool, task_classes, Topologies(snapshot.topologies, self.pool.nodes))
        self.jobs: list[JobState] = []
        self._all: Amount = NOTHING
        self.costs = EvictionCosts(now)
        self.candidate_heaps: dict[object, CandidateHeap] = {}  # of the solver, which go on from job to job
        self.gangs: dict[str, JobState] = {}  # jobs of several tasks
        self.unschedulable: dict[str, Refusal] = {}  # jobs that no place would help
        self.nominated: dict[JobState, list[TaskSlot]] = {}  # who has a promise of an earlier plan
        self.reservation: CapacityReservation | None = None
        self.queueless_jobs: dict[str, None] = {}  # jobs of no project that hold something
        for job in snapshot.jobs:
            self.pool.pod_affinity.watch(job.pod_affinity)
            self.pool.pod_affinity.watch(job.pod_anti_affinity, refusing=True)

    @cached_property
    def victims(self) -> Victims:
        return Victims(self.jobs)

    def admit(self, jobs: Iterable[Job]) -> list[JobState]:
        """Put in jobs, sorted by name: those that hold something here, and those that wait for something here."""
        came: list[JobState] = []
        queues, put = self.tree.queues, self.pool.put
        for job in jobs:
            state = self.make(job)
            if state is None:
                self._occupy(job)
                continue
            queue = queues[job.queue]
            for member in state.members:
                if member.origin is not None:
                    put(member)
                self._count(member, queue)
                self.sample(member)
            came.append(state)
            if not state.alone:
                self.gangs[state.name] = state
        self.jobs += came
        self.pool.open()
        self._sum(came)
        return came

    def _occupy(self, job: Job) -> None:
        """Somebody of no project shares nothing, waits for nothing and is stopped for nobody, but holds its place."""
        for task in job.tasks:
            node = self.pool.by_name.get(task.node)
            if node is not None and task.state in _HOLDING:
                self.queueless_jobs[job.name] = None
                self.pool.pod_affinity.count(job, node)
                for view in {id(view): view for view in (node.after_release, node.now)}.values():
                    node.allocate(view, task.request.cpu, task.request.memory, node.allocs_of(task.shares))

    def make(self, job: Job) -> JobState | None:
        """A job and its tasks as they stand; nothing is counted yet. None for one whose queue does not exist."""
        queue = self.tree.queues.get(job.queue)
        if queue is None or queue.children:
            text = f"project {job.queue} does not exist" if job.queue else "its namespace belongs to no project"
            self.unschedulable[job.name] = Refusal("no-project", Verdict.NEVER, text)
            return None
        state = JobState(job, queue)
        by_name = self.pool.by_name
        for task in job.tasks if len(job.tasks) == 1 else sorted(job.tasks, key=_task_order):
            said = task.state
            if said is TaskState.PENDING:
                member = TaskSlot(state, task, PENDING)
                state.waits = True
            elif said is TaskState.NOMINATED:
                member = TaskSlot(state, task, PENDING)
                self.nominated.setdefault(state, []).append(member)
            elif said is TaskState.GATED or said in _GONE:
                member = TaskSlot(state, task, ABSENT)
            else:
                member = TaskSlot(state, task, self._stands(task))
                node = by_name.get(task.node)
                if node is not None:
                    member.node = node
                    member.allocs = allocs = node.allocs_of(task.shares)
                    request = task.request
                    size = node.sizes[allocs[0][0]] if allocs and request.memory_mib else 0
                    member.amount = (request.quota(size), request.cpu, request.memory)
                    member.origin = (node, allocs, member.amount)
            state.members.append(member)
        if state.waits and job.hindrance:
            self.unschedulable[job.name] = Refusal("cannot-give", Verdict.NEVER, job.hindrance)
        elif state.waits and self.claims is not None and job.claims:
            missing = [claim for claim in job.claims if claim not in self.claims]
            if missing:
                text = f"volume claim {missing[0]} does not exist; create it and this starts"
                self.unschedulable[job.name] = Refusal("claim-missing", Verdict.NOT_NOW, text)
        return state

    def _count(self, member: TaskSlot, queue: QueueState) -> None:
        """At its own queue alone; those above follow at once for all."""
        if member.state == PENDING:
            gpu, cpu, memory = self.placer.task_class(member).amount
            counts = queue.pending
        elif member.origin is None:
            return
        else:
            if self.pool.pod_affinity.watched:  # those who are leaving are neighbours until they have left
                self.pool.pod_affinity.enter(member)
            if member.state > RUNNING:
                return
            gpu, cpu, memory = member.amount
            counts = queue.used
            if member.job.nonpreemptible:
                nonpreemptible = queue.nonpreemptible
                nonpreemptible[0] += gpu
                nonpreemptible[1] += cpu
                nonpreemptible[2] += memory
        counts[0] += gpu
        counts[1] += cpu
        counts[2] += memory

    def sample(self, member: TaskSlot, sign: int = 1) -> None:
        """Every task that is not over, whether it runs or waits, tells what tasks of this cluster ask for."""
        if self.pool.fragments is not None and member.state != ABSENT:
            self.pool.fragments.count(self.placer.task_class(member), sign)

    def ready(self, jobs: Iterable[JobState]) -> Iterator[JobState]:
        """Those that could start if there were room."""
        for job in jobs:
            if job.waits and job.name not in self.unschedulable and job.next_tasks():
                yield job

    def signature(self, job: JobState, members: Sequence[TaskSlot]) -> tuple[object, ...]:
        """What makes two requests of one queue alike: whatever becomes of one would become of the other."""
        source = job.source
        task_class = self.placer.task_class
        task_classes = (
            (task_class(members[0]).id,) if len(members) == 1 else tuple(task_class(member).id for member in members)
        )
        if len(job.members) == len(members) and not source.subgroups and source.topology_constraint is None:
            return (task_classes, job.nonpreemptible, source.priority, source.created if source.preemption_delay else 0)
        if job.present or source.preemption_delay:
            return (source.name,)
        subgroups = tuple(
            sorted(source.subgroups, key=lambda subgroup: subgroup.name)
        )  # in whatever order they were told
        # Where not every group is needed, others than the next may start instead.
        all_ = (
            tuple(sorted((one.task.subgroup, task_class(one).id) for one in job.members))
            if subgroups
            else len(job.members)
        )
        return (
            task_classes,
            job.nonpreemptible,
            source.priority,
            all_,
            source.topology_constraint,
            subgroups,
            source.min_subgroups,
        )

    def batches(self, jobs: Iterable[JobState]) -> list[Batch]:
        """Waiting jobs that are alike, together."""
        found: dict[object, list[JobState]] = {}
        for job in jobs:
            found.setdefault((job.queue.name, self.signature(job, job.next_tasks())), []).append(job)
        return [Batch(sorted(alike, key=JobState.order) if len(alike) > 1 else alike) for alike in found.values()]

    def close(self) -> None:
        """Let go of everything: jobs and their tasks know each other, and would wait for the collector of garbage."""
        for job in self.jobs:
            for member in job.members:
                del member.job
        self.jobs = []

    def _stands(self, task: Task) -> int:
        if task.state is TaskState.RUNNING:
            return RUNNING
        # One that takes too long to leave may never leave: nothing is planned on its place.
        grace, since = self.policy.terminating_grace, task.releasing_since
        return STUCK if grace is not None and since is not None and self.now - since > grace else RELEASING

    def _sum(self, came: list[JobState]) -> None:
        """Count what leaves hold and want at the queues above them, and see what everybody is due."""
        if len(came) == len(self.jobs):  # the first time; later only waiting jobs come, and hold nothing
            for leaf in self.tree.leaves:
                for queue in leaf.path[1:]:
                    for r in range(3):
                        queue.used[r] += leaf.used[r]
                        queue.nonpreemptible[r] += leaf.nonpreemptible[r]
        else:
            self._count_waiting()
        self._all = self._total()
        self.compute_fair_shares()

    def compute_fair_shares(self) -> None:
        """See what everybody is due, and what tasks ask for."""
        self.tree.compute_shares(self._all, self.policy)
        if self.pool.fragments is not None:
            self.pool.fragments.settle()

    def _count_waiting(self) -> None:
        for leaf in self.tree.leaves:
            leaf.pending = [0, 0, 0]
        for job in self.jobs:
            for member in job.members:
                if member.state == PENDING:
                    amount = self.placer.task_class(member).amount
                    for r in range(3):
                        job.queue.pending[r] += amount[r]

    def _total(self) -> Amount:
        """What is shared: nodes that are ready, less what other schedulers' pods use there."""
        gpu = cpu = memory = 0
        for state in self.pool.nodes:
            node = state.source
            if node.ready and node.pool == self.pool_name:
                gpu += GPU * sum(state.quota_units) - node.foreign[0]
                cpu += node.cpu - node.foreign[1]
                memory += node.memory - node.foreign[2]
        return (gpu, cpu, memory)


def _task_order(task: Task) -> tuple[int, str]:
    return (-task.order, task.name)
