"""Collects the decisions and refusals of a cycle, and builds the plan from them."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import BOUND, NOMINATED, PLACED, JobState, TaskSlot
from aliquot.planner.plan import Bind, Eviction, Nomination, Placement, Plan, Refusal, Verdict
from aliquot.planner.queues.queue_order import Batch
from aliquot.planner.reasons.refusals import RefusalBuilder

_NODES_NAMED = 3
INCOMPLETE = Refusal("incomplete", Verdict.NOT_NOW, "too few of its tasks exist yet to start together")
NOT_TRIED = Refusal("not-tried", Verdict.NOT_NOW, "no step of the scheduling policy starts it")

# Step, code, and the object that the code is about. Made into a refusal only for jobs that wait in the end.
Obstacle = tuple[str, str, object]
Refusals = dict[str, tuple[Refusal, ...]]


class PlanBuilder:
    def __init__(self) -> None:
        self._evicted: dict[TaskSlot, tuple[str, str]] = {}  # the job it is evicted for, and the rule
        self._attempted: dict[str, dict[Batch, None]] = {}  # by pool
        self._obstacles: dict[Batch, list[Obstacle]] = {}

    def evict(self, members: Iterable[TaskSlot], by: JobState | None, rule: str) -> None:
        for member in members:
            self._evicted[member] = (by.name if by else "", rule)

    def record_attempt(self, state: CycleState, batches: Iterable[Batch]) -> None:
        """Record that these batches are tried in a pool."""
        self._attempted.setdefault(state.pool_name, {}).update(dict.fromkeys(batches))

    def record_obstacle(self, state: CycleState, batch: Batch, step: str, code: str, about: object = None) -> None:
        """Record what a step found in the way of the jobs that remain in a batch."""
        self._attempted[state.pool_name][batch] = None  # the rest of a job that has begun is a batch of its own
        self._obstacles.setdefault(batch, []).append((step, code, about))

    def plan(self, states: Iterable[CycleState]) -> Plan:
        states = list(states)
        binds: list[Bind] = []
        nominations: list[Nomination] = []
        for state in states:
            placed = [m for m in state.pool.changed_tasks() if m.state in PLACED and m not in self._evicted]
            for member in sorted(placed, key=lambda member: (member.job.name, *member.order())):
                node = member.node
                assert node is not None
                shares = node.shares_of(member.allocs)
                if member.state is BOUND:
                    binds.append(Bind(member.job.name, member.task.name, node.name, shares))
                else:
                    nominations.append(Nomination(member.job.name, member.task.name, node.name, shares))
        return Plan(
            binds=tuple(binds),
            nominations=tuple(nominations),
            evictions=tuple(map(self._eviction, self._evicted)),
            refusals=self._refusals(states),
            fair_shares={
                state.pool_name: {name: queue.share for name, queue in state.tree.queues.items()} for state in states
            },
        )

    def _eviction(self, member: TaskSlot) -> Eviction:
        by, rule = self._evicted[member]
        assert member.origin is not None
        to, nominated = None, False
        if member.state in PLACED and member.node is not None:
            to, nominated = Placement(member.node.name, member.node.shares_of(member.allocs)), member.state is NOMINATED
        text = _eviction_text(rule, by, to)
        return Eviction(member.job.name, member.task.name, member.origin[0].name, rule, text, by, to, nominated)

    # ---------------------------------------------------------------- refusals

    def _refusals(self, states: list[CycleState]) -> Refusals:
        """The reasons why each job with pending tasks waits."""
        refusals: Refusals = {}
        for state in states:
            in_pool = self._refusals_in(state)
            if refusals:  # a job that several pools refuse gets the reasons of all
                in_pool = {name: (*refusals.get(name, ()), *reasons) for name, reasons in in_pool.items()}
            refusals |= in_pool
        if len(states) > 1:  # a job that one pool refuses may be placed in another
            for state in states:
                for member in state.pool.changed_tasks():
                    if member.state in PLACED and not member.job.waiting():
                        refusals.pop(member.job.name, None)
        return refusals

    def _refusals_in(self, state: CycleState) -> Refusals:
        refusal_builder = RefusalBuilder(state)
        refusals: Refusals = {name: (refusal,) for name, refusal in state.unschedulable.items()}
        for batch in self._attempted[state.pool_name]:
            if batch.served == len(batch.jobs):
                continue
            by_text: dict[str, Refusal] = {}  # a full queue is found by every step
            for obstacle in self._obstacles.get(batch, ()):
                refusal = refusal_builder.refusal(batch.head, *obstacle)
                by_text.setdefault(refusal.text, refusal)
            # What can never be met makes the other reasons irrelevant.
            never = tuple(refusal for refusal in by_text.values() if refusal.verdict is Verdict.NEVER)
            reasons = never or tuple(by_text.values()) or (NOT_TRIED,)
            refusals |= dict.fromkeys((job.name for job in batch.remaining()), reasons)
        self._add_reservation(state, refusals)
        for name, job in state.gangs.items():
            if name not in refusals and (job.pending or job in state.nominated) and job.waiting():
                refusals[name] = (INCOMPLETE if not job.next_tasks() else NOT_TRIED,)
        return refusals

    def _add_reservation(self, state: CycleState, refusals: Refusals) -> None:
        """Add the capacity reservation to the reasons of its job, and of the jobs that lacked capacity."""
        reservation = state.reservation
        if reservation is None:
            return
        nodes = ", ".join(reservation.nodes[:_NODES_NAMED])
        if len(reservation.nodes) > _NODES_NAMED:
            nodes += " and others"
        project = reservation.job.queue.display_name
        own = f"GPUs of {nodes} are kept for it as they come free, since it has waited so long"
        others = f"GPUs of {nodes} are kept for a job of project {project}, which has waited longer"
        for batch in self._attempted[state.pool_name]:
            if batch.served == len(batch.jobs) or not self._lacked_capacity(batch):
                continue
            before = refusals[batch.head.name]
            if before[0].verdict is not Verdict.NEVER:
                last = Refusal("kept", Verdict.NOT_NOW, others, "allocate", until=reservation.until)
                refusals |= dict.fromkeys((job.name for job in batch.remaining()), (*before, last))
            if batch.head is reservation.job:
                last = Refusal("kept", Verdict.NOT_NOW, own, "allocate", until=reservation.until)
                refusals[batch.head.name] = (*before, last)

    def _lacked_capacity(self, batch: Batch) -> bool:
        return any(code == "capacity" for _, code, _ in self._obstacles.get(batch, ()))


def _eviction_text(rule: str, by: str, to: Placement | None) -> str:
    if rule == "stale-gang":
        return "it ran with fewer tasks than its minimum"
    if to is not None:
        return f"moved to {to.node} to make room for {by}"
    return f"{'reclaimed' if rule == 'reclaim' else 'preempted'} by {by}"
