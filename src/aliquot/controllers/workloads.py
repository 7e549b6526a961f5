"""The workload controller: creates and deletes the pod of each workload and derives the workload's status from it.

    what is observed              what is done                            phase
    active, no pod                create the pod                          Pending
    pod waits for a node          nothing; the scheduler writes why       Pending
    pod has a node                nothing; the node prepares it           Initializing
    pod runs                                                              Running
    pod succeeded                                                         Completed
    pod failed (training)         a new pod, up to the backoff limit      Pending ... Failed
    node refused the pod          a new pod, without a limit              Pending
    pod was evicted               a new pod, or none if that was final    Pending, or Failed (Preempted)
    not active                    delete the pod, keep the workload       Stopped

A pod is one attempt: the next one has the same name and a new uid. Run and wait times add up over all attempts.
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

_DEFAULT_BACKOFF_LIMIT = 6
_FIRST_RETRY, _LAST_RETRY = 1.0, 60.0  # seconds before the pod of a failed attempt is replaced
_ENDED = ("Failed", "Completed")
_WAITING = ("Pending", "Initializing")
# The node had already given the pod's devices to another pod.
REFUSED = "UnexpectedAdmissionError"
# Reasons of a kubelet that does not take a pod, or gives it up. None of them is the job's fault.
_NODE_REASONS = (REFUSED, "NodeAffinity", "NodeShutdown", "Evicted", "Preempting", "NodeLost")
# Reasons that a new attempt would meet again.
_PERMANENT_REASONS = ("ContainerCannotRun", "ErrImagePull", "FailedMount", "CreateContainerConfigError")


@dataclass(frozen=True, slots=True)
class Decision:
    status: WorkloadStatus
    create: Pod | None = None
    delete: bool = False
    # The node refused the pod. Another node may take the next one; replacing it is rate limited.
    refused: bool = False
    # Reconcile again after so many seconds: the decision changes with time alone.
    requeue_after: float | None = None


def decide(workload: Workload, pod: Pod | None, project: str, now: float) -> Decision:
    """What to do with a workload's pod, and the workload's next status."""
    status = replace(workload.status, observed_generation=workload.metadata.generation, requested=_requested(workload))
    if not workload.spec.active:
        return _suspended(status, pod, now)
    if pod is not None and not _is_owned(pod, workload):
        message = f"pod {pod.metadata.name} of an earlier workload is still terminating"
        return Decision(_in_phase(status, "Pending", now, message=message))
    if status.phase in _ENDED:
        return Decision(status)
    if pod is None:
        return _without_pod(workload, status, project, now)
    if pod.metadata.deleted is not None:
        pods = PodCounts(desired=1, failed=status.pods.failed)
        return Decision(_in_phase(status, "Pending", now, reason="Terminating", pods=pods))
    return _with_pod(workload, status, pod, now)


def _without_pod(workload: Workload, status: WorkloadStatus, project: str, now: float) -> Decision:
    if status.interruptions and status.interruptions[-1].final:
        pods = PodCounts(failed=status.pods.failed)
        return Decision(_ended(status, "Failed", now, pods, "Preempted", _final_preemption_message(workload)))
    wait = _retry_at(status) - now
    if status.pods.failed and wait > 0:
        return Decision(_in_phase(status, "Pending", now, reason="BackOff"), requeue_after=wait)
    pods = replace(status.pods, desired=1, pending=1, running=0, ready=0)
    return Decision(_in_phase(status, "Pending", now, pods=pods), create=build_pod(workload, project))


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
            reason, message = _waiting_reason(pod)
            allocated = _allocated(pod)
            return Decision(
                _in_phase(status, "Running", now, pods=pods, reason=reason, message=message, allocated=allocated)
            )
        case _:
            pods = PodCounts(desired=1, pending=1, failed=failed)
            if not pod.spec.node_name:
                return Decision(_in_phase(status, "Pending", now, pods=pods))
            reason, message = _waiting_reason(pod)
            initializing = _in_phase(
                status, "Initializing", now, pods=pods, reason=reason or "ContainerCreating", message=message,
                allocated=_allocated(pod),
            )  # fmt: skip
            return Decision(initializing)


def _after_failure(workload: Workload, status: WorkloadStatus, pod: Pod, now: float) -> Decision:
    if status.last_failed_pod == pod.metadata.uid:
        return Decision(status, delete=True)  # counted before a restart; only the deletion is left
    message = pod.status.message or f"exit status {_exit_code(pod)}"
    if pod.status.reason.startswith(("GPU", "MPS")):  # reasons that the documentation explains
        message = f"{pod.status.reason}: {message}"
    if pod.status.reason in _NODE_REASONS or pod.status.reason.startswith("OutOf"):
        pods = PodCounts(desired=1, pending=1, failed=status.pods.failed)
        pending = _in_phase(replace(status, nodes=()), "Pending", now, pods=pods, reason=REFUSED, message=message)
        return Decision(pending, delete=True, refused=True)
    status = replace(status, last_failed_pod=pod.metadata.uid)
    failed = status.pods.failed + 1
    pods = PodCounts(desired=0, failed=failed)
    if failed >= max_attempts(workload) or pod.status.reason in _PERMANENT_REASONS:
        return Decision(_ended(status, "Failed", now, pods, pod.status.reason, message))
    pending = _in_phase(replace(status, finished_at=now), "Pending", now, pods=pods, reason="Error", message=message)
    return Decision(pending, delete=True)


def max_attempts(workload: Workload) -> int:
    """How many pods of the workload may fail before it does."""
    limit = workload.spec.backoff_limit
    return 1 + (_DEFAULT_BACKOFF_LIMIT if limit is None else limit)


def _suspended(status: WorkloadStatus, pod: Pod | None, now: float) -> Decision:
    if status.phase in _ENDED:
        return Decision(status)
    stopped = _in_phase(status, "Stopped", now, pods=PodCounts(), reason="Suspended")
    return Decision(replace(stopped, nodes=(), refusals=()), delete=pod is not None)


def _in_phase(
    status: WorkloadStatus,
    phase: WorkloadPhase,
    now: float,
    *,
    pods: PodCounts | None = None,
    reason: str = "",
    message: str = "",
    allocated: Amounts | None = None,
) -> WorkloadStatus:
    """The status in this phase. Run and wait times are updated when the workload starts or stops running or waiting."""
    running, waiting = phase == "Running", phase in _WAITING
    if waiting and status.queued_at is None:
        status = replace(status, queued_at=now)
    if not waiting and status.queued_at is not None:
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
    return replace(_in_phase(status, phase, now, pods=pods, reason=reason, message=message), finished_at=now)


def _final_preemption_message(workload: Workload) -> str:
    """Why a preempted workload does not go back to the queue."""
    count, limit = workload.status.preemption_count, workload.spec.preemption_limit
    why = f"stopped {count} times, and preemptionLimit is {limit}" if exceeds_preemption_limit(workload, count) else ""
    return f"{workload.status.interruptions[-1].message}; {why or 'it ends when preempted (terminateAfterPreemption)'}"


def _retry_at(status: WorkloadStatus) -> float:
    """When the next attempt starts. The delay doubles with each failure."""
    delay = min(_FIRST_RETRY * float(2 ** max(0, status.pods.failed - 1)), _LAST_RETRY)
    return (status.finished_at or 0) + delay


def _is_owned(pod: Pod, workload: Workload) -> bool:
    return any(owner.uid == workload.metadata.uid for owner in pod.metadata.owners)


def _requested(workload: Workload) -> Amounts:
    compute = workload.spec.compute
    return Amounts(gpu=(compute.gpu or 0) * (compute.gpu_devices or 1), cpu=compute.cpu, memory=compute.memory)


def _allocated(pod: Pod) -> Amounts:
    request = request_of(pod)
    # A request for GPU memory becomes a fraction only with the devices that the pod got.
    gpu = sum(share.milli for share in shares_of(pod)) if request.memory_mib else request.devices * request.milli
    return Amounts(gpu=gpu, cpu=request.cpu or None, memory=request.memory or None)


def _restarts(status: WorkloadStatus, pod: Pod) -> int:
    """How often the job was restarted, in this pod and by replacing earlier pods."""
    if pod.status.phase in ("", "Pending"):
        return status.restarts  # this pod has not started yet
    uid = pod.metadata.uid  # its own interruption or failure counts once there is a next pod
    interruptions = status.interruption_count - any(stop.pod == uid for stop in status.interruptions)
    failures = status.pods.failed - (status.last_failed_pod == uid)
    in_pod = sum(container.restart_count for container in pod.status.container_statuses)
    return max(status.restarts, interruptions + failures + in_pod)


def _is_ready(pod: Pod) -> bool:
    return all(container.ready for container in pod.status.container_statuses)


def _waiting_reason(pod: Pod) -> tuple[str, str]:
    """Reason and message of the first container that waits; empty where none does."""
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
        # The last state of each workload's deleted pod, until the workload is reconciled.
        self._deleted_pods: dict[Key, Pod] = {}
        self._replaced_at: dict[Key, float] = {}  # when a refused pod of the workload was last replaced
        self.controller = Controller("workloads", self._reconcile)
        self.controller.watch(workloads)
        pods.listen(self._pod_changed)

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if only_checkpoint_changed(old, new):
            return  # a checkpoint matters once the pod is gone
        if pod is not None and (name := pod.metadata.labels.get(WORKLOAD)):
            if new is None:
                self._deleted_pods[key[0], name] = pod
            self.controller.enqueue((key[0], name))

    async def _reconcile(self, key: Key) -> None:
        deleted_pod = self._deleted_pods.get(key)
        await self._reconcile_with(key, deleted_pod)
        if self._deleted_pods.get(key) is deleted_pod:
            self._deleted_pods.pop(key, None)

    async def _reconcile_with(self, key: Key, deleted_pod: Pod | None) -> None:
        namespace, name = key
        try:
            seen = await self._store.get(Workload, name, namespace)
        except NotFound:
            self._replaced_at.pop(key, None)
            return
        if seen.metadata.deleted is not None:
            return
        pod = await self._pod(namespace, pod_name(name))
        decision = decide(_with_pod_facts(seen, deleted_pod, pod), pod, self._project(namespace), self._clock())
        # The status is written first: it counts attempts, and an attempt that is not counted would be made again.
        if decision.status != seen.status:
            await self._statuses.write(seen, Reconciled(decision.status))
        if decision.refused and (wait := self._seconds_to_replacement(key)) > 0:
            self.controller.enqueue_after(key, wait)
        elif decision.delete and pod is not None and pod.metadata.deleted is None:
            await self._store.delete(pod)
        if decision.create is not None:
            await self._create(decision.create, key)
        if decision.requeue_after is not None:
            self.controller.enqueue_after(key, decision.requeue_after)

    def _project(self, namespace: str) -> str:
        seen = self._namespaces.get(namespace)
        return project_of(seen.metadata.labels) if seen else ""

    def _seconds_to_replacement(self, key: Key) -> float:
        """How long a refused pod stays: the first is replaced at once, later ones at most once a second."""
        now = self._clock()
        wait = self._replaced_at.get(key, -_FIRST_RETRY) + _FIRST_RETRY - now
        if wait <= 0:
            self._replaced_at[key] = now
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
            self.controller.enqueue(key)  # perhaps created by another replica: reconcile with it


def _with_pod_facts(workload: Workload, *pods: Pod | None) -> Workload:
    """The workload with the disruptions and checkpoints of its pods in its status."""
    for pod in pods:
        if pod is not None and _is_owned(pod, workload):
            if (record := disruption_of(pod)) is not None:
                workload = with_fact(workload, interruption_by(record, pod, StopPolicy()))
            workload = with_fact(workload, CheckpointSaved(pod))
    return workload
