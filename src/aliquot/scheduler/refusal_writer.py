"""Why jobs wait, written where people look: in the workload's status, and in the conditions of its waiting pods, where
Kubernetes' own tools and autoscalers read it.

Only what is new is written. Where much is, only another *reason* is: the numbers in it change with every job that comes
or goes, and are told again when things are calm.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from aliquot.api import KINDS, Amounts, Pod, Workload, encode
from aliquot.api import Refusal as ShownRefusal
from aliquot.api.base import Json
from aliquot.api.pod import PodCondition
from aliquot.planner import Plan, Refusal, Verdict
from aliquot.scheduler.cache import SchedulerCache
from aliquot.store.typed_store import Store

_TOLD_AT_ONCE = 64  # reasons to wait that are written after every plan, whatever is new in them
_TELL_SECONDS = 10.0  # between two times that many more are

Told = tuple[Workload | Pod, tuple[ShownRefusal, ...]]
# Carries out many writes at a time.
Each = Callable[[Iterable[Told], Callable[[Told], Awaitable[None]]], Awaitable[bool]]


class RefusalWriter:
    def __init__(
        self,
        store: Store,
        picture: SchedulerCache,
        each: Each,
        later: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        """`later`: asks to be called again after so many seconds."""
        self._store, self._picture, self._each, self._later, self._clock = store, picture, each, later, clock
        self._told_at = 0.0  # when all that was new was last told

    async def tell(self, decided: Plan) -> None:
        """Looked at are those that wait, and those that say they do."""
        as_shown: dict[int, tuple[ShownRefusal, ...]] = {}  # jobs that are alike share their reasons
        changed: list[Told] = []
        for name in {**decided.refusals, **dict.fromkeys(self._picture.told)}:
            namespace, _, group = name.partition("/")
            reasons = decided.refusals.get(name, ())
            if id(reasons) not in as_shown:
                as_shown[id(reasons)] = tuple(map(api_refusal, reasons))
            shown = as_shown[id(reasons)]
            workload = self._picture.workloads.get(group, namespace)
            if workload is not None and shown != workload.status.refusals:
                changed.append((workload, shown))
            # Each pod says it too, where Kubernetes and its autoscalers look; again only for another reason.
            if shown:
                codes, waiting = _codes(shown), self._picture.waiting(namespace, group)
                changed += [(pod, shown) for pod in waiting if _codes(self._told(pod)) != codes]
        await self._each(self._worth_telling(changed), self._show)

    def _worth_telling(self, changed: list[Told]) -> list[Told]:
        if len(changed) < _TOLD_AT_ONCE or self._clock() - self._told_at >= _TELL_SECONDS:
            self._told_at = self._clock()
            return changed
        self._later(_TELL_SECONDS)
        return [(one, shown) for one, shown in changed if _codes(self._told(one)) != _codes(shown)]

    def _told(self, one: Workload | Pod) -> tuple[ShownRefusal, ...]:
        return one.status.refusals if isinstance(one, Workload) else self._picture.says.get(one.metadata.uid, ())

    async def _show(self, told: Told) -> None:
        what, shown = told
        place = what.metadata
        if isinstance(what, Workload):
            change: Json = {"status": {"refusals": [encode(one) for one in shown] or None}}
            await self._store.driver.patch(KINDS.of(Workload), place.name, place.namespace, change, status=True)
            return
        others = [encode(one) for one in what.status.conditions if one.type != "PodScheduled"]
        said = PodCondition(
            type="PodScheduled",
            status="False",
            reason="Unschedulable",
            message="; ".join(dict.fromkeys(one.text for one in shown)),
            last_transition_time=self._clock(),
        )
        change = {"status": {"conditions": [*others, encode(said)]}}
        await self._store.driver.patch(
            KINDS.of(Pod), place.name, place.namespace, change, status=True, version=place.version
        )
        self._picture.says[place.uid] = shown


def _codes(reasons: Iterable[ShownRefusal]) -> list[tuple[str, str]]:
    return [(one.step, one.code) for one in reasons]


def api_refusal(reason: Refusal) -> ShownRefusal:
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
