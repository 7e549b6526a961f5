"""Events: what happened to an object, for people to read. They are kept for an hour and decide nothing.

What is to be told follows from how an object is now: `story` of it is a few notes, each with a name of its own. What
is in the story and was not before is written down. So nothing is told twice, also not after a restart, and a job that
waits unchanged costs nothing.

    Scheduled      which node and devices it got          on the pod
    Started        it runs; counts up when started again  on the pod
    Unschedulable  why it waits; one event, which counts up when the reason is another one
    Evicted        when and for whom it was stopped
    BackOff        an attempt failed, and there will be another
    Refused        its node had no room for it any more, and it is placed anew
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
from aliquot.controllers.workloads import REFUSED, attempts
from aliquot.errors import Exists, Invalid, NotFound, PlatformError
from aliquot.labels import API_VERSION, SCHEDULER_NAMES, WORKLOAD, WORKLOAD_UID
from aliquot.scheduler.eviction_records import eviction_record_of
from aliquot.store.informer import Informer, Key
from aliquot.store.typed_store import Store
from aliquot.units import GPU, whole_units

EVENT_SECONDS = 3600
_NUMBERS = re.compile(r"[\d.]+")
_BEING_MADE = ("", "ContainerCreating", "PodInitializing")


@dataclass(frozen=True, slots=True)
class EventFacts:
    reason: str
    message: str
    warning: bool = False
    # Tells it from other notes of the same reason; told once for each key.
    key: str = ""
    # True: one event for all keys, which counts up and says the latest.
    repeats: bool = False
    at: float | None = None  # when it happened; now unless known


# --- what is to be told


def events_of_pod(pod: Pod) -> Iterator[EventFacts]:
    if pod.spec.node_name:
        yield EventFacts("Scheduled", _placed(pod), at=pod.status.start_time)
    elif not pod.metadata.labels.get(WORKLOAD):  # else its workload tells it
        why = next((one.message for one in pod.status.conditions if _says_why_it_waits(one)), "")
        if why:  # the numbers in it change with every job that comes or goes
            yield EventFacts("Unschedulable", why, warning=True, key=_NUMBERS.sub("", why), repeats=True)
    for container in pod.status.container_statuses:
        yield from _of_container(container)
    if not pod.metadata.labels.get(WORKLOAD):  # else its workload tells how it ended, and what follows from it
        if (notice := eviction_record_of(pod)) is not None:
            yield EventFacts("Evicted", notice.text, warning=True, at=notice.at)
        if pod.status.phase == "Succeeded":
            yield EventFacts("Completed", "it has ended well")
        elif pod.status.phase == "Failed":
            yield EventFacts("Failed", pod.status.message or pod.status.reason or "it has failed", warning=True)


def _says_why_it_waits(condition: PodCondition) -> bool:
    return condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable"


def _of_container(container: ContainerStatus) -> Iterator[EventFacts]:
    state, restarts = container.state, str(container.restart_count)
    begun = state.running or state.terminated
    if begun and begun.started_at is not None:
        yield EventFacts("Started", "the job has started", key=restarts, repeats=True, at=begun.started_at)
    if state.waiting and state.waiting.reason not in _BEING_MADE:
        message = state.waiting.message or "it cannot be started now"
        yield EventFacts(state.waiting.reason, message, warning=True, key=restarts, repeats=True)


def events_of_workload(workload: Workload) -> Iterator[EventFacts]:
    status = workload.status
    if status.phase in (None, "Pending") and status.refusals:
        texts = dict.fromkeys(refusal.text or refusal.code for refusal in status.refusals)
        # The numbers in the texts change with every job that comes or goes; the reason seldom does.
        codes = ",".join(f"{refusal.step}/{refusal.code}" for refusal in status.refusals)
        yield EventFacts("Unschedulable", "; ".join(texts), warning=True, key=codes, repeats=True)
    for stop in status.interruptions:
        for_whom = f" for {stop.by}" if stop.by else ""
        message = stop.message or f"stopped{for_whom} ({stop.reason or 'no reason given'})"
        yield EventFacts("Evicted", message, warning=True, key=str(stop.at), at=stop.at)
    if status.phase == "Pending" and status.reason == REFUSED:
        yield EventFacts("Refused", f"{status.message}; it is placed anew", warning=True, repeats=True)
    if status.phase == "Failed":
        yield EventFacts("Failed", status.message or "the job has failed", warning=True)
    elif status.pods.failed and status.last_failed_pod:
        message = f"{status.message or 'it failed'}; attempt {status.pods.failed} of {attempts(workload)}"
        yield EventFacts("BackOff", message, warning=True, key=status.last_failed_pod)
    if status.phase == "Completed":
        yield EventFacts("Completed", "the job has ended well")
    if status.phase == "Stopped":
        yield EventFacts("Suspended", "stopped, to be resumed", key=str(status.observed_generation))


def _placed(pod: Pod) -> str:
    try:
        shares = shares_of(pod)
    except Invalid:
        shares = ()
    devices = _devices(shares)
    return f"placed on {pod.spec.node_name}" + (f": {devices}" if devices else "")


def _devices(shares: tuple[DeviceShare, ...]) -> str:
    """`GPU 0`, `GPUs 0, 1`, `0.3 of GPU 2`."""
    if not shares:
        return ""
    part = "" if shares[0].milli >= GPU else f"{whole_units(shares[0].milli):g} of "
    numbers = ", ".join(str(share.index) for share in shares)
    return f"{part}{'GPU' if len(shares) == 1 else 'GPUs'} {numbers}"


# --- telling it


@dataclass(slots=True)
class _Waiting:
    event: Event
    times: int  # how often it is to be counted; 0: only written where it is missing


class EventRecorder:
    """Writes the events of pods and workloads, each in its own time: nobody waits for them."""

    def __init__(
        self, store: Store, workloads: Informer[Workload], pods: Informer[Pod], clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[Key, _Waiting] = {}
        self.controller = Controller("events", self._write)
        workloads.listen(self._workload_changed)
        pods.listen(self._pod_changed)

    def _workload_changed(self, key: Key, old: Workload | None, new: Workload | None) -> None:
        if new is not None:
            same = old if old is not None and old.metadata.uid == new.metadata.uid else None
            reference = _reference("Workload", API_VERSION, new.metadata)
            before = None if same is None else list(events_of_workload(same))
            self._tell(reference, new.metadata, before, list(events_of_workload(new)), new.metadata.uid)

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.scheduler_name in ("", *SCHEDULER_NAMES):  # others tell about theirs
            same = old if old is not None and old.metadata.uid == new.metadata.uid else None
            owner = next((owner.uid for owner in new.metadata.owners if owner.kind == "Workload"), "")
            before = None if same is None else list(events_of_pod(same))
            self._tell(_reference("Pod", "v1", new.metadata), new.metadata, before, list(events_of_pod(new)), owner)

    def _tell(
        self,
        about: ObjectReference,
        place: Metadata,
        before: list[EventFacts] | None,
        now: list[EventFacts],
        workload: str,
    ) -> None:
        if before is None and (place.created or 0) < self._clock() - EVENT_SECONDS:
            return  # we have just started, and its events were told and dropped long ago
        told = {(note.reason, note.key) for note in before or ()}
        for note in now:
            if (note.reason, note.key) not in told:
                event = event_of(about, note, workload, self._clock())
                self._add(event, times=int(note.repeats and before is not None))

    def _add(self, event: Event, times: int) -> None:
        key = (event.metadata.namespace, event.metadata.name)
        earlier = self._waiting.get(key)
        self._waiting[key] = _Waiting(event, times + (earlier.times if earlier else 0))
        self.controller.enqueue(key)

    async def _write(self, key: Key) -> None:
        """Never fails: an event that cannot be written is lost, and that is all."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return  # we were stopped while it was written
        try:
            if not waiting.times or not await self._count_up(waiting):
                await self._store.create(waiting.event)
        except Exists:
            return  # told before we were stopped
        except PlatformError:
            return

    async def _count_up(self, waiting: _Waiting) -> bool:
        wanted = waiting.event
        try:
            seen = await self._store.get(Event, wanted.metadata.name, wanted.metadata.namespace)
        except NotFound:
            return False
        counted = replace(
            seen, message=wanted.message, count=seen.count + waiting.times, last_timestamp=wanted.last_timestamp
        )
        await self._store.update(counted, seen=seen)
        return True


def event_of(about: ObjectReference, note: EventFacts, workload: str, now: float) -> Event:
    """`workload` is the uid of the one it belongs to; empty where there is none."""
    identity = f"{about.uid}/{note.reason}/" + ("" if note.repeats else note.key)
    name = f"{about.name}.{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    at = now if note.at is None else note.at
    labels = {WORKLOAD_UID: workload} if workload else {}
    return Event(
        metadata=Metadata(name=name, namespace=about.namespace, labels=labels),
        involved_object=about,
        reason=note.reason,
        message=note.message,
        type="Warning" if note.warning else "Normal",
        count=1,
        first_timestamp=at,
        last_timestamp=at,
        source=EventSource(component="aliquot"),
    )


def _reference(kind: str, api_version: str, about: Metadata) -> ObjectReference:
    return ObjectReference(
        api_version=api_version, kind=kind, name=about.name, namespace=about.namespace, uid=about.uid
    )
