"""The state of one cycle in one node pool: its nodes, queues and jobs, made from a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from aliquot.planner.jobs import ABSENT, PENDING, PRESENT, RELEASING, RUNNING, STUCK, JobState, SlotState, TaskSlot
from aliquot.planner.model import DEFAULT_POOL, GPU, NOTHING, Amount, Job, Policy, Snapshot, Task, TaskState
from aliquot.planner.placement.gang import Placer
from aliquot.planner.placement.pool_state import PoolState
from aliquot.planner.placement.task_class import TaskClasses
from aliquot.planner.placement.topology import Topologies
from aliquot.planner.plan import Refusal, Verdict
from aliquot.planner.preemption.candidates import CandidateHeap
from aliquot.planner.preemption.eviction_cost import EvictionCosts
from aliquot.planner.preemption.victims import Victims
from aliquot.planner.queues.queue_order import Batch
from aliquot.planner.queues.queue_tree import QueueState, QueueTree

if TYPE_CHECKING:
    from aliquot.planner.placement.starvation import CapacityReservation

# Tuples, since the hash of an enum member costs more than a few comparisons.
_HOLDS_DEVICES = (TaskState.RUNNING, TaskState.RELEASING, TaskState.EVICTED)
_NOT_SCHEDULED = (TaskState.GATED, TaskState.SUCCEEDED, TaskState.FAILED)


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
        self._capacity: Amount = NOTHING
        self.costs = EvictionCosts(now)
        self.candidate_heaps: dict[object, CandidateHeap] = {}  # of the solver, shared by all jobs of the cycle
        self.gangs: dict[str, JobState] = {}  # jobs of several tasks
        self.unschedulable: dict[str, Refusal] = {}  # jobs that cannot start on any node
        self.nominated: dict[JobState, list[TaskSlot]] = {}  # tasks that an earlier plan nominated
        self.reservation: CapacityReservation | None = None
        self.queueless_jobs: dict[str, None] = {}  # jobs of no project that hold devices
        for job in snapshot.jobs:
            self.pool.pod_affinity.watch(job.pod_affinity)
            self.pool.pod_affinity.watch(job.pod_anti_affinity, anti_affinity=True)

    @cached_property
    def victims(self) -> Victims:
        return Victims(self.jobs)

    # ---------------------------------------------------------------- jobs

    def add_jobs(self, jobs: Iterable[Job]) -> list[JobState]:
        """Add jobs, sorted by name: those that hold something in this pool, and those that wait for it."""
        added: list[JobState] = []
        queues, add = self.tree.queues, self.pool.add
        for source in jobs:
            job = self.make_job(source)
            if job is None:
                self._add_queueless(source)
                continue
            queue = queues[source.queue]
            for member in job.members:
                if member.origin is not None:
                    add(member)
                self._count(member, queue)
                self.count_shape(member)
            added.append(job)
            if not job.single_task:
                self.gangs[job.name] = job
        self.jobs += added
        self.pool.sort_nodes()
        self._total_queues(added)
        return added

    def _add_queueless(self, job: Job) -> None:
        """Allocate what a job of no project holds. It has no fair share, does not wait and is not evicted."""
        for task in job.tasks:
            node = self.pool.nodes_by_name.get(task.node)
            if node is not None and task.state in _HOLDS_DEVICES:
                self.queueless_jobs[job.name] = None
                self.pool.pod_affinity.count(job, node)
                for view in {id(view): view for view in (node.after_release, node.now)}.values():
                    node.allocate(view, task.request.cpu, task.request.memory, node.allocs_of(task.shares))

    def make_job(self, source: Job) -> JobState | None:
        """The state of a job and its tasks, which counts nowhere yet. None if its queue does not exist."""
        queue = self.tree.queues.get(source.queue)
        if queue is None or queue.children:
            text = f"project {source.queue} does not exist" if source.queue else "its namespace belongs to no project"
            self.unschedulable[source.name] = Refusal("no-project", Verdict.NEVER, text)
            return None
        job = JobState(source, queue)
        for task in source.tasks if len(source.tasks) == 1 else sorted(source.tasks, key=_task_order):
            job.members.append(self._make_slot(job, task))
        if job.pending and source.hindrance:
            self.unschedulable[source.name] = Refusal("cannot-give", Verdict.NEVER, source.hindrance)
        elif job.pending and self.claims is not None and source.claims:
            missing = [claim for claim in source.claims if claim not in self.claims]
            if missing:
                text = f"volume claim {missing[0]} does not exist; create it and this starts"
                self.unschedulable[source.name] = Refusal("claim-missing", Verdict.NOT_NOW, text)
        return job

    def _make_slot(self, job: JobState, task: Task) -> TaskSlot:
        if task.state is TaskState.PENDING:
            job.pending = True
            return TaskSlot(job, task, PENDING)
        if task.state is TaskState.NOMINATED:
            slot = TaskSlot(job, task, PENDING)
            self.nominated.setdefault(job, []).append(slot)
            return slot
        if task.state in _NOT_SCHEDULED:
            return TaskSlot(job, task, ABSENT)
        slot = TaskSlot(job, task, self._running_state(task))
        node = self.pool.nodes_by_name.get(task.node)
        if node is not None:
            slot.node = node
            slot.allocs = allocs = node.allocs_of(task.shares)
            request = task.request
            size = node.sizes[allocs[0][0]] if allocs and request.memory_mib else 0
            slot.amount = (request.quota(size), request.cpu, request.memory)
            slot.origin = (node, allocs, slot.amount)
        return slot

    def _running_state(self, task: Task) -> SlotState:
        if task.state is TaskState.RUNNING:
            return RUNNING
        # A task that terminates for too long may never end: nothing is planned on its devices.
        grace, since = self.policy.terminating_grace, task.releasing_since
        return STUCK if grace is not None and since is not None and self.now - since > grace else RELEASING

    def _count(self, member: TaskSlot, queue: QueueState) -> None:
        """Count a task at its own queue. `_total_queues` adds all leaves up to the queues above them."""
        if member.state is PENDING:
            gpu, cpu, memory = self.placer.task_class(member).amount
            counts = queue.pending
        elif member.origin is None:
            return
        else:
            if self.pool.pod_affinity.terms:  # a terminating task counts for affinity until it has ended
                self.pool.pod_affinity.add(member)
            if member.state not in PRESENT:
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

    def count_shape(self, member: TaskSlot, sign: int = 1) -> None:
        """Count a task as a sample of what is requested, for the placement policy `least-fragments`."""
        if self.pool.fragments is not None and member.state is not ABSENT:
            self.pool.fragments.count(self.placer.task_class(member), sign)

    def close(self) -> None:
        """Break the reference cycles between jobs and tasks, so that memory is freed without the garbage collector."""
        for job in self.jobs:
            for member in job.members:
                del member.job
        self.jobs = []

    # ---------------------------------------------------------------- batches of pending jobs

    def is_schedulable(self, job: JobState) -> bool:
        """Whether a pending job would start if there were enough capacity."""
        return job.name not in self.unschedulable and bool(job.next_tasks())

    def pending_batches(self, jobs: Iterable[JobState]) -> dict[object, Batch]:
        """The schedulable jobs among these in batches, without those that have nominated tasks."""
        return self.batches(job for job in jobs if self._is_batched(job))

    def batch_key_of(self, job: JobState) -> object | None:
        """The key of the job's batch in `pending_batches`; None if it is in none."""
        return self._batch_key(job) if self._is_batched(job) else None

    def _is_batched(self, job: JobState) -> bool:
        return job.pending and job not in self.nominated and self.is_schedulable(job)

    def _batch_key(self, job: JobState) -> object:
        return (job.queue.name, self.signature(job, job.next_tasks()))

    def batches(self, jobs: Iterable[JobState]) -> dict[object, Batch]:
        """These jobs in batches of equal requests."""
        alike: dict[object, list[JobState]] = {}
        for job in jobs:
            alike.setdefault(self._batch_key(job), []).append(job)
        return {
            key: Batch(sorted(batch, key=JobState.order) if len(batch) > 1 else batch) for key, batch in alike.items()
        }

    def signature(self, job: JobState, members: Sequence[TaskSlot]) -> tuple[object, ...]:
        """Requests of one queue with equal signatures have the same outcome."""
        source = job.source
        class_of = self.placer.task_class
        classes = (class_of(members[0]).id,) if len(members) == 1 else tuple(class_of(member).id for member in members)
        if len(job.members) == len(members) and not source.subgroups and source.topology_constraint is None:
            return (classes, job.nonpreemptible, source.priority, source.created if source.preemption_delay else 0)
        if job.present or source.preemption_delay:
            return (source.name,)
        subgroups = tuple(sorted(source.subgroups, key=lambda subgroup: subgroup.name))
        # Where not every subgroup is needed, others than the next may start instead.
        all_tasks = (
            tuple(sorted((member.task.subgroup, class_of(member).id) for member in job.members))
            if subgroups
            else len(job.members)
        )
        return (
            classes,
            job.nonpreemptible,
            source.priority,
            all_tasks,
            source.topology_constraint,
            subgroups,
            source.min_subgroups,
        )

    # ---------------------------------------------------------------- fair shares

    def compute_fair_shares(self) -> None:
        self.tree.compute_shares(self._capacity, self.policy)
        if self.pool.fragments is not None:
            self.pool.fragments.update_weights()

    def _total_queues(self, added: list[JobState]) -> None:
        """Count what the leaves use and wait for at the queues above them, and compute fair shares."""
        if len(added) == len(self.jobs):  # the first time; jobs that are added later wait, and use nothing
            for leaf in self.tree.leaves:
                for queue in leaf.path[1:]:
                    for r in range(3):
                        queue.used[r] += leaf.used[r]
                        queue.nonpreemptible[r] += leaf.nonpreemptible[r]
        else:
            self._recount_pending()
        self._capacity = self._total_capacity()
        self.compute_fair_shares()

    def _recount_pending(self) -> None:
        for leaf in self.tree.leaves:
            leaf.pending = [0, 0, 0]
        for job in self.jobs:
            for member in job.members:
                if member.state is PENDING:
                    amount = self.placer.task_class(member).amount
                    for r in range(3):
                        job.queue.pending[r] += amount[r]

    def _total_capacity(self) -> Amount:
        """What the queues share: nodes that are ready, without what pods of other schedulers use."""
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
