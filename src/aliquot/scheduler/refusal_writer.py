"""Writes why jobs wait: into the workload's status, and into the conditions of its waiting pods, where Kubernetes'
own tools and autoscalers read it.

Only changes are written. When there are many, only changes of the *reason* are: the numbers in the text change with
every job that comes or goes, and are written every few seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from aliquot.api import KINDS, Amounts, Json, Pod, Workload, encode
from aliquot.api import Refusal as ApiRefusal
from aliquot.api.pod import PodCondition
from aliquot.errors import Conflict
from aliquot.planner import Plan, Refusal, Verdict
from aliquot.scheduler.cache import SchedulerCache
from aliquot.store.typed_store import Store
from aliquot.workload_status import Refused, WorkloadStatusWriter

_WRITE_ALL_BELOW = 64  # with fewer changes than this, changed texts are written after every plan too
_FULL_WRITE_SECONDS = 10.0  # between two full writes when there are more
_CONFLICT_SECONDS = 0.2  # for the informer to show the version that another writer wrote

Update = tuple[Workload | Pod, tuple[ApiRefusal, ...]]
# Runs a write for each of many updates, several at a time.
WriteEach = Callable[[Iterable[Update], Callable[[Update], Awaitable[None]]], Awaitable[bool]]


class RefusalWriter:
    def __init__(
        self,
        store: Store,
        cache: SchedulerCache,
        write_each: WriteEach,
        wake_in: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        """`wake_in` asks for another cycle after so many seconds."""
        self._store, self._cache, self._clock = store, cache, clock
        self._write_each, self._wake_in = write_each, wake_in
        self._statuses = WorkloadStatusWriter(store)
        self._full_write_at = 0.0

    async def write(self, plan: Plan) -> None:
        """Updates every job that waits, and every job whose status still shows refusals."""
        api_refusals: dict[int, tuple[ApiRefusal, ...]] = {}  # equal jobs share one tuple of refusals
        updates: list[Update] = []
        for job in {**plan.refusals, **dict.fromkeys(self._cache.jobs_with_refusals())}:
            refusals = plan.refusals.get(job, ())
            if id(refusals) not in api_refusals:
                api_refusals[id(refusals)] = tuple(map(api_refusal, refusals))
            shown = api_refusals[id(refusals)]
            workload = self._cache.workload(job)
            if workload is not None and shown != workload.status.refusals:
                updates.append((workload, shown))
            # A pod's condition is written again only for another reason.
            if shown:
                codes, waiting = _codes(shown), self._cache.waiting_pods(job)
                updates += [(pod, shown) for pod in waiting if _codes(self._last_shown(pod)) != codes]
        await self._write_each(self._due(updates), self._write)

    def _due(self, updates: list[Update]) -> list[Update]:
        if len(updates) < _WRITE_ALL_BELOW or self._clock() - self._full_write_at >= _FULL_WRITE_SECONDS:
            self._full_write_at = self._clock()
            return updates
        self._wake_in(_FULL_WRITE_SECONDS)
        return [(target, shown) for target, shown in updates if _codes(self._last_shown(target)) != _codes(shown)]

    def _last_shown(self, target: Workload | Pod) -> tuple[ApiRefusal, ...]:
        return target.status.refusals if isinstance(target, Workload) else self._cache.shown_refusals(target)

    async def _write(self, update: Update) -> None:
        target, shown = update
        if isinstance(target, Workload):
            await self._write_workload(target, shown)
        else:
            await self._write_pod(target, shown)

    async def _write_workload(self, workload: Workload, shown: tuple[ApiRefusal, ...]) -> None:
        try:
            await self._statuses.write(workload, Refused(shown))
        except Conflict:  # decided from an old version: the next cycle decides again
            self._wake_in(_CONFLICT_SECONDS)

    async def _write_pod(self, pod: Pod, shown: tuple[ApiRefusal, ...]) -> None:
        meta = pod.metadata
        others = [encode(condition) for condition in pod.status.conditions if condition.type != "PodScheduled"]
        condition = PodCondition(
            type="PodScheduled",
            status="False",
            reason="Unschedulable",
            message="; ".join(dict.fromkeys(refusal.text for refusal in shown)),
            last_transition_time=self._clock(),
        )
        change: Json = {"status": {"conditions": [*others, encode(condition)]}}
        await self._store.driver.patch(
            KINDS.of(Pod), meta.name, meta.namespace, change, status=True, version=meta.version
        )
        self._cache.record_shown(pod, shown)


def _codes(refusals: Iterable[ApiRefusal]) -> list[tuple[str, str]]:
    return [(refusal.step, refusal.code) for refusal in refusals]


def api_refusal(refusal: Refusal) -> ApiRefusal:
    """The refusal as the status shows it. A surplus counts as zero shortfall: a negative amount could not be read back,
    and the whole workload with it."""
    gpu, cpu, memory = (max(0, amount) for amount in refusal.missing)
    return ApiRefusal(
        step=refusal.step,
        code=refusal.code,
        text=refusal.text,
        missing=Amounts(gpu=gpu or None, cpu=cpu or None, memory=memory or None),
        nodes=refusal.nodes,
        final=refusal.verdict is Verdict.NEVER,
    )
