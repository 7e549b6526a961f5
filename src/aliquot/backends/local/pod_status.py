"""The status of a pod as the store keeps it, in the kubelet's terms, from the agent's state of it."""

from __future__ import annotations

from dataclasses import replace

from aliquot.api import Pod
from aliquot.api.pod import ContainerState, ContainerStatus, PodCondition, PodStatus, Running, Terminated, Waiting
from aliquot.backends.local.state_machine import Backoff, Stage, Task, Termination
from aliquot.labels import CHECKPOINT_SAVED

ADDRESS = "127.0.0.1"


def status_of(task: Task, pod: Pod, backoff: Backoff) -> PodStatus:
    """The whole status; conditions that others set stay."""
    old = pod.status
    phase = phase_of(task)
    ready = task.stage is Stage.RUNNING
    reason, message = _reason_and_message(task)
    now = _last_change(task)
    wanted = [
        ("PodScheduled", True, ""),
        ("Initialized", True, ""),
        ("ContainersReady", ready, "" if ready else _not_ready_reason(phase)),
        ("Ready", ready, "" if ready else _not_ready_reason(phase)),
    ]
    conditions = {condition.type: condition for condition in old.conditions}
    for name, holds, why in wanted:
        conditions[name] = _condition(conditions.get(name), name, holds, why, now)
    if task.saved_at is not None:
        conditions[CHECKPOINT_SAVED] = PodCondition(
            type=CHECKPOINT_SAVED, status="True", last_transition_time=task.saved_at
        )
    return replace(
        old,
        phase=phase,
        reason=reason,
        message=message,
        conditions=tuple(conditions.values()),
        container_statuses=tuple(
            ContainerStatus(
                name=container.name,
                image=container.image,
                ready=ready,
                started=ready,
                restart_count=task.attempt,
                state=_state(task, backoff),
                last_state=_last_state(task),
            )
            for container in pod.spec.containers
        ),
        host_ip=ADDRESS,
        pod_ip=ADDRESS if task.started is not None else "",
        start_time=old.start_time if old.start_time is not None else task.accepted,
    )


def phase_of(task: Task) -> str:
    if task.stage is Stage.ENDED:
        return "Succeeded" if task.termination is not None and task.termination.code == 0 else "Failed"
    if task.stage is Stage.STARTING and task.attempt == 0:
        return "Pending"
    return "Running"


def _reason_and_message(task: Task) -> tuple[str, str]:
    termination = task.termination
    if task.stage is not Stage.ENDED or termination is None:
        return "", ""
    if termination.started is not None and not termination.message:
        return "", ""
    return termination.reason, termination.message


def _state(task: Task, backoff: Backoff) -> ContainerState:
    match task.stage:
        case Stage.STARTING if task.attempt == 0:
            return ContainerState(waiting=Waiting(reason="ContainerCreating"))
        case Stage.RUNNING:
            return ContainerState(running=Running(started_at=task.started))
        case Stage.ENDED:
            return ContainerState(terminated=_terminated(task.termination))
    pause = backoff.pause(max(task.failures, 1))
    code = task.termination.code if task.termination else 0
    message = f"ended with exit status {code}; started again after {pause:g}s"
    return ContainerState(waiting=Waiting(reason="CrashLoopBackOff", message=message))


def _last_state(task: Task) -> ContainerState:
    if task.stage is Stage.ENDED or task.termination is None:
        return ContainerState()
    return ContainerState(terminated=_terminated(task.termination))


def _terminated(termination: Termination | None) -> Terminated | None:
    if termination is None:
        return None
    return Terminated(
        exit_code=termination.code,
        signal=termination.code - 128 if 128 < termination.code < 160 else None,
        reason=termination.reason,
        message=termination.message,
        started_at=termination.started,
        finished_at=termination.finished,
    )


def _not_ready_reason(phase: str) -> str:
    return {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")


def _last_change(task: Task) -> float:
    """The time of the newest event of the pod. No clock is read, so that writing the status twice gives the same."""
    times = [task.accepted, task.started, task.termination.finished if task.termination else None]
    return max(time for time in times if time is not None)


def _condition(old: PodCondition | None, name: str, holds: bool, reason: str, now: float) -> PodCondition:
    status = "True" if holds else "False"
    if old is not None and (old.status, old.reason) == (status, reason):
        return old
    return PodCondition(type=name, status=status, reason=reason, last_transition_time=now)
