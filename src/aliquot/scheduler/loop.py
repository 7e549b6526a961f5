"""The scheduling loop: wait for a change, read the cache, plan, apply.

The planner decides, and `plan_applier` writes its decisions. One process leads and runs the loop. The others plan only
when a request asks for an explanation, and apply nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog

from aliquot.api import KINDS, Pod
from aliquot.errors import PlatformError
from aliquot.planner import Job, Plan, Policy, Snapshot, plan
from aliquot.planner.incremental import IncrementalPlanner
from aliquot.scheduler.binder import Binder, StoreBinder
from aliquot.scheduler.cache import SchedulerCache
from aliquot.scheduler.last_decision import Decision, LastDecision
from aliquot.scheduler.plan_applier import RETRY_SECONDS, PlanApplier
from aliquot.scheduler.scheduling_context import SchedulingContext
from aliquot.scheduler.wakeups import next_wakeup
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store

# Changes come in bursts: those within 5 ms are handled in one cycle. Too short for a user to notice.
_DEBOUNCE_SECONDS = 0.005
_PLANS_BETWEEN_CHECKS = 500  # rare enough that the cost of a full plan does not matter
_CATCH_UP_SECONDS = 10.0  # how long a new leader waits for its informers to show existing bindings
_CATCH_UP_POLL_SECONDS = 0.05
log = structlog.get_logger()


class _PlannerInput(NamedTuple):
    snapshot: Snapshot
    policy: Policy
    policies: Mapping[str, Policy]
    now: float
    changed_jobs: Mapping[str, Job | None]


class Scheduler:
    def __init__(
        self,
        store: Store,
        informers: Informers,
        clock: Callable[[], float] = time.time,
        last: LastDecision | None = None,
        binder: Binder | None = None,
        context: SchedulingContext | None = None,
    ) -> None:
        self._store = store
        self._binder = binder or StoreBinder(store)
        self._clock = clock
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._cache = SchedulerCache(informers, self._wake.set, context)
        self._applier = PlanApplier(store, self._cache, self._binder, self._wake_in, clock)
        self._planner = IncrementalPlanner()
        self._planner_lock = asyncio.Lock()
        self._plans = 0
        self._leads = False
        self._refreshing: asyncio.Task[None] | None = None
        self._last = last or LastDecision()
        self._last.refresh = self._refresh

    async def run(self) -> None:
        """Leads until cancelled. May be called again later; each time starts from what the cache shows."""
        await self._cache.wait_synced()
        await self._catch_up()
        try:
            await self._binder.abandon_unfinished()
        except PlatformError as exc:  # unfinished bindings then end by their own timeout
            log.info("cannot abandon unfinished bindings", error=str(exc))
        self._cache.forget_all()
        self._wake.set()
        self._leads = True
        try:
            while True:
                await self._wake.wait()
                await asyncio.sleep(_DEBOUNCE_SECONDS)
                self._wake.clear()
                try:
                    await self._cycle()
                except Exception as exc:  # one bad object must not stop scheduling for all others
                    log.exception("cycle failed", error=str(exc))
                    self._wake_in(RETRY_SECONDS)
        finally:
            self._leads = False
            self._applier.cancel_bindings()

    async def _catch_up(self) -> None:
        """Waits until the cache shows every binding in the store, such as the last ones of the previous leader."""
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        while True:
            try:
                missing = await self._bindings_not_cached()
                if not missing:
                    return
                if time.monotonic() > deadline:  # pods that cannot be decoded, for example
                    log.warning("starting although the cache lacks bindings", pods=len(missing), first=missing[0])
                    return
            except PlatformError as exc:
                log.info("cannot list bindings", error=str(exc))
            await asyncio.sleep(_CATCH_UP_POLL_SECONDS)

    async def _bindings_not_cached(self) -> list[str]:
        return [
            f"{pod.namespace}/{pod.name}"
            for pod in (await self._store.driver.list(KINDS.of(Pod))).items
            if (pod.data.get("spec") or {}).get("nodeName")
            and not self._cache.has_node(pod.namespace, pod.name, pod.uid)
        ]

    # ---------------------------------------------------------------- planning

    async def _cycle(self) -> None:
        await self._applier.finish_evictions()
        async with self._planner_lock:
            decision = self._decide(self._read_cache())
        self._last.record(decision)
        policies = (decision.policy, *decision.policies.values())
        wakeup = next_wakeup(decision.snapshot, decision.plan, policies, decision.now, self._cache.valid_until)
        if not await self._applier.apply(decision.snapshot, decision.plan):
            self._wake.set()
        if wakeup is not None:
            self._wake_in(wakeup - self._clock() + _DEBOUNCE_SECONDS)

    async def _refresh(self) -> None:
        """Plans without applying, where another process leads: every replica can say why a job waits.

        The planner runs in a worker thread, so that the event loop goes on serving requests. Requests that arrive
        meanwhile wait for the same plan, and a request that is cancelled does not end it.
        """
        if self._refreshing is None:
            if self._leads or not self._wake.is_set() or not self._cache.is_synced:
                return
            self._refreshing = asyncio.create_task(self._plan_in_thread())
            self._refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(self._refreshing)

    async def _plan_in_thread(self) -> None:
        async with self._planner_lock:
            if self._leads:
                return  # the loop plans anyway, and the wake-up is for it
            self._wake.clear()
            self._last.record(await asyncio.to_thread(self._decide, self._read_cache()))

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("plan on request failed", error=str(error))

    def _read_cache(self) -> _PlannerInput:
        """Runs on the event loop: informer events change the cache there."""
        policy, policies = self._cache.policies()
        now = self._clock()
        return _PlannerInput(self._cache.snapshot(now), policy, policies, now, self._cache.take_changed_jobs())

    def _decide(self, given: _PlannerInput) -> Decision:
        """Runs in any thread, under the planner lock."""
        return Decision(given.snapshot, given.policy, given.policies, given.now, self._plan(given))

    def _plan(self, given: _PlannerInput) -> Plan:
        """Plans incrementally. Now and then compares the plan with one made from scratch."""
        snapshot, policy, policies, now, changed_jobs = given
        # After a failure the next plan starts from scratch.
        planner, self._planner = self._planner, IncrementalPlanner()
        planned = planner.plan(snapshot, policy, now, policies, changed_jobs)
        self._plans += 1
        if self._plans % _PLANS_BETWEEN_CHECKS == 0:
            from_scratch = plan(snapshot, policy, now, policies)
            if from_scratch != planned:
                log.error("incremental plan differs from the plan made from scratch", plans=self._plans)
                return from_scratch
        self._planner = planner
        return planned

    def _wake_in(self, seconds: float) -> None:
        """Wakes the loop after so many seconds, or earlier if an earlier time was asked for."""
        seconds = max(0.0, seconds)
        loop = asyncio.get_running_loop()
        if self._timer is not None and loop.time() < self._timer.when() <= loop.time() + seconds:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._wake.set)
