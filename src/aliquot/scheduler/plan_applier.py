"""Carries out a plan. Each decision is one compare-and-swap on the version that it was made from:

1. evictions     the record is written on the pod, then the interruption into the workload's history, then the pod
                 is deleted; evictions that were begun and not finished are finished before the next plan
2. nominations   the node and devices are written on the waiting pod, and the next plan honours them
3. bindings      node and devices; assumed until the informer shows them, so that the next plan does not give out
                 the same device again; should it happen all the same, the node refuses the pod
4. refusals      why a workload waits, in its status, where it changed
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import structlog

from aliquot import labels
from aliquot.api import KINDS, DeviceShare, Pod
from aliquot.errors import Conflict, NotFound, PlatformError, Unavailable
from aliquot.planner import Bind, Eviction, Nomination, Plan, Snapshot
from aliquot.scheduler.binder import Binder
from aliquot.scheduler.cache import SchedulerCache
from aliquot.scheduler.eviction_records import (
    EvictionRecord,
    eviction_record_of,
    eviction_record_text,
    grace_of,
    interruption_by,
)
from aliquot.scheduler.nominations import nomination_of, nomination_text
from aliquot.scheduler.refusal_writer import RefusalWriter
from aliquot.store.typed_store import Store
from aliquot.workload_status import WorkloadStatusWriter

RETRY_SECONDS = 1.0
_MOVE_SECONDS = 600.0  # how long the new place of a moving workload is held at most
_MIN_WRITES = 16  # before an interactive pod interrupts a plan: every plan makes some progress
_CONCURRENT_WRITES = 32  # a remote store answers this many in the time of one
_BIND_SECONDS = 1.0  # how long a plan waits for one binding
_BLOCKED_SECONDS = 30.0  # how long a job is not evicted after the cluster forbade it
log = structlog.get_logger()
Item = TypeVar("Item")


class PlanApplier:
    def __init__(
        self,
        store: Store,
        cache: SchedulerCache,
        binder: Binder,
        wake_in: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        """`wake_in` asks for another cycle after so many seconds."""
        self._store, self._cache, self._binder, self._wake_in, self._clock = store, cache, binder, wake_in, clock
        self._statuses = WorkloadStatusWriter(store)
        self._refusals = RefusalWriter(store, cache, self._write_each, wake_in, clock)
        self._bindings: set[asyncio.Task[None]] = set()  # including those that outlast their plan

    async def apply(self, snapshot: Snapshot, plan: Plan) -> bool:
        """Whether all of the plan was applied. An interactive pod that arrives interrupts it: the next plan includes
        that pod and decides the rest again."""
        self._cache.clear_interactive_waiting()
        queues = {job.name: job.queue for job in snapshot.jobs} if plan.evictions else {}
        # Evictions of one job are written one after the other: each adds to the history of the job.
        evictions: dict[str, list[Eviction]] = {}
        for eviction in plan.evictions:
            evictions.setdefault(eviction.job, []).append(eviction)
        complete = (
            await self._write_each(evictions.values(), lambda of_job: self._evict_all(of_job, queues))
            and await self._write_each(plan.nominations, self._nominate)
            and await self._write_each(_by_priority(snapshot, plan.binds), self._bind)
        )
        if complete:
            await self._clear_nominations({(nomination.job, nomination.task) for nomination in plan.nominations})
            await self._refusals.write(plan)
        return complete

    def cancel_bindings(self) -> None:
        for task in self._bindings:
            task.cancel()

    async def _write_each(self, items: Iterable[Item], write: Callable[[Item], Awaitable[None]]) -> bool:
        """Writes several items at a time, started in their order. Whether all were written: an interactive pod that
        arrives ends it early, but not before `_MIN_WRITES`."""
        remaining, started = iter(items), 0

        async def work() -> None:
            nonlocal started
            for item in remaining:
                started += 1
                await self._try_write(item, write)
                if started >= _MIN_WRITES and self._cache.interactive_waiting:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(_CONCURRENT_WRITES):
                group.create_task(work())
        return next(remaining, None) is None

    async def _try_write(self, item: Item, write: Callable[[Item], Awaitable[None]]) -> None:
        try:
            await write(item)
        except NotFound:
            return  # deleted meanwhile
        except PlatformError as exc:
            decision = item[0] if isinstance(item, list) else item
            task = getattr(decision, "task", "")
            log.info("decision not applied", decision=type(decision).__name__, pod=task, error=str(exc))
            self._wake_in(RETRY_SECONDS)

    async def _annotate(self, pod: Pod, annotation: str, value: str | None) -> None:
        meta, change = pod.metadata, {"metadata": {"annotations": {annotation: value}}}
        await self._store.driver.patch(KINDS.of(Pod), meta.name, meta.namespace, change, version=meta.version)

    # ---------------------------------------------------------------- evictions

    async def finish_evictions(self) -> None:
        """Deletes pods whose eviction record was written but which a previous leader did not delete."""
        for pod in self._cache.evicting_pods():
            record = eviction_record_of(pod)
            if record is None or pod.metadata.deleted is not None:
                continue
            try:
                await self._stop(pod, record)
            except NotFound:
                continue
            except PlatformError as exc:
                log.info("decision not applied", decision="Eviction", pod=pod.metadata.name, error=str(exc))
                self._wake_in(RETRY_SECONDS)

    async def _evict_all(self, evictions: Sequence[Eviction], queues: dict[str, str]) -> None:
        for eviction in evictions:
            await self._evict(eviction, queues)

    async def _evict(self, eviction: Eviction, queues: dict[str, str]) -> None:
        pod = self._cache.pod(eviction.job, eviction.task)
        if pod is None or pod.metadata.deleted is not None or eviction_record_of(pod) is not None:
            return
        if reason := await self._binder.eviction_blocker(pod):
            log.info("eviction blocked", pod=pod.metadata.name, namespace=pod.metadata.namespace, reason=reason)
            self._cache.set_nonpreemptible_until(pod, self._clock() + _BLOCKED_SECONDS)
            self._wake_in(RETRY_SECONDS)
            return
        by = eviction.by
        shown_by = f"{queues.get(by, '')}/{by.partition('/')[2]}" if by else ""
        text = eviction.text.replace(by, shown_by) if by else eviction.text
        record = EvictionRecord(eviction.rule, shown_by, text, self._clock(), moved=eviction.to is not None)
        await self._annotate(pod, labels.EVICTION_RECORD, eviction_record_text(record))
        if eviction.to is not None:
            self._cache.add_pending_move(pod, eviction.to.node, eviction.to.shares, self._clock() + _MOVE_SECONDS)
        await self._stop(pod, record)

    async def _stop(self, pod: Pod, record: EvictionRecord) -> None:
        """Writes the history before it deletes the pod: the eviction record goes with the pod."""
        stop_policy, grace = self._cache.stop_policy(pod), None
        workload = await self._statuses.record(interruption_by(record, pod, stop_policy))
        if workload is not None:
            grace = grace_of(workload, stop_policy)
        await self._binder.evict(pod, grace)

    # ---------------------------------------------------------------- nominations

    async def _nominate(self, nomination: Nomination) -> None:
        pod = self._cache.pod(nomination.job, nomination.task)
        if pod is None or pod.spec.node_name or nomination_of(pod) == (nomination.node, nomination.shares):
            return
        await self._annotate(pod, labels.NOMINATION, nomination_text(nomination.node, nomination.shares))

    async def _clear_nominations(self, kept: set[tuple[str, str]]) -> None:
        """Removes nominations that the plan did not repeat. Binding a pod ends its nomination by itself."""
        for job, task in self._cache.nominated_tasks():
            if (job, task) in kept:
                continue
            pod = self._cache.pod(job, task)
            if pod is not None and not pod.spec.node_name and not self._cache.is_assumed(pod):
                with suppress(PlatformError):
                    await self._annotate(pod, labels.NOMINATION, None)

    # ---------------------------------------------------------------- bindings

    async def _bind(self, bind: Bind) -> None:
        pod = self._cache.pod(bind.job, bind.task)
        if pod is None or pod.spec.node_name:
            return
        shares = [DeviceShare(index=s.index, milli=s.milli, memory_mib=s.memory_mib) for s in bind.shares]
        # Assumed before it is written: the informer may show the binding before the write returns.
        self._cache.assume(pod, bind.node, bind.shares)
        task = asyncio.create_task(self._bind_pod(pod, bind.node, shares))
        self._bindings.add(task)
        task.add_done_callback(self._bindings.discard)
        # A device that must be prepared first may take seconds; the other bindings do not wait for it.
        await asyncio.wait((task,), timeout=_BIND_SECONDS)

    async def _bind_pod(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        try:
            await self._binder.bind(pod, node, shares)
        except PlatformError as exc:
            if isinstance(exc, Conflict | Unavailable) and await self._is_bound(pod):
                return  # assumed until the informer shows it
            self._cache.forget(pod)
            if not isinstance(exc, NotFound):  # NotFound: the pod was deleted meanwhile
                log.info("decision not applied", decision="Bind", pod=pod.metadata.name, node=node, error=str(exc))
                self._wake_in(RETRY_SECONDS)

    async def _is_bound(self, pod: Pod) -> bool:
        """Whether a binding whose answer was lost took place. Until that is known the place stays assumed."""
        while True:
            try:
                stored = await self._store.get(Pod, pod.metadata.name, pod.metadata.namespace)
                return stored.metadata.uid == pod.metadata.uid and bool(stored.spec.node_name)
            except NotFound:
                return False
            except PlatformError:
                await asyncio.sleep(RETRY_SECONDS)


def _by_priority(snapshot: Snapshot, binds: Sequence[Bind]) -> Sequence[Bind]:
    """The highest priority first. A few bindings stay in their order: they are written together anyway."""
    if len(binds) < _MIN_WRITES:
        return binds
    priority = {job.name: job.priority for job in snapshot.jobs}
    return sorted(binds, key=lambda bind: -priority[bind.job])
