"""Workloads: each gets its pod, and its status says how the pod fares.

    wanted, no pod             create it                               Pending
    pod waits for a node       why is in the status (scheduler)        Pending
    pod has a node             the node prepares it                    Initializing
    pod runs                                                           Running
    pod ended well                                                     Completed
    pod failed (training)      again, up to the backoff limit          Pending ... Failed
    pod refused by its node    again, as often as it takes             Pending
    stopped for others         again; or that was the last time        Pending, or Failed (Preempted)
    not active                 delete the pod, keep the definition     Stopped

A pod is one attempt: the next one has the same name and a new uid. Run and wait time add up over attempts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from aliquot.api import Amounts, Namespace, Pod, Workload, shares_of
from aliquot.api.workload import PodCounts, WorkloadPhase, WorkloadStatus
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import Exists, NotFound
from aliquot.labels import WORKLOAD, project_of
from aliquot.podspec.builder import build_pod, pod_name
from aliquot.podspec.requests import request_of
from aliquot.scheduler.eviction_records import disruption_of, interruption_by
from aliquot.scheduler.policy import StopPolicy
from aliquot.scheduler.snapshot import only_checkpoint_changed
from aliquot.store.informer import Informer, Key
from aliquot.store.typed_store import Store
from aliquot.workload_status import (
    CheckpointSaved,
    Reconciled,
    WorkloadStatusWriter,
    exceeds_preemption_limit,
    with_fact,
)

_BACKOFF_LIMIT = 6  # unless the workload says otherwise
_FIRST_RETRY, _LAST_RETRY = 1.0, 60.0  # seconds before a failed pod is tried again
_ENDED = ("Failed", "Completed")
_WAITING = ("Pending", "Initializing")
REFUSED = "UnexpectedAdmissionError"  # somebody was faster: the node had given its devices away
# What else a kubelet says to a pod that it does not take, or takes no longer: nothing that its job has done.
_REFUSALS = (REFUSED, "NodeAffinity", "NodeShutdown", "Evicted", "Preempting", "NodeLost")
_HOPELESS = ("ContainerCannotRun", "ErrImagePull", "FailedMount", "CreateContainerConfigError")


@dataclass(frozen=True, slots=True)
class Decision:
    status: WorkloadStatus
    create: Pod | None = None
    delete: bool = False
    # The node refused the pod: the next one may have more luck, but not twice in a moment.
    refused: bool = False
    # Look again after so many seconds, because time alone will change the decision.
    again: float | None = None


def decide(workload: Workload, pod: Pod | None, project: str, now: float) -> Decision:
    """What a workload's pod needs, and what its status should say."""
    status = replace(workload.status, observed_generation=workload.metadata.generation, requested=_requested(workload))
    if not workload.spec.active:
        return _stopped(status, pod, now)
    if pod is not None and not _belongs(pod, workload):
        message = f"pod {pod.metadata.name} of an earlier workload still stops"
        return Decision(_moved(status, "Pending", now, message=message))
    if status.phase in _ENDED:
        return Decision(status)
    if pod is None:
        return _without_pod(workload, status, project, now)
    if pod.metadata.deleted is not None:
        pods = PodCounts(desired=1, failed=status.pods.failed)
        return Decision(_moved(status, "Pending", now, reason="Terminating", pods=pods))
    return _with_pod(workload, status, pod, now)


def _without_pod(workload: Workload, status: WorkloadStatus, project: str, now: float) -> Decision:
    if status.interruptions and status.interruptions[-1].final:
        pods = PodCounts(failed=status.pods.failed)
        return Decision(_ended(status, "Failed", now, pods, "Preempted", _last_words(workload)))
    wait = _retry_at(status) - now
    if status.pods.failed and wait > 0:
        return Decision(_moved(status, "Pending", now, reason="BackOff"), again=wait)
    pods = replace(status.pods, desired=1, pending=1, running=0, ready=0)
    return Decision(_moved(status, "Pending", now, pods=pods), create=build_pod(workload, project))


def _with_pod(workload: Workload, status: WorkloadStatus, pod: Pod, now: float) -> Decision:
    status = replace(status, restarts=_restarts(status, pod), nodes=(pod.spec.node_name,) if pod.spec.node_name else ())
    failed = status.pods.failed
    match pod.status.phase:
        case "Succeeded":
            pods = PodCounts(desired=0, succeeded=1, failed=failed)
            return Decision(_ended(status, "Completed", now, pods, pod.status.reason, pod.status.message))
        case "Failed":
            return _after_failure(workload, status, pod, now)
        case "Running":
            pods = PodCounts(desired=1, running=1, ready=int(_is_ready(pod)), failed=failed)
            reason, message = _waiting(pod)
            allocated = _allocated(pod)
            return Decision(
                _moved(status, "Running", now, pods=pods, reason=reason, message=message, allocated=allocated)
            )
        case _:
            pods = PodCounts(desired=1, pending=1, failed=failed)
            if not pod.spec.node_name:
                return Decision(_moved(status, "Pending", now, pods=pods))
            reason, message = _waiting(pod)
            moved = _moved(
                status, "Initializing", now, pods=pods, reason=reason or "ContainerCreating", message=message,
                allocated=_allocated(pod),
            )  # fmt: skip
            return Decision(moved)


def _after_failure(workload: Workload, status: WorkloadStatus, pod: Pod, now: float) -> Decision:
    if status.last_failed_pod == pod.metadata.uid:
        return Decision(status, delete=True)  # counted before we were stopped; only the deletion is left
    why = pod.status.message or f"exit status {_exit_code(pod)}"
    if pod.status.reason.startswith(("GPU", "MPS")):  # words that the documentation explains
        why = f"{pod.status.reason}: {why}"
    if pod.status.reason in _REFUSALS or pod.status.reason.startswith("OutOf"):
        pods = PodCounts(desired=1, pending=1, failed=status.pods.failed)
        back = _moved(replace(status, nodes=()), "Pending", now, pods=pods, reason=REFUSED, message=why)
        return Decision(back, delete=True, refused=True)
    status = replace(status, last_failed_pod=pod.metadata.uid)
    failed = status.pods.failed + 1
    pods = PodCounts(desired=0, failed=failed)
    # What can never start is not tried again: the next attempt would say the same.
    if failed >= attempts(workload) or pod.status.reason in _HOPELESS:
        return Decision(_ended(status, "Failed", now, pods, pod.status.reason, why))
    again = _moved(replace(status, finished_at=now), "Pending", now, pods=pods, reason="Error", message=why)
    return Decision(again, delete=True)


def attempts(workload: Workload) -> int:
    """How often it may be started in all."""
    limit = workload.spec.backoff_limit
    return 1 + (_BACKOFF_LIMIT if limit is None else limit)


def _stopped(status: WorkloadStatus, pod: Pod | None, now: float) -> Decision:
    if status.phase in _ENDED:
        return Decision(status)
    stopped = _moved(status, "Stopped", now, pods=PodCounts(), reason="Suspended")
    return Decision(replace(stopped, nodes=(), refusals=()), delete=pod is not None)


def _moved(
    status: WorkloadStatus,
    phase: WorkloadPhase,
    now: float,
    *,
    pods: PodCounts | None = None,
    reason: str = "",
    message: str = "",
    allocated: Amounts | None = None,
) -> WorkloadStatus:
    """The status in a phase, with run and wait time added up when it begins or stops to run or to wait."""
    running, waits = phase == "Running", phase in _WAITING
    if waits and status.queued_at is None:
        status = replace(status, queued_at=now)
    if not waits and status.queued_at is not None:
        status = replace(status, queued_at=None, wait_seconds=status.wait_seconds + now - status.queued_at)
    if running and status.phase != "Running":
        status = replace(status, started_at=now, refusals=())
    if not running and status.phase == "Running" and status.started_at is not None:
        status = replace(status, run_seconds=status.run_seconds + now - status.started_at)
    return replace(
        status,
        phase=phase,
        reason=reason,
        message=message,
        pods=status.pods if pods is None else pods,
        allocated=allocated or Amounts(),
        refusals=() if phase != "Pending" else status.refusals,
    )


def _ended(
    status: WorkloadStatus, phase: WorkloadPhase, now: float, pods: PodCounts, reason: str, message: str
) -> WorkloadStatus:
    return replace(_moved(status, phase, now, pods=pods, reason=reason, message=message), finished_at=now)


def _last_words(workload: Workload) -> str:
    """Why a workload that was stopped for others does not go back to the queue."""
    count, limit = workload.status.preemption_count, workload.spec.preemption_limit
    why = f"stopped {count} times, and preemptionLimit is {limit}" if exceeds_preemption_limit(workload, count) else ""
    return f"{workload.status.interruptions[-1].message}; {why or 'it ends when preempted (terminateAfterPreemption)'}"


def _retry_at(status: WorkloadStatus) -> float:
    """Each failure waits twice as long as the one before."""
    pause = min(_FIRST_RETRY * float(2 ** max(0, status.pods.failed - 1)), _LAST_RETRY)
    return (status.finished_at or 0) + pause


def _belongs(pod: Pod, workload: Workload) -> bool:
    return any(owner.uid == workload.metadata.uid for owner in pod.metadata.owners)


def _requested(workload: Workload) -> Amounts:
    compute = workload.spec.compute
    return Amounts(gpu=(compute.gpu or 0) * (compute.gpu_devices or 1), cpu=compute.cpu, memory=compute.memory)


def _allocated(pod: Pod) -> Amounts:
    request = request_of(pod)
    # What an amount of memory is in GPUs only the devices it got can say.
    gpu = sum(share.milli for share in shares_of(pod)) if request.memory_mib else request.devices * request.milli
    return Amounts(gpu=gpu, cpu=request.cpu or None, memory=request.memory or None)


def _restarts(status: WorkloadStatus, pod: Pod) -> int:
    """How often it was started again, in this pod and by pods before it."""
    if pod.status.phase in ("", "Pending"):
        return status.restarts  # it has not been, so far
    uid = pod.metadata.uid  # what became of this one counts when there is another
    stops = status.interruption_count - any(stop.pod == uid for stop in status.interruptions)
    failures = status.pods.failed - (status.last_failed_pod == uid)
    inside = sum(container.restart_count for container in pod.status.container_statuses)
    return max(status.restarts, stops + failures + inside)


def _is_ready(pod: Pod) -> bool:
    return all(container.ready for container in pod.status.container_statuses)


def _waiting(pod: Pod) -> tuple[str, str]:
    for container in pod.status.container_statuses:
        if container.state.waiting is not None:
            return container.state.waiting.reason, container.state.waiting.message
    return "", ""


def _exit_code(pod: Pod) -> int:
    for container in pod.status.container_statuses:
        if container.state.terminated is not None:
            return container.state.terminated.exit_code
    return 1


class WorkloadReconciler:
    """The loop over workloads and their pods."""

    def __init__(
        self,
        store: Store,
        workloads: Informer[Workload],
        pods: Informer[Pod],
        namespaces: Informer[Namespace],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._statuses = WorkloadStatusWriter(store)
        self._namespaces = namespaces
        self._clock = clock
        self._left: dict[Key, Pod] = {}  # the last pod of a workload as it was last seen, where nobody has looked yet
        self._refused: dict[Key, float] = {}  # when a node last refused a workload's pod
        self.controller = Controller("workloads", self._reconcile)
        self.controller.watch(workloads)
        pods.listen(self._pod_changed)

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if only_checkpoint_changed(old, new):
            return  # of a pod that stops it is looked at when it is gone
        if pod is not None and (name := pod.metadata.labels.get(WORKLOAD)):
            if new is None:
                self._left[key[0], name] = pod
            self.controller.enqueue((key[0], name))

    async def _reconcile(self, key: Key) -> None:
        left = self._left.get(key)
        await self._look(key, left)
        if self._left.get(key) is left:
            self._left.pop(key, None)

    async def _look(self, key: Key, left: Pod | None) -> None:
        namespace, name = key
        try:
            seen = await self._store.get(Workload, name, namespace)
        except NotFound:
            self._refused.pop(key, None)
            return
        if seen.metadata.deleted is not None:
            return
        pod = await self._pod(namespace, pod_name(name))
        workload = seen
        for one in (left, pod):
            if one is not None and _belongs(one, workload):
                if (record := disruption_of(one)) is not None:
                    workload = with_fact(workload, interruption_by(record, one, StopPolicy()))
                workload = with_fact(workload, CheckpointSaved(one))
        place = self._namespaces.get(namespace)
        project = project_of(place.metadata.labels) if place else ""
        decision = decide(workload, pod, project, self._clock())
        # Status first: it counts attempts, and an attempt that was not counted would be made once too often.
        if decision.status != seen.status:
            await self._statuses.write(seen, Reconciled(decision.status))
        if decision.refused and (wait := self._patience(key)) > 0:
            self.controller.enqueue_after(key, wait)
        elif decision.delete and pod is not None and pod.metadata.deleted is None:
            await self._store.delete(pod)
        if decision.create is not None:
            await self._create(decision.create, key)
        if decision.again is not None:
            self.controller.enqueue_after(key, decision.again)

    def _patience(self, key: Key) -> float:
        """How long a refused pod stays before the next is made: the first goes at once, the others one a second."""
        now = self._clock()
        wait = self._refused.get(key, -_FIRST_RETRY) + _FIRST_RETRY - now
        if wait <= 0:
            self._refused[key] = now
        return wait

    async def _pod(self, namespace: str, name: str) -> Pod | None:
        try:
            return await self._store.get(Pod, name, namespace)
        except NotFound:
            return None

    async def _create(self, pod: Pod, key: Key) -> None:
        try:
            await self._store.create(pod)
        except Exists:
            self.controller.enqueue(key)  # look again: it may be ours, made by another replica
