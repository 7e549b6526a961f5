"""The agent's decisions, as a state machine: `step(state, event) -> (state, commands)`. No clock, files or processes.

                  PodAssigned             Started               Exited
    (unknown) ---------------> STARTING ---------> RUNNING -----------------> ENDED
        |   devices taken: ENDED  ^  |                |   restart policy        ^
        |                         |  +- StartFailed --|--------------------> ENDED
        |                         +---- TimerFired -- BACKOFF <--- Exited ------+

Invariants, tested against any order of events in tests/unit/backends/local:

 1. A pod (uid) has at most one process: a start is commanded only when no process of the pod can be alive.
 2. The shares of all pods that are not ENDED fit their devices. A pod that does not fit is rejected, with the holders.
 3. A stop ends: TERM, then KILL when the grace period is over, repeated until the process is gone.
 4. A reported status never goes back: Pending, Running, then Succeeded or Failed for good; restart counts only grow.
 5. A deletion is confirmed only when nothing of the pod is alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, assert_never

from aliquot import units
from aliquot.backends.local.runtime import PodAssignment, SignalName

Timer = Literal["kill", "restart"]
# KILL is sent again after this time: the process may have forked at the moment of the first.
_KILL_AGAIN_SECONDS = 2.0


class Stage(Enum):
    STARTING = "starting"
    RUNNING = "running"
    BACKOFF = "backoff"  # exited, waits for its restart; keeps its devices
    ENDED = "ended"  # for good


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a pod that exited waits for its restart."""

    first: float = 10.0
    longest: float = 300.0
    # A run of this many seconds resets the pause.
    reset_after: float = 600.0

    def pause(self, failures: int) -> float:
        return float(min(self.first * 2 ** min(failures - 1, 30), self.longest))


@dataclass(frozen=True, slots=True)
class Termination:
    code: int
    reason: str
    message: str = ""
    started: float | None = None
    finished: float | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One pod."""

    assignment: PodAssignment
    accepted: float
    stage: Stage = Stage.STARTING
    attempt: int = 0
    failures: int = 0  # in a row; determines the pause
    started: float | None = None
    termination: Termination | None = None  # of the last attempt that ended
    deadline: float | None = None  # set: the pod is being stopped, and is killed at this time
    deleted: bool = False  # from the store
    saved_at: float | None = None  # when the job last reported that it saved its work


@dataclass(frozen=True, slots=True)
class State:
    # MiB of each device by node and index; 0: not known.
    devices: Mapping[str, Mapping[int, int]]
    backoff: Backoff = Backoff()
    tasks: Mapping[str, Task] = field(default_factory=dict)


# --- events


@dataclass(frozen=True, slots=True)
class PodAssigned:
    """The store has bound a pod to one of our nodes. `recovered`: it was accepted before and keeps its devices."""

    assignment: PodAssignment
    at: float
    attempt: int = 0
    recovered: bool = False
    rejection: str = ""  # why it cannot be accepted, whatever is free


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The pod must stop within `grace` seconds."""

    uid: str
    grace: float
    at: float


@dataclass(frozen=True, slots=True)
class PodDeleted:
    """The pod was removed from the store."""

    uid: str
    at: float


@dataclass(frozen=True, slots=True)
class Started:
    uid: str
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class StartFailed:
    uid: str
    attempt: int
    reason: str
    message: str
    code: int
    at: float


@dataclass(frozen=True, slots=True)
class Exited:
    uid: str
    attempt: int
    code: int
    started: float
    at: float
    reason: str = ""
    message: str = ""
    saved_at: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A job reports that it has saved its work."""

    uid: str
    at: float


@dataclass(frozen=True, slots=True)
class TimerFired:
    uid: str
    timer: Timer
    at: float


Event = PodAssigned | StopRequested | PodDeleted | Started | StartFailed | Exited | CheckpointSaved | TimerFired


# --- commands


@dataclass(frozen=True, slots=True)
class Start:
    uid: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Signal:
    uid: str
    name: SignalName


@dataclass(frozen=True, slots=True)
class SetTimer:
    """A pod has one timer of each name: a new one replaces the old."""

    uid: str
    timer: Timer
    at: float


@dataclass(frozen=True, slots=True)
class Report:
    uid: str
    task: Task


@dataclass(frozen=True, slots=True)
class ConfirmDeletion:
    uid: str


@dataclass(frozen=True, slots=True)
class Remove:
    """The pod is gone for good: remove its files."""

    uid: str


Command = Start | Signal | SetTimer | Report | ConfirmDeletion | Remove
Step = tuple[State, list[Command]]


def step(state: State, event: Event) -> Step:
    match event:
        case PodAssigned():
            return _pod_assigned(state, event)
        case StopRequested():
            return _stop_requested(state, event)
        case PodDeleted():
            return _pod_deleted(state, event)
        case Started():
            return _started(state, event)
        case StartFailed():
            return _start_failed(state, event)
        case Exited():
            return _exited(state, event)
        case CheckpointSaved():
            return _checkpoint_saved(state, event)
        case TimerFired():
            return _timer_fired(state, event)
        case _:
            assert_never(event)


def device_conflict(state: State, assignment: PodAssignment) -> str:
    """Why the pod's shares are not available; empty when they are."""
    devices = state.devices.get(assignment.node, {})
    for share in assignment.shares:
        if share.index not in devices:
            return f"node {assignment.node} has no GPU {share.index}"
        holders = _holders(state, assignment.node, share.index)
        milli = share.milli + sum(held_milli for _, held_milli, _ in holders)
        memory = share.memory_mib + sum(held_mib for _, _, held_mib in holders)
        if milli > units.GPU or (devices[share.index] and memory > devices[share.index]):
            names = ", ".join(sorted(name for name, _, _ in holders)) or "nobody else"
            return f"GPU {share.index} of node {assignment.node} is not free: held by {names}"
    return ""


def _holders(state: State, node: str, index: int) -> list[tuple[str, int, int]]:
    """Pods on a device: name, thousandths of the device, MiB."""
    return [
        (f"{task.assignment.namespace}/{task.assignment.name}", share.milli, share.memory_mib)
        for task in state.tasks.values()
        if task.stage is not Stage.ENDED and task.assignment.node == node
        for share in task.assignment.shares
        if share.index == index
    ]


def _pod_assigned(state: State, event: PodAssigned) -> Step:
    uid = event.assignment.uid
    if uid in state.tasks:
        return state, []
    task = Task(event.assignment, event.at, attempt=event.attempt)
    reason, rejection = "CreateContainerConfigError", event.rejection
    if not rejection and not event.recovered:
        # The pod's controller reads from this reason that a replacement may succeed.
        reason, rejection = "UnexpectedAdmissionError", device_conflict(state, event.assignment)
    if rejection:
        termination = Termination(128, reason, rejection, finished=event.at)
        return _with_task(state, replace(task, stage=Stage.ENDED, termination=termination), report=True)
    # A recovered pod was reported before, and its reported status may be further on.
    return _with_task(state, task, Start(uid, event.attempt), report=not event.recovered)


def _stop_requested(state: State, event: StopRequested) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage is Stage.ENDED:
        return state, [ConfirmDeletion(event.uid)]
    deadline = event.at + event.grace
    if task.stage is Stage.BACKOFF:
        return _with_task(state, replace(task, stage=Stage.ENDED), ConfirmDeletion(event.uid), report=True)
    if task.deadline is not None and task.deadline <= deadline:
        return state, []
    first_request = task.deadline is None and task.stage is Stage.RUNNING
    commands: list[Command] = [Signal(event.uid, "TERM")] if first_request else []
    if task.stage is Stage.RUNNING:
        commands.append(SetTimer(event.uid, "kill", deadline))
    return _with_task(state, replace(task, deadline=deadline), *commands)


def _pod_deleted(state: State, event: PodDeleted) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage in (Stage.ENDED, Stage.BACKOFF):
        return _without_task(state, event.uid)
    task = replace(task, deleted=True)
    return _with_task(state, task, *(_kill(event.uid, event.at) if task.stage is Stage.RUNNING else ()))


def _started(state: State, event: Started) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage is not Stage.STARTING or task.attempt != event.attempt:
        return state, []
    task = replace(task, stage=Stage.RUNNING, started=event.at)
    if task.deleted:
        return _with_task(state, task, *_kill(event.uid, event.at))
    if task.deadline is None:
        return _with_task(state, task, report=True)
    stop = (Signal(event.uid, "TERM"), SetTimer(event.uid, "kill", task.deadline))
    return _with_task(state, task, *stop, report=True)


def _start_failed(state: State, event: StartFailed) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage is not Stage.STARTING or task.attempt != event.attempt:
        return state, []
    return _ended(
        state, replace(task, termination=Termination(event.code, event.reason, event.message, finished=event.at))
    )


def _exited(state: State, event: Exited) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage not in (Stage.STARTING, Stage.RUNNING) or task.attempt != event.attempt:
        return state, []
    reason = event.reason or ("Completed" if event.code == 0 else "Error")
    termination = Termination(event.code, reason, event.message, event.started, event.at)
    saved_at = event.saved_at if event.saved_at is not None else task.saved_at
    task = replace(task, termination=termination, saved_at=saved_at)
    if task.deleted or task.deadline is not None or not _restarts(task.assignment.policy, event.code):
        return _ended(state, task)
    ran_long = event.at - event.started >= state.backoff.reset_after
    task = replace(task, stage=Stage.BACKOFF, failures=1 if ran_long else task.failures + 1)
    restart = SetTimer(event.uid, "restart", event.at + state.backoff.pause(task.failures))
    return _with_task(state, task, restart, report=True)


def _checkpoint_saved(state: State, event: CheckpointSaved) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage not in (Stage.STARTING, Stage.RUNNING) or task.saved_at == event.at:
        return state, []
    # The runtime may report the save of a recovered pod before its start; it is then reported with the start.
    return _with_task(state, replace(task, saved_at=event.at), report=task.stage is Stage.RUNNING)


def _restarts(policy: str, code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _timer_fired(state: State, event: TimerFired) -> Step:
    task = state.tasks.get(event.uid)
    if task is None:
        return state, []
    if event.timer == "restart" and task.stage is Stage.BACKOFF:
        task = replace(task, stage=Stage.STARTING, attempt=task.attempt + 1)
        return _with_task(state, task, Start(event.uid, task.attempt))
    if event.timer == "kill" and task.stage is Stage.RUNNING:
        return state, _kill(event.uid, event.at)
    return state, []


def _kill(uid: str, at: float) -> list[Command]:
    return [Signal(uid, "KILL"), SetTimer(uid, "kill", at + _KILL_AGAIN_SECONDS)]


def _ended(state: State, task: Task) -> Step:
    """Nothing of the pod is alive, and it will not be started again."""
    if task.deleted:
        return _without_task(state, task.assignment.uid)
    confirm = () if task.deadline is None else (ConfirmDeletion(task.assignment.uid),)
    return _with_task(state, replace(task, stage=Stage.ENDED), *confirm, report=True)


def _with_task(state: State, task: Task, *commands: Command, report: bool = False) -> Step:
    uid = task.assignment.uid
    reports: list[Command] = [Report(uid, task)] if report else []
    return replace(state, tasks={**state.tasks, uid: task}), [*reports, *commands]


def _without_task(state: State, uid: str) -> Step:
    tasks = {other: task for other, task in state.tasks.items() if other != uid}
    return replace(state, tasks=tasks), [Remove(uid)]
