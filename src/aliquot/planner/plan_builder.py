"""What a cycle has decided so far, and the plan that comes of it."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import BOUND, NOMINATED, JobState, TaskSlot
from aliquot.planner.plan import Bind, Eviction, Nomination, Placement, Plan, Refusal, Verdict
from aliquot.planner.queues.queue_order import Batch
from aliquot.planner.reasons.refusals import RefusalBuilder

_NODES_NAMED = 3
INCOMPLETE = Refusal("incomplete", Verdict.NOT_NOW, "too few of its tasks exist yet to start together")
NOT_TRIED = Refusal("not-tried", Verdict.NOT_NOW, "no step of the scheduling policy starts it")

# (step, what stood in the way, what it was about): turned into a refusal only for those who wait in the end.
Note = tuple[str, str, object]


class PlanBuilder:
    def __init__(self) -> None:
        self._stopped: dict[TaskSlot, tuple[str, str]] = {}  # by whom, by which rule
        self._batches: dict[str, dict[Batch, None]] = {}
        self._notes: dict[Batch, list[Note]] = {}

    def evict(self, members: Iterable[TaskSlot], by: JobState | None, rule: str) -> None:
        for member in members:
            self._stopped[member] = (by.name if by else "", rule)

    def tried(self, state: CycleState, batches: Iterable[Batch]) -> None:
        """Who had a turn in a pool."""
        self._batches.setdefault(state.pool_name, {}).update(dict.fromkeys(batches))

    def note(self, state: CycleState, batch: Batch, step: str, what: str, about: object = None) -> None:
        """What stood in the way of all that are left of a batch."""
        self._batches[state.pool_name][batch] = None  # what is left of a job that has begun is a batch of its own
        self._notes.setdefault(batch, []).append((step, what, about))

    def plan(self, states: Iterable[CycleState]) -> Plan:
        states = list(states)
        binds: list[Bind] = []
        nominations: list[Nomination] = []
        for state in states:
            placed = [m for m in state.pool.touched() if m.state <= NOMINATED and m not in self._stopped]
            for member in sorted(placed, key=lambda member: (member.job.name, *member.order())):
                node = member.node
                assert node is not None
                if member.state == BOUND:
                    binds.append(Bind(member.job.name, member.task.name, node.name, node.shares_of(member.allocs)))
                else:
                    nominations.append(
                        Nomination(member.job.name, member.task.name, node.name, node.shares_of(member.allocs))
                    )
        shares = {state.pool_name: {name: queue.share for name, queue in state.tree.queues.items()} for state in states}
        return Plan(
            tuple(binds), tuple(nominations), tuple(map(self._eviction, self._stopped)), self._told(states), shares
        )

    def _eviction(self, member: TaskSlot) -> Eviction:
        by, rule = self._stopped[member]
        assert member.origin is not None
        to, nominated = None, False
        if member.state <= NOMINATED and member.node is not None:
            to, nominated = Placement(member.node.name, member.node.shares_of(member.allocs)), member.state == NOMINATED
        text = _because(rule, by, to)
        return Eviction(member.job.name, member.task.name, member.origin[0].name, rule, text, by, to, nominated)

    def _told(self, states: list[CycleState]) -> dict[str, tuple[Refusal, ...]]:
        """Why each job that still has tasks to start waits."""
        told: dict[str, tuple[Refusal, ...]] = {}
        for state in states:
            here = self._told_in(state)
            if told:  # refused in one pool, it may have its place in another, or be refused there too
                here = {name: (*told.get(name, ()), *refusals) for name, refusals in here.items()}
            told |= here
        if len(states) > 1:
            for state in states:
                for member in state.pool.touched():
                    if member.state <= NOMINATED and not member.job.waiting():
                        told.pop(member.job.name, None)
        return told

    def _told_in(self, state: CycleState) -> dict[str, tuple[Refusal, ...]]:
        why = RefusalBuilder(state)
        told: dict[str, tuple[Refusal, ...]] = {name: (refusal,) for name, refusal in state.unschedulable.items()}
        for batch in self._batches[state.pool_name]:
            if batch.served == len(batch.jobs):
                continue
            reasons: dict[str, Refusal] = {}
            for note in self._notes.get(batch, ()):
                one = why.refusal(batch.head, *note)
                reasons.setdefault(one.text, one)  # a full queue stops every step alike
            final = tuple(one for one in reasons.values() if one.verdict is Verdict.NEVER)  # then the rest says nothing
            refusals = final or tuple(reasons.values()) or (NOT_TRIED,)
            told |= dict.fromkeys((job.name for job in batch.remaining()), refusals)
        self._tell_kept(state, told)
        for name, job in state.gangs.items():
            if name not in told and (job.waits or job in state.nominated) and job.waiting():
                told[name] = (INCOMPLETE if not job.next_tasks() else NOT_TRIED,)
        return told

    def _tell_kept(self, state: CycleState, told: dict[str, tuple[Refusal, ...]]) -> None:
        """For whom room is kept, to it and to those who found none meanwhile."""
        kept = state.reservation
        if kept is None:
            return
        where = ", ".join(kept.nodes[:_NODES_NAMED]) + (" and others" if len(kept.nodes) > _NODES_NAMED else "")
        own = f"GPUs of {where} are kept for it as they come free, since it has waited so long"
        others = f"GPUs of {where} are kept for a job of project {kept.job.queue.display_name}, which has waited longer"
        for batch in self._batches[state.pool_name]:
            if batch.served == len(batch.jobs) or all(what != "capacity" for _, what, _ in self._notes.get(batch, ())):
                continue
            before = told[batch.head.name]
            if before[0].verdict is not Verdict.NEVER:
                last = Refusal("kept", Verdict.NOT_NOW, others, "allocate", until=kept.until)
                told |= dict.fromkeys((job.name for job in batch.remaining()), (*before, last))
            if batch.head is kept.job:
                last = Refusal("kept", Verdict.NOT_NOW, own, "allocate", until=kept.until)
                told[batch.head.name] = (*before, last)


def _because(rule: str, by: str, to: Placement | None) -> str:
    if rule == "stale-gang":
        return "it ran with fewer tasks than its minimum"
    if to is not None:
        return f"moved to {to.node} to make room for {by}"
    return f"{'reclaimed' if rule == 'reclaim' else 'preempted'} by {by}"
