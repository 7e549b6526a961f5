"""What a cycle has decided so far, and the plan that comes of it."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.core.jobs import BOUND, RESERVED, STOPPED, JobState, Member
from aliquot.core.plan import Bind, Eviction, Place, Plan, Refusal, Reservation
from aliquot.core.scene import Scene


class Outcome:
    def __init__(self) -> None:
        self._stopped: dict[Member, tuple[str, str]] = {}  # by whom, by which rule
        self._refusals: dict[str, list[Refusal]] = {}

    def stop(self, members: Iterable[Member], by: JobState | None, rule: str) -> None:
        for member in members:
            self._stopped[member] = (by.name if by else "", rule)

    def refuse(self, job: str, refusal: Refusal) -> None:
        self._refusals.setdefault(job, []).append(refusal)

    def served(self, job: str) -> None:
        """It was refused earlier and has its place now."""
        self._refusals.pop(job, None)

    def plan(self, scenes: Iterable[Scene]) -> Plan:
        binds: list[Bind] = []
        reservations: list[Reservation] = []
        shares = {}
        for scene in scenes:
            for job in scene.jobs:
                for member in job.members:
                    if member in self._stopped or member.state > RESERVED:
                        continue
                    node = member.node
                    if node is None:
                        continue
                    make = Bind if member.state == BOUND else Reservation
                    one = make(job.name, member.task.name, node.name, node.shares_of(member.rows))
                    (binds if member.state == BOUND else reservations).append(one)  # type: ignore[attr-defined]
            shares[scene.pool] = {name: queue.share for name, queue in scene.tree.queues.items()}
        return Plan(tuple(binds), tuple(reservations), tuple(self._evictions()), self._told(), shares)

    def _evictions(self) -> Iterable[Eviction]:
        for member, (by, rule) in self._stopped.items():
            assert member.home is not None
            to, reserved = None, False
            if member.state in (BOUND, RESERVED) and member.node is not None:
                to, reserved = Place(member.node.name, member.node.shares_of(member.rows)), member.state == RESERVED
            yield Eviction(
                member.job.name, member.task.name, member.home[0].name, rule, _because(rule, by, to), by, to, reserved
            )

    def _told(self) -> dict[str, tuple[Refusal, ...]]:
        return {job: tuple(refusals) for job, refusals in sorted(self._refusals.items())}


def _because(rule: str, by: str, to: Place | None) -> str:
    match rule:
        case "reclaim":
            return f"reclaimed by {by}" if to is None else f"moved to {to.node} to make room for {by}"
        case "preempt":
            return f"preempted by {by}" if to is None else f"moved to {to.node} to make room for {by}"
        case "consolidate":
            return f"moved to {to.node if to else 'another node'} to make room for {by}"
    return "stopped: it ran with fewer members than its minimum"
