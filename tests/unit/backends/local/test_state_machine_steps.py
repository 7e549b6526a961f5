"""The agent's state machine, one decision at a time."""

from __future__ import annotations

from aliquot.api import DeviceShare
from aliquot.backends.local import state_machine
from aliquot.backends.local.pod_status import phase_of
from aliquot.backends.local.runtime import PodAssignment
from aliquot.backends.local.state_machine import (
    Backoff,
    CheckpointSaved,
    Command,
    ConfirmDeletion,
    Event,
    Exited,
    PodAssigned,
    PodDeleted,
    Remove,
    Report,
    SetTimer,
    Signal,
    Stage,
    Start,
    Started,
    StartFailed,
    State,
    StopRequested,
    Termination,
    TimerFired,
)

NODE = {"n1": {0: 1000, 1: 1000}}


def assignment(uid: str = "u", policy: str = "Never", milli: int = 0, mib: int = 0, index: int = 0) -> PodAssignment:
    shares = (DeviceShare(index=index, milli=milli, memory_mib=mib),) if milli else ()
    return PodAssignment(uid, "ns", uid, "n1", shares, policy)


def run_events(*events: Event, backoff: Backoff = Backoff()) -> tuple[State, list[Command]]:  # noqa: B008  # frozen
    """The state after all events, and the commands of the last."""
    state, commands = State(NODE, backoff), list[Command]()
    for event in events:
        state, commands = state_machine.step(state, event)
    return state, commands


RUNNING = (PodAssigned(assignment(), 0), Started("u", 0, 1))


def termination(state: State, uid: str) -> Termination:
    result = state.tasks[uid].termination
    assert result is not None
    return result


def without_reports(commands: list[Command]) -> list[Command]:
    return [command for command in commands if not isinstance(command, Report)]


def test_start() -> None:
    """An assigned pod is started."""
    _, commands = run_events(PodAssigned(assignment(), 0))
    assert without_reports(commands) == [Start("u", 0)]


def test_assigned_twice() -> None:
    """A pod that is assigned again is not started again."""
    assert run_events(*RUNNING, PodAssigned(assignment(), 2))[1] == []


def test_share_too_large() -> None:
    """A pod whose share is taken is rejected, with the holder's name."""
    state, commands = run_events(PodAssigned(assignment("a", milli=600), 0), PodAssigned(assignment("b", milli=500), 1))
    assert without_reports(commands) == []
    assert state.tasks["b"].stage is Stage.ENDED
    assert "ns/a" in termination(state, "b").message


def test_memory_too_large() -> None:
    """Memory is counted separately from compute."""
    state, _ = run_events(
        PodAssigned(assignment("a", milli=100, mib=800), 0), PodAssigned(assignment("b", milli=100, mib=300), 1)
    )
    assert termination(state, "b").reason == "UnexpectedAdmissionError"


def test_rejected_for_good() -> None:
    """A pod that can never be accepted has another reason than one whose devices are taken."""
    state, _ = run_events(PodAssigned(assignment("a"), 0, rejection="it asks for 2 GPUs and was given 0"))
    assert termination(state, "a").reason == "CreateContainerConfigError"


def test_saved_with_its_end() -> None:
    """A save time that comes with the end is kept; an end without one keeps the known time."""
    first, _ = run_events(*RUNNING, CheckpointSaved("u", 3), Exited("u", 0, 0, 1, 5))
    second, _ = run_events(*RUNNING, CheckpointSaved("u", 3), Exited("u", 0, 0, 1, 5, saved_at=4))
    assert (first.tasks["u"].saved_at, second.tasks["u"].saved_at) == (3, 4)


def test_saved_before_its_start_is_known() -> None:
    """A save of a recovered pod is reported with its start."""
    _, commands = run_events(PodAssigned(assignment(), 0, recovered=True), CheckpointSaved("u", 3), Started("u", 0, 1))
    (report,) = [command for command in commands if isinstance(command, Report)]
    assert report.task.saved_at == 3


def test_other_device() -> None:
    """A share of another device does not conflict."""
    _, commands = run_events(
        PodAssigned(assignment("a", milli=600), 0), PodAssigned(assignment("b", milli=600, index=1), 1)
    )
    assert Start("b", 0) in commands


def test_unknown_device() -> None:
    """A device that the node does not have is rejected."""
    state, _ = run_events(PodAssigned(assignment(milli=1, index=7), 0))
    assert "no GPU 7" in termination(state, "u").message


def test_devices_are_free_after_the_end() -> None:
    """The devices of a pod are free once it has ended."""
    ended = (PodAssigned(assignment("a", milli=1000), 0), Started("a", 0, 1), Exited("a", 0, 0, 1, 2))
    assert Start("b", 0) in run_events(*ended, PodAssigned(assignment("b", milli=1000), 3))[1]


def test_stop() -> None:
    """A stop is TERM, and KILL when the grace period is over."""
    _, commands = run_events(*RUNNING, StopRequested("u", 30, 10))
    assert commands == [Signal("u", "TERM"), SetTimer("u", "kill", 40)]
    _, commands = run_events(*RUNNING, StopRequested("u", 30, 10), TimerFired("u", "kill", 40))
    assert commands[0] == Signal("u", "KILL")


def test_stop_requested_twice() -> None:
    """A second stop request changes nothing, unless its deadline is earlier."""
    assert run_events(*RUNNING, StopRequested("u", 30, 10), StopRequested("u", 30, 11))[1] == []
    assert run_events(*RUNNING, StopRequested("u", 30, 10), StopRequested("u", 2, 11))[1] == [SetTimer("u", "kill", 13)]


def test_stop_while_starting() -> None:
    """A pod that is asked to stop while it starts is stopped as soon as it runs."""
    _, commands = run_events(PodAssigned(assignment(), 0), StopRequested("u", 5, 1), Started("u", 0, 2))
    assert without_reports(commands) == [Signal("u", "TERM"), SetTimer("u", "kill", 6)]


def test_stopped() -> None:
    """A deletion is confirmed when the process has ended, and not before."""
    _, commands = run_events(*RUNNING, StopRequested("u", 5, 2), Exited("u", 0, 143, 1, 3))
    assert commands[-1] == ConfirmDeletion("u")


def test_deleted() -> None:
    """A pod that was removed from the store is killed, and its files are removed after its end."""
    assert run_events(*RUNNING, PodDeleted("u", 2))[1][0] == Signal("u", "KILL")
    assert run_events(*RUNNING, PodDeleted("u", 2), Exited("u", 0, 137, 1, 3))[1] == [Remove("u")]


def test_backoff_grows() -> None:
    """A pod that ends waits 10 s for its restart, then 20 s, up to five minutes."""
    pauses = [Backoff().pause(failures) for failures in range(1, 9)]
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]


def test_restart_after_the_pause() -> None:
    """After the pause the next attempt is started."""
    began = (PodAssigned(assignment(policy="Always"), 0), Started("u", 0, 1), Exited("u", 0, 0, 1, 5))
    assert SetTimer("u", "restart", 15) in run_events(*began)[1]
    assert Start("u", 1) in run_events(*began, TimerFired("u", "restart", 15))[1]


def test_a_long_run_resets_the_backoff() -> None:
    """A pod that ran long enough waits the shortest pause again."""
    events: list[Event] = [PodAssigned(assignment(policy="Always"), 0)]
    for attempt in range(3):
        events += [Started("u", attempt, 1), Exited("u", attempt, 1, 1, 2), TimerFired("u", "restart", 3)]
    _, commands = run_events(*events, Started("u", 3, 10), Exited("u", 3, 1, 10, 700))
    assert SetTimer("u", "restart", 710) in commands


def test_exit_status_and_policy() -> None:
    """What an exit status means depends on the restart policy."""
    outcomes = {}
    for policy in ("Never", "OnFailure", "Always"):
        for code in (0, 1):
            state, _ = run_events(
                PodAssigned(assignment(policy=policy), 0), Started("u", 0, 1), Exited("u", 0, code, 1, 2)
            )
            outcomes[policy, code] = phase_of(state.tasks["u"])
    assert outcomes == {
        ("Never", 0): "Succeeded",
        ("Never", 1): "Failed",
        ("OnFailure", 0): "Succeeded",
        ("OnFailure", 1): "Running",
        ("Always", 0): "Running",
        ("Always", 1): "Running",
    }


def test_start_failed() -> None:
    """A pod that could not start has failed for good."""
    state, _ = run_events(
        PodAssigned(assignment(policy="Always"), 0),
        StartFailed("u", 0, "ContainerCannotRun", "command not found: x", 127, 1),
    )
    assert phase_of(state.tasks["u"]) == "Failed"


def test_late_event_of_an_old_attempt() -> None:
    """The end of an earlier attempt does not change the current one."""
    again = (
        PodAssigned(assignment(policy="Always"), 0),
        Started("u", 0, 1),
        Exited("u", 0, 1, 1, 2),
        TimerFired("u", "restart", 9),
    )
    assert run_events(*again, Started("u", 1, 10), Exited("u", 0, 1, 1, 11))[1] == []


def test_recovered() -> None:
    """A recovered pod keeps its devices, and is not reported as pending again."""
    _, commands = run_events(PodAssigned(assignment(milli=1000), 0, attempt=4, recovered=True))
    assert commands == [Start("u", 4)]
