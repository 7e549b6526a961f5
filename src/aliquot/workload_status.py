"""The one writer of `Workload.status`.

Several parts of the platform learn something about a workload: its controller, the scheduler, and the controller of
lost nodes. Each hands over a *fact*. `next_status` says what status follows from it, and `WorkloadStatusWriter` writes
that status as a compare-and-swap on the version it was decided from. So no writer overwrites another one's facts.

    fact              from                       after a Conflict
    Reconciled        controllers.workloads      the caller reconciles again
    Refused           scheduler.refusal_writer   the caller drops it; the next cycle decides again
    Interrupted       scheduler, lost nodes      read again and apply again: an interruption must not be lost
    CheckpointSaved   controllers.workloads      part of its Reconciled
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import assert_never

from aliquot.api import KINDS, Json, Pod, Workload
from aliquot.api.pod import last_checkpoint_time
from aliquot.api.serialization import adapter
from aliquot.api.workload import Interruption, Refusal, WorkloadStatus
from aliquot.errors import Conflict, NotFound
from aliquot.store import object_rules
from aliquot.store.typed_store import Store

_INTERRUPTIONS_KEPT = 100  # the latest; enough to show a pattern, and the object stays small
_PREEMPTIONS = ("reclaimed", "preempted")  # the reasons that count towards the preemption limit
_ATTEMPTS = 5  # to record an interruption; every Conflict means that another writer succeeded
_FIELDS = tuple(field.name for field in fields(WorkloadStatus))


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The status that the workload controller decided from the workload and its pod."""

    status: WorkloadStatus


@dataclass(frozen=True, slots=True)
class Refused:
    """The scheduler's reasons not to start the workload; empty when it has none any more."""

    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The platform stops a pod of the workload, or lost its node."""

    pod: Pod
    at: float
    reason: str  # one word, as in the workload's history
    by: str  # the workload that it was stopped for, as project/name; empty where there is none
    message: str
    # Whether the node pool's policy ends a training workload that is preempted. The workload may say otherwise.
    ends_training: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The pod's conditions, which tell when its job last saved a checkpoint."""

    pod: Pod


Fact = Reconciled | Refused | Interrupted | CheckpointSaved


def next_status(workload: Workload, fact: Fact) -> WorkloadStatus:
    """The workload's status once the fact is known. Applying a fact twice changes nothing more."""
    match fact:
        case Reconciled(status):
            return status
        case Refused(refusals):
            return replace(workload.status, refusals=refusals)
        case Interrupted():
            return _interrupted(workload, fact)
        case CheckpointSaved(pod):
            return _with_checkpoint(workload.status, pod)
        case _:
            assert_never(fact)


def with_fact(workload: Workload, fact: Fact) -> Workload:
    return replace(workload, status=next_status(workload, fact))


def exceeds_preemption_limit(workload: Workload, preemptions: int) -> bool:
    limit = workload.spec.preemption_limit
    return limit is not None and preemptions > limit


def _interrupted(workload: Workload, fact: Interrupted) -> WorkloadStatus:
    """Adds the interruption to the history, once for each pod."""
    status, uid = workload.status, fact.pod.metadata.uid
    if any(interruption.pod == uid for interruption in status.interruptions):
        return status
    is_preemption = fact.reason in _PREEMPTIONS
    preemptions = status.preemption_count + is_preemption
    interruption = Interruption(
        at=fact.at,
        reason=fact.reason,
        by=fact.by,
        lost_seconds=_seconds_since_start(status, fact.at),
        message=fact.message,
        pod=uid,
        final=is_preemption and (_ends(workload, fact) or exceeds_preemption_limit(workload, preemptions)),
    )
    status = replace(
        status,
        interruptions=(*status.interruptions, interruption)[-_INTERRUPTIONS_KEPT:],
        interruption_count=status.interruption_count + 1,
        preemption_count=preemptions,
    )
    return _with_checkpoint(status, fact.pod)


def _seconds_since_start(status: WorkloadStatus, at: float) -> float:
    return max(0.0, at - status.started_at) if status.phase == "Running" and status.started_at is not None else 0.0


def _ends(workload: Workload, fact: Interrupted) -> bool:
    own = workload.spec.terminate_after_preemption
    return (fact.ends_training and workload.spec.type == "training") if own is None else own


def _with_checkpoint(status: WorkloadStatus, pod: Pod) -> WorkloadStatus:
    """Work that the pod saved is not lost, also when it was saved after the pod was asked to stop."""
    saved = last_checkpoint_time(pod)
    if saved is None:
        return status

    def shortened(interruption: Interruption) -> Interruption:
        if interruption.pod != pod.metadata.uid:
            return interruption
        return replace(interruption, lost_seconds=min(interruption.lost_seconds, max(0.0, interruption.at - saved)))

    return replace(status, interruptions=tuple(map(shortened, status.interruptions)))


class WorkloadStatusWriter:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, seen: Workload, fact: Fact) -> None:
        """Writes what follows from the fact if the workload is still at the version that was seen.

        `Conflict`: it has changed since, and nothing was written. A cached workload will do; nothing is read.
        """
        await self._swap(seen, next_status(seen, fact))

    async def record(self, fact: Interrupted) -> Workload | None:
        """Adds an interruption to the history of the pod's workload; returns the workload as it was read.

        After a Conflict it reads and applies again, a few times, before it gives the Conflict to the caller. None
        where the pod has no workload, or its workload is gone.
        """
        owner = next((owner for owner in fact.pod.metadata.owners if owner.kind == "Workload"), None)
        if owner is None:
            return None
        with suppress(NotFound):
            for attempt in range(1, _ATTEMPTS + 1):
                seen = await self._store.get(Workload, owner.name, fact.pod.metadata.namespace)
                if seen.metadata.uid != owner.uid:
                    return None  # another workload with the same name
                try:
                    await self.write(seen, fact)
                except Conflict:
                    if attempt == _ATTEMPTS:
                        raise
                else:
                    return seen
        return None

    async def _swap(self, seen: Workload, status: WorkloadStatus) -> None:
        meta = seen.metadata
        assert meta.version, "a status is decided from a workload that was read"
        patch = _difference(seen.status, status)
        if patch:
            await self._store.driver.patch(
                KINDS.of(Workload), meta.name, meta.namespace, {"status": patch}, version=meta.version, status=True
            )


def _difference(old: WorkloadStatus, new: WorkloadStatus) -> Json:
    """A merge patch from one status to the other. Only fields that differ are encoded: the scheduler writes thousands
    of statuses in a cycle."""
    changed = {name for name in _FIELDS if getattr(old, name) != getattr(new, name)}
    return object_rules.difference(_encode(old, changed), _encode(new, changed)) if changed else {}


def _encode(status: WorkloadStatus, names: set[str]) -> Json:
    """As `encode`, for some fields."""
    out: Json = adapter(WorkloadStatus).dump_python(
        status, mode="json", by_alias=True, exclude_defaults=True, include=names
    )
    return out
