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
from aliquot.control.alarm import next_look
from aliquot.control.decisions import LastDecision
from aliquot.control.notices import Notice, grace_of, interrupted, notice_of, notice_text, promise_of, promise_text
from aliquot.control.picture import Picture
from aliquot.control.snapshot import group_of
from aliquot.core import Bind, Eviction, Plan, Policy, Refusal, Reservation, Snapshot, Verdict, plan
from aliquot.core.session import Session
from aliquot.errors import NotFound, PlatformError
from aliquot.store.informer import Informers
from aliquot.store.typed import Store
from aliquot.types import KINDS, Amounts, DeviceShare, Pod, Workload, encode, shares_text
from aliquot.types import Refusal as ShownRefusal
from aliquot.types.base import Json

# Changes come in bursts; a moment's patience makes one plan of them. Short enough that nobody sees it.
_DEBOUNCE_SECONDS = 0.005
_RETRY_SECONDS = 1.0
_PLANS_BETWEEN_CHECKS = 500  # seldom enough not to be felt
_MOVE_SECONDS = 600.0  # the longest that a place is held for somebody who is on the way to it
_WRITES_AT_LEAST = 16  # before a plan is broken off for somebody in a hurry
log = structlog.get_logger()
Decision = TypeVar("Decision", Bind, Eviction, Reservation)


class Scheduler:
    def __init__(
        self,
        store: Store,
        informers: Informers,
        clock: Callable[[], float] = time.time,
        last: LastDecision | None = None,
    ) -> None:
        self._store = store
        self._last = last or LastDecision()
        self._clock = clock
        self._bell = asyncio.Event()
        self._picture = Picture(informers, self._bell.set)
        self._timer: asyncio.TimerHandle | None = None
        self._session = Session()
        self._plans = 0

    async def run(self) -> None:
        """Until cancelled."""
        await self._picture.synced()
        while True:
            await self._bell.wait()
            await asyncio.sleep(_DEBOUNCE_SECONDS)
            self._bell.clear()
            try:
                await self._cycle()
            except Exception as exc:  # one bad object must not stop the scheduler for the others
                log.exception("cycle failed", error=str(exc))
                self._ring_in(_RETRY_SECONDS)

    async def _cycle(self) -> None:
        await self._finish_evictions()
        policy, policies = self._picture.policy()
        now = self._clock()
        snapshot = self._picture.snapshot(now)
        decided = self._decide(snapshot, policy, policies, now)
        self._last.take(snapshot, policy, policies, now, decided)
        await self._apply(snapshot, decided)
        at = next_look(snapshot, decided, (policy, *policies.values()), now, self._picture.until)
        if at is not None:
            self._ring_in(at - now + _DEBOUNCE_SECONDS)

    def _decide(self, snapshot: Snapshot, policy: Policy, policies: Mapping[str, Policy], now: float) -> Plan:
        """By what changed; and now and then from nothing, to see that it comes to the same."""
        session, self._session = self._session, Session()  # should it fail, the next plan starts anew
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
        whole = await self._each(decided.evictions, lambda one: self._evict(one, queues))
        whole = whole and await self._each(decided.reservations, self._promise)
        whole = whole and await self._each(_hasty_first(snapshot, decided.binds), self._bind)
        if whole:
            await self._release({(one.job, one.task) for one in decided.reservations})
            await self._tell(decided)
        else:
            self._bell.set()

    async def _each(self, decisions: Iterable[Decision], write: Callable[[Decision], Awaitable[None]]) -> bool:
        """Whether all of it was done. However many are in a hurry, every plan gets on by some writes."""
        for number, one in enumerate(decisions, 1):
            if number % _WRITES_AT_LEAST == 0 and self._picture.hasty:
                return False
            try:
                await write(one)
            except NotFound:
                continue  # deleted meanwhile
            except PlatformError as exc:
                log.info("not carried out", what=type(one).__name__, pod=one.task, error=str(exc))
                self._ring_in(_RETRY_SECONDS)
        return True

    # ---------------------------------------------------------------- writing

    def _pod(self, job: str, task: str) -> Pod | None:
        return self._picture.pods.get(task, job.partition("/")[0])

    async def _patch(self, pod: Pod, change: Json) -> None:
        place = pod.metadata
        await self._store.body.patch(KINDS.of(Pod), place.name, place.namespace, change, version=place.version)

    async def _evict(self, eviction: Eviction, queues: dict[str, str]) -> None:
        pod = self._pod(eviction.job, eviction.task)
        if pod is None or pod.metadata.deleted is not None or notice_of(pod) is not None:
            return
        by = eviction.by
        shown = f"{queues.get(by, '')}/{by.partition('/')[2]}" if by else ""
        text = eviction.text.replace(by, shown) if by else eviction.text
        notice = Notice(eviction.rule, shown, text, self._clock(), moved=eviction.to is not None)
        await self._patch(pod, {"metadata": {"annotations": {labels.EVICTED: notice_text(notice)}}})
        if eviction.to is not None:
            self._picture.move(pod, eviction.to.node, eviction.to.shares, self._clock() + _MOVE_SECONDS)
        await self._stop(pod, notice)

    async def _stop(self, pod: Pod, notice: Notice) -> None:
        """History first: a pod that is gone has taken its notice along."""
        place, farewell, grace = pod.metadata, self._picture.farewell(pod), None
        with suppress(NotFound):  # a pod of nobody has no history
            seen = await self._store.get(Workload, group_of(pod), place.namespace)
            if any(owner.uid == seen.metadata.uid for owner in place.owners):
                status = interrupted(seen, notice, pod, farewell)
                await self._store.update_status(replace(seen, status=status), seen=seen)
                grace = grace_of(seen, farewell)
        await self._store.delete(pod, grace_seconds=grace)

    async def _finish_evictions(self) -> None:
        """Those that were written down and not carried out before somebody stopped us."""
        for pod in list(self._picture.evicted.values()):
            notice = notice_of(pod)
            if notice is None or pod.metadata.deleted is not None:
                continue
            try:
                await self._stop(pod, notice)
            except NotFound:
                continue
            except PlatformError as exc:
                log.info("not carried out", what="Eviction", pod=pod.metadata.name, error=str(exc))
                self._ring_in(_RETRY_SECONDS)

    async def _promise(self, promise: Reservation) -> None:
        pod = self._pod(promise.job, promise.task)
        if pod is None or pod.spec.node_name or promise_of(pod) == (promise.node, promise.shares):
            return
        await self._patch(
            pod, {"metadata": {"annotations": {labels.PROMISED: promise_text(promise.node, promise.shares)}}}
        )

    async def _release(self, kept: set[tuple[str, str]]) -> None:
        """Take back promises that the plan did not repeat; those that it kept are done with once the pod is bound."""
        for job, task in self._picture.promised():
            if (job, task) in kept:
                continue
            pod = self._pod(job, task)
            if pod is not None and not pod.spec.node_name and pod.metadata.uid not in self._picture.assumed:
                with suppress(PlatformError):
                    await self._patch(pod, {"metadata": {"annotations": {labels.PROMISED: None}}})

    async def _bind(self, bind: Bind) -> None:
        pod = self._pod(bind.job, bind.task)
        if pod is None or pod.spec.node_name:
            return
        shares = [DeviceShare(index=s.index, milli=s.milli, memory_mib=s.memory_mib) for s in bind.shares]
        change = {
            "metadata": {"annotations": {labels.DEVICES: shares_text(shares)}},
            "spec": {"nodeName": bind.node},
        }
        # Assumed before it is written: the picture may show it before the answer comes.
        self._picture.assume(pod, bind.node, bind.shares)
        try:
            await self._patch(pod, change)
        except PlatformError:
            self._picture.forget(pod)
            raise

    async def _tell(self, decided: Plan) -> None:
        """Write why workloads wait; only what changed. Looked at are those that wait, and those that say they do."""
        as_shown: dict[int, tuple[ShownRefusal, ...]] = {}  # jobs that are alike share their reasons
        for name in {**decided.refusals, **dict.fromkeys(self._picture.told)}:
            namespace, _, group = name.partition("/")
            workload = self._picture.workloads.get(group, namespace)
            if workload is None:
                continue
            reasons = decided.refusals.get(name, ())
            if id(reasons) not in as_shown:
                as_shown[id(reasons)] = tuple(map(shown_refusal, reasons))
            shown = as_shown[id(reasons)]
            if shown == workload.status.refusals:
                continue
            place = workload.metadata
            change = {"status": {"refusals": [encode(one) for one in shown] or None}}
            with suppress(NotFound):
                await self._store.body.patch(KINDS.of(Workload), place.name, place.namespace, change, status=True)


def _hasty_first(snapshot: Snapshot, binds: Sequence[Bind]) -> Sequence[Bind]:
    """The more important first; for a few it makes no difference."""
    if len(binds) < _WRITES_AT_LEAST:
        return binds
    priority = {job.name: job.priority for job in snapshot.jobs}
    return sorted(binds, key=lambda bind: -priority[bind.job])


def shown_refusal(reason: Refusal) -> ShownRefusal:
    """As the status has it. Of what there is more than enough nothing is missing: a negative amount could not be read
    back, and the workload would be lost to everybody."""
    gpu, cpu, memory = (max(0, amount) for amount in reason.missing)
    return ShownRefusal(
        step=reason.step,
        code=reason.code,
        text=reason.text,
        missing=Amounts(gpu=gpu or None, cpu=cpu or None, memory=memory or None),
        nodes=reason.nodes,
        final=reason.verdict is Verdict.NEVER,
    )
