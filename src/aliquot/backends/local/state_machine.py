"""The agent's decisions, as a machine: `step(state, event) -> (state, commands)`. No clock, no files, no processes.

                    Wanted                Started               Exited
    (unknown) ---------------> STARTING ---------> RUNNING -----------------> ENDED
        |     no room: ENDED      ^  |                |   restart policy        ^
        |                         |  +- StartFailed --|--------------------> ENDED
        |                         +------ Fired ----- BACKOFF <--- Exited ------+

Promises, held by tests/unit/agent against any order of events:

 1. A pod (uid) has at most one process: a start is asked for only when none can be alive.
 2. The shares of all pods that are not ENDED fit their devices. Who comes last is refused, and told who is there.
 3. A stop ends: TERM, then KILL when the grace is over, again and again until the process is gone.
 4. What is reported never goes back: Pending, Running, then Succeeded or Failed for good; restarts only grow.
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
# A KILL that did not help yet is sent again: what it hit may have forked at that moment.
_KILL_AGAIN_SECONDS = 2.0


class Stage(Enum):
    STARTING = "starting"
    RUNNING = "running"
    BACKOFF = "backoff"  # ended, will be started again; keeps its devices
    ENDED = "ended"  # for good


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a pod that ended waits before it is started again."""

    first: float = 10.0
    longest: float = 300.0
    # A run of this length clears the record.
    forgiven_after: float = 600.0

    def pause(self, failures: int) -> float:
        return float(min(self.first * 2 ** min(failures - 1, 30), self.longest))


@dataclass(frozen=True, slots=True)
class Ending:
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
    failures: int = 0  # in a row, for the pause
    started: float | None = None
    ending: Ending | None = None  # of the last attempt that ended
    deadline: float | None = None  # set: it is being stopped, and killed then
    gone: bool = False  # the store has it no more
    saved: float | None = None  # when its job last said that it had saved its work


@dataclass(frozen=True, slots=True)
class State:
    # MiB of each device by node and index; 0 = not known.
    devices: Mapping[str, Mapping[int, int]]
    backoff: Backoff = Backoff()
    tasks: Mapping[str, Task] = field(default_factory=dict)


# --- events


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod should run here. `found`: it was accepted before, so what it holds is its own."""

    assignment: PodAssignment
    at: float
    attempt: int = 0
    found: bool = False
    problem: str = ""  # why it cannot be accepted, whatever is free


@dataclass(frozen=True, slots=True)
class Unwanted:
    """A pod should stop, within `grace` seconds."""

    uid: str
    grace: float
    at: float


@dataclass(frozen=True, slots=True)
class Gone:
    """The store has the pod no more."""

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
    saved: float | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A job says that it has saved its work."""

    uid: str
    at: float


@dataclass(frozen=True, slots=True)
class Fired:
    uid: str
    timer: Timer
    at: float


Event = Wanted | Unwanted | Gone | Started | StartFailed | Exited | Saved | Fired


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
    """One of each name per pod: a new one replaces the old."""

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
    """Nobody will ask for the pod again: its files may go."""

    uid: str


Command = Start | Signal | SetTimer | Report | ConfirmDeletion | Remove
Step = tuple[State, list[Command]]


def step(state: State, event: Event) -> Step:
    match event:
        case Wanted():
            return _wanted(state, event)
        case Unwanted():
            return _unwanted(state, event)
        case Gone():
            return _gone(state, event)
        case Started():
            return _started(state, event)
        case StartFailed():
            return _start_failed(state, event)
        case Exited():
            return _exited(state, event)
        case Saved():
            return _saved(state, event)
        case Fired():
            return _fired(state, event)
        case _:
            assert_never(event)


def obstacle(state: State, assignment: PodAssignment) -> str:
    """Why these shares cannot be had now; empty when they can."""
    devices = state.devices.get(assignment.node, {})
    for share in assignment.shares:
        if share.index not in devices:
            return f"node {assignment.node} has no GPU {share.index}"
        holders = _holders(state, assignment.node, share.index)
        milli = share.milli + sum(held for _, held, _ in holders)
        memory = share.memory_mib + sum(held for _, _, held in holders)
        if milli > units.GPU or (devices[share.index] and memory > devices[share.index]):
            names = ", ".join(sorted(name for name, _, _ in holders)) or "nobody else"
            return f"GPU {share.index} of node {assignment.node} is not free: held by {names}"
    return ""


def _holders(state: State, node: str, index: int) -> list[tuple[str, int, int]]:
    return [
        (f"{task.assignment.namespace}/{task.assignment.name}", share.milli, share.memory_mib)
        for task in state.tasks.values()
        if task.stage is not Stage.ENDED and task.assignment.node == node
        for share in task.assignment.shares
        if share.index == index
    ]


def _wanted(state: State, event: Wanted) -> Step:
    uid = event.assignment.uid
    if uid in state.tasks:
        return state, []
    task = Task(event.assignment, event.at, attempt=event.attempt)
    reason, problem = "CreateContainerConfigError", event.problem
    if not problem and not event.found:
        # In this word whoever made the pod reads that another one may have more luck.
        reason, problem = "UnexpectedAdmissionError", obstacle(state, event.assignment)
    if problem:
        ending = Ending(128, reason, problem, finished=event.at)
        return _kept(state, replace(task, stage=Stage.ENDED, ending=ending), report=True)
    # What was accepted before has been reported before, and may have come further since.
    return _kept(state, task, Start(uid, event.attempt), report=not event.found)


def _unwanted(state: State, event: Unwanted) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage is Stage.ENDED:
        return state, [ConfirmDeletion(event.uid)]
    due = event.at + event.grace
    if task.stage is Stage.BACKOFF:
        return _kept(state, replace(task, stage=Stage.ENDED), ConfirmDeletion(event.uid), report=True)
    if task.deadline is not None and task.deadline <= due:
        return state, []
    first = task.deadline is None and task.stage is Stage.RUNNING
    commands: list[Command] = [Signal(event.uid, "TERM")] if first else []
    if task.stage is Stage.RUNNING:
        commands.append(SetTimer(event.uid, "kill", due))
    return _kept(state, replace(task, deadline=due), *commands)


def _gone(state: State, event: Gone) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage in (Stage.ENDED, Stage.BACKOFF):
        return _forgotten(state, event.uid)
    task = replace(task, gone=True)
    return _kept(state, task, *(_kill(event.uid, event.at) if task.stage is Stage.RUNNING else ()))


def _started(state: State, event: Started) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage is not Stage.STARTING or task.attempt != event.attempt:
        return state, []
    task = replace(task, stage=Stage.RUNNING, started=event.at)
    if task.gone:
        return _kept(state, task, *_kill(event.uid, event.at))
    if task.deadline is None:
        return _kept(state, task, report=True)
    stop = (Signal(event.uid, "TERM"), SetTimer(event.uid, "kill", task.deadline))
    return _kept(state, task, *stop, report=True)


def _start_failed(state: State, event: StartFailed) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage is not Stage.STARTING or task.attempt != event.attempt:
        return state, []
    return _ended(state, replace(task, ending=Ending(event.code, event.reason, event.message, finished=event.at)))


def _exited(state: State, event: Exited) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage not in (Stage.STARTING, Stage.RUNNING) or task.attempt != event.attempt:
        return state, []
    reason = event.reason or ("Completed" if event.code == 0 else "Error")
    ending = Ending(event.code, reason, event.message, event.started, event.at)
    task = replace(task, ending=ending, saved=event.saved if event.saved is not None else task.saved)
    if task.gone or task.deadline is not None or not _restarts(task.assignment.policy, event.code):
        return _ended(state, task)
    forgiven = event.at - event.started >= state.backoff.forgiven_after
    task = replace(task, stage=Stage.BACKOFF, failures=1 if forgiven else task.failures + 1)
    restart = SetTimer(event.uid, "restart", event.at + state.backoff.pause(task.failures))
    return _kept(state, task, restart, report=True)


def _saved(state: State, event: Saved) -> Step:
    task = state.tasks.get(event.uid)
    if task is None or task.stage not in (Stage.STARTING, Stage.RUNNING) or task.saved == event.at:
        return state, []
    # Who found it running may hear of it before we do; then it is said with its start.
    return _kept(state, replace(task, saved=event.at), report=task.stage is Stage.RUNNING)


def _restarts(policy: str, code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _fired(state: State, event: Fired) -> Step:
    task = state.tasks.get(event.uid)
    if task is None:
        return state, []
    if event.timer == "restart" and task.stage is Stage.BACKOFF:
        task = replace(task, stage=Stage.STARTING, attempt=task.attempt + 1)
        return _kept(state, task, Start(event.uid, task.attempt))
    if event.timer == "kill" and task.stage is Stage.RUNNING:
        return state, _kill(event.uid, event.at)
    return state, []


def _kill(uid: str, at: float) -> list[Command]:
    return [Signal(uid, "KILL"), SetTimer(uid, "kill", at + _KILL_AGAIN_SECONDS)]


def _ended(state: State, task: Task) -> Step:
    """Nothing of it is alive, and it will not be started again."""
    if task.gone:
        return _forgotten(state, task.assignment.uid)
    confirm = () if task.deadline is None else (ConfirmDeletion(task.assignment.uid),)
    return _kept(state, replace(task, stage=Stage.ENDED), *confirm, report=True)


def _kept(state: State, task: Task, *commands: Command, report: bool = False) -> Step:
    uid = task.assignment.uid
    said: list[Command] = [Report(uid, task)] if report else []
    return replace(state, tasks={**state.tasks, uid: task}), [*said, *commands]


def _forgotten(state: State, uid: str) -> Step:
    tasks = {known: task for known, task in state.tasks.items() if known != uid}
    return replace(state, tasks=tasks), [Remove(uid)]
