"""The scheduler as a loop: something changed, look, decide, write.

The decision is `core.plan`, and no rule of scheduling is here. What is here is how its answers reach the world, each as
one compare-and-swap on the version it was decided from:

    1. evictions    the reason is written on the pod, then into the workload's history, then the pod is deleted; what
                    was begun and not finished is finished before the next plan
    2. promises     the place is written on the waiting pod, and the next plan honours it
    3. bindings     node and devices; assumed until our picture shows them, so that the next plan does not give the
                    same device twice; should it happen all the same, the node refuses
    4. refusals     why a workload waits, in its status, where it changed
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import structlog

from aliquot import labels
from aliquot.api import KINDS, DeviceShare, Pod, Workload
from aliquot.api.base import Json
from aliquot.errors import Conflict, NotFound, PlatformError, Unavailable
from aliquot.planner import Bind, Eviction, Nomination, Plan, Policy, Snapshot, plan
from aliquot.planner.incremental import IncrementalPlanner
from aliquot.scheduler.binder import Binder, StoreBinder
from aliquot.scheduler.cache import SchedulerCache
from aliquot.scheduler.eviction_records import (
    EvictionRecord,
    eviction_record_of,
    eviction_record_text,
    grace_of,
    interrupted,
    nomination_of,
    nomination_text,
)
from aliquot.scheduler.last_decision import LastDecision
from aliquot.scheduler.refusal_writer import RefusalWriter
from aliquot.scheduler.scheduling_context import SchedulingContext
from aliquot.scheduler.wakeups import next_wakeup
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store

# Changes come in bursts; a moment's patience makes one plan of them. Short enough that nobody sees it.
_DEBOUNCE_SECONDS = 0.005
_RETRY_SECONDS = 1.0
_PLANS_BETWEEN_CHECKS = 500  # seldom enough not to be felt
_MOVE_SECONDS = 600.0  # the longest that a place is held for somebody who is on the way to it
_WRITES_AT_LEAST = 16  # before a plan is broken off for somebody in a hurry
_IN_FLIGHT = 32  # writes at a time: a store that is far away answers as many in the time of one
_BIND_SECONDS = 1.0  # that a plan waits for one binding
_CATCH_UP_SECONDS = 10.0  # the longest that a new leader waits for news of pods
_GLANCE_SECONDS = 0.05
_SHIELD_SECONDS = 30.0  # that a job is left alone whose pods somebody else's rule keeps
log = structlog.get_logger()
One = TypeVar("One")


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
        self._last = last or LastDecision()
        self._clock = clock
        self._bell = asyncio.Event()
        self._picture = SchedulerCache(informers, self._bell.set, context)
        self._timer: asyncio.TimerHandle | None = None
        self._session = IncrementalPlanner()
        self._plans = 0
        self._teller = RefusalWriter(store, self._picture, self._each, self._ring_in, clock)
        self._leads = False
        self._last.refresh = self._look
        self._under_way: set[asyncio.Task[None]] = set()  # bindings that take longer than their plan

    async def run(self) -> None:
        """Until cancelled; may be called again later, and then begins with what the picture shows."""
        await self._picture.wait_synced()
        await self._catch_up()
        try:
            await self._binder.abandon_unfinished()
        except PlatformError as exc:  # then time ends what was begun
            log.info("cannot give up what was begun", error=str(exc))
        self._picture.forget_all()
        self._bell.set()
        self._leads = True
        try:
            while True:
                await self._bell.wait()
                await asyncio.sleep(_DEBOUNCE_SECONDS)
                self._bell.clear()
                try:
                    await self._cycle()
                except Exception as exc:  # one bad object must not stop the scheduler for the others
                    log.exception("cycle failed", error=str(exc))
                    self._ring_in(_RETRY_SECONDS)
        finally:
            self._leads = False
            for task in self._under_way:
                task.cancel()

    async def _catch_up(self) -> None:
        """Until we have heard of all that was given out: by the one who led before us a moment ago, say."""
        until = time.monotonic() + _CATCH_UP_SECONDS
        while True:
            try:
                unheard = await self._unheard()
                if not unheard:
                    return
                if time.monotonic() > until:  # some that cannot be read, perhaps
                    log.warning("beginning without news of some pods", pods=len(unheard), one=unheard[0])
                    return
            except PlatformError as exc:
                log.info("cannot see what was given out", error=str(exc))
            await asyncio.sleep(_GLANCE_SECONDS)

    async def _unheard(self) -> list[str]:
        """Pods that have a node, and of which our picture does not know it."""
        found = []
        for document in (await self._store.driver.list(KINDS.of(Pod))).items:
            heard = self._picture.pods.get(document.name, document.namespace)
            placed = (document.data.get("spec") or {}).get("nodeName")
            if placed and (heard is None or heard.metadata.uid != document.uid or not heard.spec.node_name):
                found.append(f"{document.namespace}/{document.name}")
        return found

    def _look(self) -> None:
        """What we would decide, where another process leads: so every replica can say why a job waits."""
        if self._leads or not self._bell.is_set() or not self._picture.is_synced:
            return
        self._bell.clear()
        self._think()

    async def _cycle(self) -> None:
        await self._finish_evictions()
        snapshot, decided, at = self._think()
        await self._apply(snapshot, decided)
        if at is not None:
            self._ring_in(at - self._clock() + _DEBOUNCE_SECONDS)

    def _think(self) -> tuple[Snapshot, Plan, float | None]:
        """What is, what to do about it, and when to look again although nothing has happened."""
        policy, policies = self._picture.policy()
        now = self._clock()
        snapshot = self._picture.snapshot(now)
        decided = self._decide(snapshot, policy, policies, now)
        self._last.take(snapshot, policy, policies, now, decided)
        return snapshot, decided, next_wakeup(snapshot, decided, (policy, *policies.values()), now, self._picture.until)

    def _decide(self, snapshot: Snapshot, policy: Policy, policies: Mapping[str, Policy], now: float) -> Plan:
        """By what changed; and now and then from nothing, to see that it comes to the same."""
        session, self._session = self._session, IncrementalPlanner()  # should it fail, the next plan starts anew
        decided = session.plan(snapshot, policy, now, policies, self._picture.changes())
        self._plans += 1
        if self._plans % _PLANS_BETWEEN_CHECKS == 0:
            anew = plan(snapshot, policy, now, policies)
            if anew != decided:
                log.error("a plan differs from the one made from nothing; going on from nothing", plans=self._plans)
                return anew
        self._session = session
        return decided

    def _ring_in(self, seconds: float) -> None:
        """At the latest: who asked for an earlier moment is not put off."""
        seconds = max(0.0, seconds)
        loop = asyncio.get_running_loop()
        if self._timer is not None and loop.time() < self._timer.when() <= loop.time() + seconds:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._bell.set)

    async def _apply(self, snapshot: Snapshot, decided: Plan) -> None:
        """Until somebody who waits in front of a screen comes: then the rest is decided anew, with them in it."""
        self._picture.hasty = False
        queues = {job.name: job.queue for job in snapshot.jobs} if decided.evictions else {}
        # Stops of one job follow each other: each adds to the job's history.
        stops: dict[str, list[Eviction]] = {}
        for one in decided.evictions:
            stops.setdefault(one.job, []).append(one)
        whole = await self._each(stops.values(), lambda ones: self._evict_all(ones, queues))
        whole = whole and await self._each(decided.nominations, self._promise)
        whole = whole and await self._each(_hasty_first(snapshot, decided.binds), self._bind)
        if whole:
            await self._release({(one.job, one.task) for one in decided.nominations})
            await self._teller.tell(decided)
        else:
            self._bell.set()

    async def _each(self, decisions: Iterable[One], write: Callable[[One], Awaitable[None]]) -> bool:
        """Many at a time, begun in their order. Whether all of it was done: however many are in a hurry, every plan
        gets on by some writes."""
        waiting, begun = iter(decisions), 0

        async def work() -> None:
            nonlocal begun
            for one in waiting:
                begun += 1
                await self._once(one, write)
                if begun >= _WRITES_AT_LEAST and self._picture.hasty:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(_IN_FLIGHT):
                group.create_task(work())
        return next(waiting, None) is None

    async def _once(self, one: One, write: Callable[[One], Awaitable[None]]) -> None:
        try:
            await write(one)
        except NotFound:
            return  # deleted meanwhile
        except PlatformError as exc:
            what = one[0] if isinstance(one, list) else one
            log.info("not carried out", what=type(what).__name__, pod=getattr(what, "task", ""), error=str(exc))
            self._ring_in(_RETRY_SECONDS)

    # ---------------------------------------------------------------- writing

    def _pod(self, job: str, task: str) -> Pod | None:
        return self._picture.pods.get(task, job.partition("/")[0])

    async def _patch(self, pod: Pod, change: Json) -> None:
        place = pod.metadata
        await self._store.driver.patch(KINDS.of(Pod), place.name, place.namespace, change, version=place.version)

    async def _evict_all(self, evictions: Sequence[Eviction], queues: dict[str, str]) -> None:
        for eviction in evictions:
            await self._evict(eviction, queues)

    async def _evict(self, eviction: Eviction, queues: dict[str, str]) -> None:
        pod = self._pod(eviction.job, eviction.task)
        if pod is None or pod.metadata.deleted is not None or eviction_record_of(pod) is not None:
            return
        if why := await self._binder.eviction_blocker(pod):
            log.info("may not be stopped", pod=pod.metadata.name, namespace=pod.metadata.namespace, why=why)
            self._picture.shield(pod, self._clock() + _SHIELD_SECONDS)
            self._ring_in(_RETRY_SECONDS)
            return
        by = eviction.by
        shown = f"{queues.get(by, '')}/{by.partition('/')[2]}" if by else ""
        text = eviction.text.replace(by, shown) if by else eviction.text
        notice = EvictionRecord(eviction.rule, shown, text, self._clock(), moved=eviction.to is not None)
        await self._patch(pod, {"metadata": {"annotations": {labels.EVICTION_RECORD: eviction_record_text(notice)}}})
        if eviction.to is not None:
            self._picture.move(pod, eviction.to.node, eviction.to.shares, self._clock() + _MOVE_SECONDS)
        await self._stop(pod, notice)

    async def _stop(self, pod: Pod, notice: EvictionRecord) -> None:
        """History first: a pod that is gone has taken its notice along."""
        farewell, grace = self._picture.farewell(pod), None
        owner = next((owner for owner in pod.metadata.owners if owner.kind == "Workload"), None)
        if owner is not None:  # a pod of nobody has no history
            with suppress(NotFound):
                seen = await self._store.get(Workload, owner.name, pod.metadata.namespace)
                if owner.uid == seen.metadata.uid:
                    status = interrupted(seen, notice, pod, farewell)
                    await self._store.update_status(replace(seen, status=status), seen=seen)
                    grace = grace_of(seen, farewell)
        await self._binder.evict(pod, grace)

    async def _finish_evictions(self) -> None:
        """Those that were written down and not carried out before somebody stopped us."""
        for pod in list(self._picture.evicted.values()):
            notice = eviction_record_of(pod)
            if notice is None or pod.metadata.deleted is not None:
                continue
            try:
                await self._stop(pod, notice)
            except NotFound:
                continue
            except PlatformError as exc:
                log.info("not carried out", what="Eviction", pod=pod.metadata.name, error=str(exc))
                self._ring_in(_RETRY_SECONDS)

    async def _promise(self, promise: Nomination) -> None:
        pod = self._pod(promise.job, promise.task)
        if pod is None or pod.spec.node_name or nomination_of(pod) == (promise.node, promise.shares):
            return
        await self._patch(
            pod, {"metadata": {"annotations": {labels.NOMINATION: nomination_text(promise.node, promise.shares)}}}
        )

    async def _release(self, kept: set[tuple[str, str]]) -> None:
        """Take back promises that the plan did not repeat; those that it kept are done with once the pod is bound."""
        for job, task in self._picture.promised():
            if (job, task) in kept:
                continue
            pod = self._pod(job, task)
            if pod is not None and not pod.spec.node_name and pod.metadata.uid not in self._picture.assumed:
                with suppress(PlatformError):
                    await self._patch(pod, {"metadata": {"annotations": {labels.NOMINATION: None}}})

    async def _bind(self, bind: Bind) -> None:
        pod = self._pod(bind.job, bind.task)
        if pod is None or pod.spec.node_name:
            return
        shares = [DeviceShare(index=s.index, milli=s.milli, memory_mib=s.memory_mib) for s in bind.shares]
        # Assumed before it is written: the picture may show it before the answer comes.
        self._picture.assume(pod, bind.node, bind.shares)
        task = asyncio.create_task(self._hand_over(pod, bind.node, shares))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        # Where a device must be made ready first it may take seconds, for which nobody else waits.
        await asyncio.wait((task,), timeout=_BIND_SECONDS)

    async def _hand_over(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        try:
            await self._binder.bind(pod, node, shares)
        except PlatformError as exc:
            if isinstance(exc, Conflict | Unavailable) and await self._has_node(pod):
                return  # assumed until the picture shows it
            self._picture.forget(pod)
            if not isinstance(exc, NotFound):  # else it was deleted meanwhile
                log.info("not carried out", what="Bind", pod=pod.metadata.name, node=node, error=str(exc))
                self._ring_in(_RETRY_SECONDS)

    async def _has_node(self, pod: Pod) -> bool:
        """Whether a binding was done whose answer does not say so. Until that is known its place is nobody else's."""
        while True:
            try:
                there = await self._store.get(Pod, pod.metadata.name, pod.metadata.namespace)
                return there.metadata.uid == pod.metadata.uid and bool(there.spec.node_name)
            except NotFound:
                return False
            except PlatformError:
                await asyncio.sleep(_RETRY_SECONDS)


def _hasty_first(snapshot: Snapshot, binds: Sequence[Bind]) -> Sequence[Bind]:
    """The more important first; for a few it makes no difference."""
    if len(binds) < _WRITES_AT_LEAST:
        return binds
    priority = {job.name: job.priority for job in snapshot.jobs}
    return sorted(binds, key=lambda bind: -priority[bind.job])
