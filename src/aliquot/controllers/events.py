"""The event recorder: writes Kubernetes events about pods and workloads, for people to read.

Events are kept for an hour, and no decision depends on them. Which events an object has follows from its present state:
`events_of_pod` and `events_of_workload` list them, each with a key. An event that the new state has and the old one had
not is written. So no event is written twice, not even after a restart, and a job that waits unchanged costs nothing.

    Scheduled      which node and devices the pod got
    Started        the job runs; counts up when it is restarted
    Unschedulable  why it waits; one event that counts up whenever the reason changes
    Evicted        when and for whom it was stopped
    BackOff        an attempt failed, and another one follows
    Refused        the node refused the pod, and it is scheduled again
    Suspended, Completed, Failed
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from aliquot.api import DeviceShare, Event, Metadata, ObjectReference, Pod, Workload, shares_of
from aliquot.api.event import EventSource
from aliquot.api.pod import ContainerStatus, PodCondition
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.controllers.workloads import REFUSED, max_attempts
from aliquot.errors import Exists, Invalid, NotFound, PlatformError
from aliquot.labels import API_VERSION, WORKLOAD, WORKLOAD_UID
from aliquot.podspec.requests import is_foreign
from aliquot.scheduler.eviction_records import eviction_record_of
from aliquot.store.informer import Informer, Key
from aliquot.store.typed_store import Store
from aliquot.units import GPU, whole_units

EVENT_SECONDS = 3600
_NUMBERS = re.compile(r"[\d.]+")
_CREATING = ("", "ContainerCreating", "PodInitializing")


@dataclass(frozen=True, slots=True)
class EventFacts:
    reason: str
    message: str
    warning: bool = False
    # Tells it from other events with the same reason. Each key is written once.
    key: str = ""
    # True: one event for all keys, which counts up and shows the latest message.
    repeats: bool = False
    at: float | None = None  # when it happened; None: now


# ---------------------------------------------------------------- which events there are


def events_of_pod(pod: Pod) -> Iterator[EventFacts]:
    has_workload = bool(pod.metadata.labels.get(WORKLOAD))
    if pod.spec.node_name:
        yield EventFacts("Scheduled", _placement_text(pod), at=pod.status.start_time)
    elif not has_workload:  # otherwise the workload has the event
        conditions = pod.status.conditions
        message = next((condition.message for condition in conditions if _is_unschedulable(condition)), "")
        if message:  # its numbers change with every job that comes or goes
            yield EventFacts("Unschedulable", message, warning=True, key=_NUMBERS.sub("", message), repeats=True)
    for container in pod.status.container_statuses:
        yield from _events_of_container(container)
    if not has_workload:  # otherwise the workload has the events of its end
        if (record := eviction_record_of(pod)) is not None:
            yield EventFacts("Evicted", record.text, warning=True, at=record.at)
        if pod.status.phase == "Succeeded":
            yield EventFacts("Completed", "the pod completed")
        elif pod.status.phase == "Failed":
            yield EventFacts("Failed", pod.status.message or pod.status.reason or "the pod failed", warning=True)


def _is_unschedulable(condition: PodCondition) -> bool:
    return condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable"


def _events_of_container(container: ContainerStatus) -> Iterator[EventFacts]:
    state, restarts = container.state, str(container.restart_count)
    started = state.running or state.terminated
    if started and started.started_at is not None:
        yield EventFacts("Started", "the job has started", key=restarts, repeats=True, at=started.started_at)
    if state.waiting and state.waiting.reason not in _CREATING:
        message = state.waiting.message or "the container cannot start now"
        yield EventFacts(state.waiting.reason, message, warning=True, key=restarts, repeats=True)


def events_of_workload(workload: Workload) -> Iterator[EventFacts]:
    status = workload.status
    if status.phase in (None, "Pending") and status.refusals:
        texts = dict.fromkeys(refusal.text or refusal.code for refusal in status.refusals)
        # The numbers in the texts change with every job that comes or goes; the codes rarely do.
        codes = ",".join(f"{refusal.step}/{refusal.code}" for refusal in status.refusals)
        yield EventFacts("Unschedulable", "; ".join(texts), warning=True, key=codes, repeats=True)
    for stop in status.interruptions:
        for_workload = f" for {stop.by}" if stop.by else ""
        message = stop.message or f"stopped{for_workload} ({stop.reason or 'no reason given'})"
        yield EventFacts("Evicted", message, warning=True, key=str(stop.at), at=stop.at)
    if status.phase == "Pending" and status.reason == REFUSED:
        yield EventFacts("Refused", f"{status.message}; it is scheduled again", warning=True, repeats=True)
    if status.phase == "Failed":
        yield EventFacts("Failed", status.message or "the job failed", warning=True)
    elif status.pods.failed and status.last_failed_pod:
        message = f"{status.message or 'it failed'}; attempt {status.pods.failed} of {max_attempts(workload)}"
        yield EventFacts("BackOff", message, warning=True, key=status.last_failed_pod)
    if status.phase == "Completed":
        yield EventFacts("Completed", "the job completed")
    if status.phase == "Stopped":
        yield EventFacts("Suspended", "stopped; it can be resumed", key=str(status.observed_generation))


def _placement_text(pod: Pod) -> str:
    try:
        shares = shares_of(pod)
    except Invalid:
        shares = ()
    devices = _devices_text(shares)
    return f"placed on {pod.spec.node_name}" + (f": {devices}" if devices else "")


def _devices_text(shares: tuple[DeviceShare, ...]) -> str:
    """`GPU 0`, `GPUs 0, 1`, `0.3 of GPU 2`."""
    if not shares:
        return ""
    fraction = "" if shares[0].milli >= GPU else f"{whole_units(shares[0].milli):g} of "
    indexes = ", ".join(str(share.index) for share in shares)
    return f"{fraction}{'GPU' if len(shares) == 1 else 'GPUs'} {indexes}"


# ---------------------------------------------------------------- writing them


@dataclass(slots=True)
class _PendingEvent:
    event: Event
    increment: int  # added to the count of an existing event; 0: create the event, and leave an existing one alone


class EventRecorder:
    """Writes the events of pods and workloads in the background. Nothing waits for them."""

    def __init__(
        self, store: Store, workloads: Informer[Workload], pods: Informer[Pod], clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._clock = clock
        self._pending: dict[Key, _PendingEvent] = {}
        self.controller = Controller("events", self._write)
        workloads.listen(self._workload_changed)
        pods.listen(self._pod_changed)

    def _workload_changed(self, key: Key, old: Workload | None, new: Workload | None) -> None:
        if new is not None:
            same = old if old is not None and old.metadata.uid == new.metadata.uid else None
            reference = _reference("Workload", API_VERSION, new.metadata)
            before = None if same is None else list(events_of_workload(same))
            self._record_new(reference, new.metadata, before, list(events_of_workload(new)), new.metadata.uid)

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if new is not None and not is_foreign(new):  # other schedulers write the events of their pods
            same = old if old is not None and old.metadata.uid == new.metadata.uid else None
            workload = next((owner.uid for owner in new.metadata.owners if owner.kind == "Workload"), "")
            reference = _reference("Pod", "v1", new.metadata)
            before = None if same is None else list(events_of_pod(same))
            self._record_new(reference, new.metadata, before, list(events_of_pod(new)), workload)

    def _record_new(
        self,
        about: ObjectReference,
        meta: Metadata,
        before: list[EventFacts] | None,
        now: list[EventFacts],
        workload: str,
    ) -> None:
        """Queues the events that are not among those of `before`, which is None for an object not seen yet."""
        if before is None and (meta.created or 0) < self._clock() - EVENT_SECONDS:
            return  # this process has just started; the object's events were written and expired long ago
        known = {(event.reason, event.key) for event in before or ()}
        for facts in now:
            if (facts.reason, facts.key) not in known:
                event = event_of(about, facts, workload, self._clock())
                self._add(event, increment=int(facts.repeats and before is not None))

    def _add(self, event: Event, increment: int) -> None:
        key = (event.metadata.namespace, event.metadata.name)
        earlier = self._pending.get(key)
        self._pending[key] = _PendingEvent(event, increment + (earlier.increment if earlier else 0))
        self.controller.enqueue(key)

    async def _write(self, key: Key) -> None:
        """Never fails: an event that cannot be written is lost, and nothing depends on it."""
        pending = self._pending.pop(key, None)
        if pending is None:
            return  # an earlier run was cancelled while it wrote the event
        try:
            if not pending.increment or not await self._count_up(pending):
                await self._store.create(pending.event)
        except Exists:
            return  # written by an earlier process
        except PlatformError:
            return

    async def _count_up(self, pending: _PendingEvent) -> bool:
        """False where the event does not exist yet."""
        event = pending.event
        try:
            seen = await self._store.get(Event, event.metadata.name, event.metadata.namespace)
        except NotFound:
            return False
        counted = replace(
            seen, message=event.message, count=seen.count + pending.increment, last_timestamp=event.last_timestamp
        )
        await self._store.update(counted, seen=seen)
        return True


def event_of(about: ObjectReference, facts: EventFacts, workload: str, now: float) -> Event:
    """`workload` is the uid of the workload that the object belongs to; empty where there is none."""
    identity = f"{about.uid}/{facts.reason}/" + ("" if facts.repeats else facts.key)
    name = f"{about.name}.{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    at = now if facts.at is None else facts.at
    return Event(
        metadata=Metadata(name=name, namespace=about.namespace, labels={WORKLOAD_UID: workload} if workload else {}),
        involved_object=about,
        reason=facts.reason,
        message=facts.message,
        type="Warning" if facts.warning else "Normal",
        count=1,
        first_timestamp=at,
        last_timestamp=at,
        source=EventSource(component="aliquot"),
    )


def _reference(kind: str, api_version: str, meta: Metadata) -> ObjectReference:
    return ObjectReference(api_version=api_version, kind=kind, name=meta.name, namespace=meta.namespace, uid=meta.uid)
