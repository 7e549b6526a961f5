"""What a cycle has decided so far, and the plan that comes of it."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import BOUND, RESERVED, JobState, TaskSlot
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

    def stop(self, members: Iterable[TaskSlot], by: JobState | None, rule: str) -> None:
        for member in members:
            self._stopped[member] = (by.name if by else "", rule)

    def tried(self, scene: CycleState, batches: Iterable[Batch]) -> None:
        """Who had a turn in a pool."""
        self._batches.setdefault(scene.pool, {}).update(dict.fromkeys(batches))

    def note(self, scene: CycleState, batch: Batch, step: str, what: str, about: object = None) -> None:
        """What stood in the way of all that are left of a batch."""
        self._batches[scene.pool][batch] = None  # what is left of a job that has begun is a batch of its own
        self._notes.setdefault(batch, []).append((step, what, about))

    def plan(self, scenes: Iterable[CycleState]) -> Plan:
        scenes = list(scenes)
        binds: list[Bind] = []
        reservations: list[Nomination] = []
        for scene in scenes:
            placed = [m for m in scene.room.touched() if m.state <= RESERVED and m not in self._stopped]
            for member in sorted(placed, key=lambda member: (member.job.name, *member.order())):
                node = member.node
                assert node is not None
                if member.state == BOUND:
                    binds.append(Bind(member.job.name, member.task.name, node.name, node.shares_of(member.rows)))
                else:
                    reservations.append(
                        Nomination(member.job.name, member.task.name, node.name, node.shares_of(member.rows))
                    )
        shares = {scene.pool: {name: queue.share for name, queue in scene.tree.queues.items()} for scene in scenes}
        return Plan(
            tuple(binds), tuple(reservations), tuple(map(self._eviction, self._stopped)), self._told(scenes), shares
        )

    def _eviction(self, member: TaskSlot) -> Eviction:
        by, rule = self._stopped[member]
        assert member.home is not None
        to, reserved = None, False
        if member.state <= RESERVED and member.node is not None:
            to, reserved = Placement(member.node.name, member.node.shares_of(member.rows)), member.state == RESERVED
        text = _because(rule, by, to)
        return Eviction(member.job.name, member.task.name, member.home[0].name, rule, text, by, to, reserved)

    def _told(self, scenes: list[CycleState]) -> dict[str, tuple[Refusal, ...]]:
        """Why each job that still has tasks to start waits."""
        told: dict[str, tuple[Refusal, ...]] = {}
        for scene in scenes:
            here = self._told_in(scene)
            if told:  # refused in one pool, it may have its place in another, or be refused there too
                here = {name: (*told.get(name, ()), *refusals) for name, refusals in here.items()}
            told |= here
        if len(scenes) > 1:
            for scene in scenes:
                for member in scene.room.touched():
                    if member.state <= RESERVED and not member.job.waiting():
                        told.pop(member.job.name, None)
        return told

    def _told_in(self, scene: CycleState) -> dict[str, tuple[Refusal, ...]]:
        why = RefusalBuilder(scene)
        told: dict[str, tuple[Refusal, ...]] = {name: (refusal,) for name, refusal in scene.unready.items()}
        for batch in self._batches[scene.pool]:
            if batch.served == len(batch.jobs):
                continue
            reasons: dict[str, Refusal] = {}
            for note in self._notes.get(batch, ()):
                one = why.refusal(batch.head, *note)
                reasons.setdefault(one.text, one)  # a full queue stops every step alike
            final = tuple(one for one in reasons.values() if one.verdict is Verdict.NEVER)  # then the rest says nothing
            refusals = final or tuple(reasons.values()) or (NOT_TRIED,)
            told |= dict.fromkeys((job.name for job in batch.remaining()), refusals)
        self._tell_kept(scene, told)
        for name, job in scene.gangs.items():
            if name not in told and (job.waits or job in scene.promised) and job.waiting():
                told[name] = (INCOMPLETE if not job.next_tasks() else NOT_TRIED,)
        return told

    def _tell_kept(self, scene: CycleState, told: dict[str, tuple[Refusal, ...]]) -> None:
        """For whom room is kept, to it and to those who found none meanwhile."""
        kept = scene.kept
        if kept is None:
            return
        where = ", ".join(kept.nodes[:_NODES_NAMED]) + (" and others" if len(kept.nodes) > _NODES_NAMED else "")
        own = f"GPUs of {where} are kept for it as they come free, since it has waited so long"
        others = f"GPUs of {where} are kept for a job of project {kept.job.queue.display_name}, which has waited longer"
        for batch in self._batches[scene.pool]:
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
