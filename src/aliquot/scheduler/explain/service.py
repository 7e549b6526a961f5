"""Answers about jobs while the scheduler works: what is in the last plan at once, what has to be tried out in a thread.

Whose turn it is and what would help are worked out at most once for each plan. On a small cluster that takes
milliseconds; on a large one an answer does not wait for the line (it has it the next time somebody asks), and trying
ends when its time is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aliquot.api import Workload
from aliquot.api.base import Json
from aliquot.planner.queues.queue_position import QueuePosition, queue_positions
from aliquot.planner.reasons.what_if import Change, trials
from aliquot.scheduler.explain.report import CanView, WhatIfResult, explain_workload
from aliquot.scheduler.last_decision import Decision, LastDecision
from aliquot.scheduler.snapshot import job_name

T = TypeVar("T")
_LINE_SECONDS = 0.1  # that an answer waits for the line, where nothing is to be tried
_TRYING_SECONDS = 2.0  # a person waits so long for a better answer, and the scheduler's thread is not held up for more


class Explainer:
    def __init__(self, last: LastDecision, clock: Callable[[], float] = time.time) -> None:
        self._last = last
        self._clock = clock
        # One thread: however many ask, the scheduler has to share its processor with one of them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="explain")
        self._about: Decision | None = None
        self._line: asyncio.Future[dict[str, QueuePosition]] | None = None
        self._tried: dict[str, asyncio.Future[WhatIfResult]] = {}

    def decision(self) -> Decision:
        """The last one; `Unavailable` before the first."""
        return self._last.get()

    async def explain(self, workload: Workload, sees: CanView, *, what_if: bool = False) -> Json:
        """How a workload stands. `sees`: whose jobs may be named. `what_if`: also try what would let it run now."""
        decision = self.decision()
        name = job_name(workload.metadata.namespace, workload.metadata.name)
        turn, tried = None, None
        if name in decision.plan.refusals and name in decision.jobs:
            self._look_at(decision)
            place = self._line = self._line or self.aside(lambda: _line(decision))
            await asyncio.wait((place,), timeout=None if what_if else _LINE_SECONDS)
            turn = place.result().get(name) if place.done() else None
            if what_if:
                trying = self._tried.get(name) or self.aside(lambda: _try(decision, name))
                if self._about is decision:  # else another plan has come, and the answer is still about this one
                    self._tried[name] = trying
                tried = await asyncio.shield(trying)
        return explain_workload(decision, workload, self._clock(), sees, turn, tried)

    def aside(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do what takes long in the thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _look_at(self, decision: Decision) -> None:
        if decision is not self._about:
            self._about, self._line, self._tried = decision, None, {}


def _line(decision: Decision) -> dict[str, QueuePosition]:
    return queue_positions(decision.snapshot, decision.policy, decision.now, decision.plan, decision.policies)


def _try(decision: Decision, name: str) -> WhatIfResult:
    until = time.monotonic() + _TRYING_SECONDS
    found: list[Change] = []
    count = 0
    for claim in trials(decision.snapshot, decision.policy, decision.now, name, decision.plan, decision.policies):
        count += 1
        if claim is not None:
            found.append(claim)
        if time.monotonic() > until:
            return WhatIfResult(tuple(found), count, complete=False)
    return WhatIfResult(tuple(found), count)
