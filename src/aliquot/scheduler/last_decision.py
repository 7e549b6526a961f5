"""What the scheduler decided last, for those who ask about it. Everything in it is frozen: whoever has it may look at
it from any thread, for as long as he likes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from aliquot.errors import Unavailable
from aliquot.planner import Job, Plan, Policy, Queue, Snapshot


@dataclass(frozen=True)
class Decision:
    """A plan, and all that it was decided from."""

    snapshot: Snapshot
    policy: Policy
    policies: Mapping[str, Policy]
    now: float
    plan: Plan = field(repr=False)

    @cached_property
    def jobs(self) -> Mapping[str, Job]:
        return {job.name: job for job in self.snapshot.jobs}

    @cached_property
    def queues(self) -> Mapping[str, Queue]:
        return {queue.name: queue for queue in self.snapshot.queues}

    @cached_property
    def pools(self) -> Mapping[str, str]:
        """The node pool of each node."""
        return {node.name: node.pool for node in self.snapshot.nodes}


class LastDecision:
    """Where the scheduler leaves it."""

    def __init__(self) -> None:
        self._decision: Decision | None = None
        # Asked first: a scheduler that does not lead decides only for those who ask.
        self.refresh: Callable[[], None] | None = None

    def take(
        self, snapshot: Snapshot, policy: Policy, policies: Mapping[str, Policy], now: float, decided: Plan
    ) -> None:
        self._decision = Decision(snapshot, policy, policies, now, decided)

    def get(self) -> Decision:
        if self.refresh is not None:
            self.refresh()
        if self._decision is None:
            raise Unavailable("the scheduler has not decided anything yet", hint="ask again in a moment")
        return self._decision
