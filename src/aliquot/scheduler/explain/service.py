"""Answers requests about jobs while the scheduler works.

What the last plan contains is reported at once. What needs the planner runs in one worker thread: the queue positions
and the what-if trials are each computed at most once per plan. On a small cluster that takes milliseconds. On a large
one an answer does not wait for the queue positions (a later request gets them), and the trials stop at a time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aliquot.api import Json, Workload
from aliquot.planner.queues.queue_position import QueuePosition, queue_positions
from aliquot.planner.reasons.what_if import Change, trials
from aliquot.scheduler.explain.report import CanView, WhatIfResult, explain_workload
from aliquot.scheduler.last_decision import Decision, LastDecision
from aliquot.scheduler.snapshot import job_name

T = TypeVar("T")
_POSITIONS_SECONDS = 0.1  # how long an answer without trials waits for the queue positions
_TRIALS_SECONDS = 2.0  # a user waits this long for a better answer, and the thread is not blocked for longer


class Explainer:
    def __init__(self, last: LastDecision, clock: Callable[[], float] = time.time) -> None:
        self._last = last
        self._clock = clock
        # One thread: however many requests there are, only one of them competes with the scheduler for the processor.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="explain")
        # Computed for this decision:
        self._decision: Decision | None = None
        self._positions: asyncio.Future[dict[str, QueuePosition]] | None = None
        self._trials: dict[str, asyncio.Future[WhatIfResult]] = {}

    async def decision(self) -> Decision:
        """The latest decision; `Unavailable` before the first."""
        return await self._last.latest()

    async def explain(self, workload: Workload, can_view: CanView, *, what_if: bool = False) -> Json:
        """The state of a workload and the reasons for it. Only jobs in namespaces that `can_view` allows are named.
        `what_if` also tries which changes would let it run now."""
        decision = await self.decision()
        job = job_name(workload.metadata.namespace, workload.metadata.name)
        position, what_if_result = None, None
        if job in decision.plan.refusals and job in decision.jobs:
            self._start_over_for(decision)
            positions = self._positions = self._positions or self.run_in_thread(lambda: _queue_positions(decision))
            await asyncio.wait((positions,), timeout=None if what_if else _POSITIONS_SECONDS)
            position = positions.result().get(job) if positions.done() else None
            if what_if:
                trial = self._trials.get(job) or self.run_in_thread(lambda: _try_changes(decision, job))
                if self._decision is decision:  # a newer plan may have come; this answer is still about the older one
                    self._trials[job] = trial
                what_if_result = await asyncio.shield(trial)
        return explain_workload(decision, workload, self._clock(), can_view, position, what_if_result)

    def run_in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _start_over_for(self, decision: Decision) -> None:
        if decision is not self._decision:
            self._decision, self._positions, self._trials = decision, None, {}


def _queue_positions(decision: Decision) -> dict[str, QueuePosition]:
    return queue_positions(decision.snapshot, decision.policy, decision.now, decision.plan, decision.policies)


def _try_changes(decision: Decision, job: str) -> WhatIfResult:
    deadline = time.monotonic() + _TRIALS_SECONDS
    changes: list[Change] = []
    count = 0
    for change in trials(decision.snapshot, decision.policy, decision.now, job, decision.plan, decision.policies):
        count += 1
        if change is not None:
            changes.append(change)
        if time.monotonic() > deadline:
            return WhatIfResult(tuple(changes), count, complete=False)
    return WhatIfResult(tuple(changes), count)
