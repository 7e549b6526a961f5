"""What a cycle has decided so far, and the plan that comes of it."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.core.jobs import BOUND, RESERVED, JobState, Member
from aliquot.core.plan import Bind, Eviction, Place, Plan, Refusal, Reservation, Verdict
from aliquot.core.scene import Scene
from aliquot.core.turns import Batch
from aliquot.core.why import Why

INCOMPLETE = Refusal("incomplete", Verdict.NOT_NOW, "too few of its tasks exist yet to start together")
NOT_TRIED = Refusal("not-tried", Verdict.NOT_NOW, "no step of the scheduling policy starts it")

# (step, what stood in the way, what it was about): turned into a refusal only for those who wait in the end.
Note = tuple[str, str, object]


class Outcome:
    def __init__(self) -> None:
        self._stopped: dict[Member, tuple[str, str]] = {}  # by whom, by which rule
        self._refusals: dict[str, list[Refusal]] = {}
        self._notes: dict[Batch, list[Note]] = {}

    def stop(self, members: Iterable[Member], by: JobState | None, rule: str) -> None:
        for member in members:
            self._stopped[member] = (by.name if by else "", rule)

    def refuse(self, job: str, refusal: Refusal) -> None:
        self._refusals.setdefault(job, []).append(refusal)

    def note(self, batch: Batch, step: str, what: str, about: object = None) -> None:
        """What stood in the way of all that are left of a batch."""
        self._notes.setdefault(batch, []).append((step, what, about))

    def plan(self, scenes: Iterable[Scene]) -> Plan:
        scenes = list(scenes)
        binds: list[Bind] = []
        reservations: list[Reservation] = []
        for scene in scenes:
            for job in scene.jobs:
                for member in job.members:
                    node = member.node
                    if member.state > RESERVED or node is None or member in self._stopped:
                        continue
                    if member.state == BOUND:
                        binds.append(Bind(job.name, member.task.name, node.name, node.shares_of(member.rows)))
                    else:
                        reservations.append(
                            Reservation(job.name, member.task.name, node.name, node.shares_of(member.rows))
                        )
        shares = {scene.pool: {name: queue.share for name, queue in scene.tree.queues.items()} for scene in scenes}
        return Plan(
            tuple(binds), tuple(reservations), tuple(map(self._eviction, self._stopped)), self._told(scenes), shares
        )

    def _eviction(self, member: Member) -> Eviction:
        by, rule = self._stopped[member]
        assert member.home is not None
        to, reserved = None, False
        if member.state <= RESERVED and member.node is not None:
            to, reserved = Place(member.node.name, member.node.shares_of(member.rows)), member.state == RESERVED
        text = _because(rule, by, to)
        return Eviction(member.job.name, member.task.name, member.home[0].name, rule, text, by, to, reserved)

    def _told(self, scenes: list[Scene]) -> dict[str, tuple[Refusal, ...]]:
        """Why each job that still has tasks to start waits."""
        told = {name: tuple(refusals) for name, refusals in self._refusals.items()}
        for scene in scenes:
            why = Why(scene)
            for batch, notes in self._notes.items():
                if batch.at == len(batch.jobs) or scene.tree.queues.get(batch.head.queue.name) is not batch.head.queue:
                    continue
                reasons: dict[str, Refusal] = {}
                for note in notes:
                    one = why.refusal(batch.head, *note)
                    reasons.setdefault(one.text, one)  # a full queue stops every step alike
                for job in batch.left():
                    if job.waiting():
                        told[job.name] = (*told.get(job.name, ()), *reasons.values())
            for job in scene.jobs:
                if job.waits and job.name not in told and job.waiting():
                    told[job.name] = (INCOMPLETE if not job.next_tasks() else NOT_TRIED,)
        return {name: told[name] for name in sorted(told)}


def _because(rule: str, by: str, to: Place | None) -> str:
    if rule == "stale-gang":
        return "it ran with fewer tasks than its minimum"
    if to is not None:
        return f"moved to {to.node} to make room for {by}"
    return f"{'reclaimed' if rule == 'reclaim' else 'preempted'} by {by}"
