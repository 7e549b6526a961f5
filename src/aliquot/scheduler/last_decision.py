"""The scheduler's last decision, for requests that ask about it.

A decision is frozen: any thread may read it for as long as it likes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from aliquot.errors import Unavailable
from aliquot.planner import Job, Plan, Policy, Queue, Snapshot


@dataclass(frozen=True)
class Decision:
    """A plan and the input that it was made from."""

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
    """Where the scheduler puts its decision after every plan."""

    def __init__(self) -> None:
        self._decision: Decision | None = None
        # Called by `latest`: a scheduler that does not lead plans only on request.
        self.refresh: Callable[[], Awaitable[None]] | None = None

    def record(self, decision: Decision) -> None:
        self._decision = decision

    def get(self) -> Decision:
        """The last recorded decision; `Unavailable` before the first."""
        if self._decision is None:
            raise Unavailable("the scheduler has not decided anything yet", hint="ask again in a moment")
        return self._decision

    async def latest(self) -> Decision:
        """The decision for the present state of the cluster: made now where this process does not lead."""
        if self.refresh is not None:
            await self.refresh()
        return self.get()
