"""From the agent's view of a pod to the status that the store keeps, in the kubelet's words."""

from __future__ import annotations

from dataclasses import replace

from aliquot.api import Pod
from aliquot.api.pod import ContainerState, ContainerStatus, PodCondition, PodStatus, Running, Terminated, Waiting
from aliquot.backends.local.state_machine import Backoff, Ending, Stage, Task
from aliquot.labels import CHECKPOINT_SAVED

ADDRESS = "127.0.0.1"


def status_of(task: Task, pod: Pod, backoff: Backoff) -> PodStatus:
    """The whole status; conditions of others stay."""
    old = pod.status
    phase = phase_of(task)
    ready = task.stage is Stage.RUNNING
    reason, message = _told(task)
    now = _moment(task)
    wanted = [
        ("PodScheduled", True, ""),
        ("Initialized", True, ""),
        ("ContainersReady", ready, "" if ready else _unready(phase)),
        ("Ready", ready, "" if ready else _unready(phase)),
    ]
    conditions = {condition.type: condition for condition in old.conditions}
    for name, holds, why in wanted:
        conditions[name] = _condition(conditions.get(name), name, holds, why, now)
    if task.saved is not None:
        conditions[CHECKPOINT_SAVED] = PodCondition(
            type=CHECKPOINT_SAVED, status="True", last_transition_time=task.saved
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
                last_state=_last(task),
            )
            for container in pod.spec.containers
        ),
        host_ip=ADDRESS,
        pod_ip=ADDRESS if task.started is not None else "",
        start_time=old.start_time if old.start_time is not None else task.accepted,
    )


def phase_of(task: Task) -> str:
    if task.stage is Stage.ENDED:
        return "Succeeded" if task.ending is not None and task.ending.code == 0 else "Failed"
    if task.stage is Stage.STARTING and task.attempt == 0:
        return "Pending"
    return "Running"


def _told(task: Task) -> tuple[str, str]:
    ending = task.ending
    if task.stage is not Stage.ENDED or ending is None or (ending.started is not None and not ending.message):
        return "", ""
    return ending.reason, ending.message


def _state(task: Task, backoff: Backoff) -> ContainerState:
    match task.stage:
        case Stage.STARTING if task.attempt == 0:
            return ContainerState(waiting=Waiting(reason="ContainerCreating"))
        case Stage.RUNNING:
            return ContainerState(running=Running(started_at=task.started))
        case Stage.ENDED:
            return ContainerState(terminated=_terminated(task.ending))
    pause = backoff.pause(max(task.failures, 1))
    code = task.ending.code if task.ending else 0
    message = f"ended with exit status {code}; started again after {pause:g}s"
    return ContainerState(waiting=Waiting(reason="CrashLoopBackOff", message=message))


def _last(task: Task) -> ContainerState:
    if task.stage is Stage.ENDED or task.ending is None:
        return ContainerState()
    return ContainerState(terminated=_terminated(task.ending))


def _terminated(ending: Ending | None) -> Terminated | None:
    if ending is None:
        return None
    return Terminated(
        exit_code=ending.code,
        signal=ending.code - 128 if 128 < ending.code < 160 else None,
        reason=ending.reason,
        message=ending.message,
        started_at=ending.started,
        finished_at=ending.finished,
    )


def _unready(phase: str) -> str:
    return {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")


def _moment(task: Task) -> float:
    """When the newest thing we know about it happened; no clock, so that saying it twice says the same."""
    times = [task.accepted, task.started, task.ending.finished if task.ending else None]
    return max(time for time in times if time is not None)


def _condition(old: PodCondition | None, name: str, holds: bool, reason: str, now: float) -> PodCondition:
    status = "True" if holds else "False"
    if old is not None and (old.status, old.reason) == (status, reason):
        return old
    return PodCondition(type=name, status=status, reason=reason, last_transition_time=now)
