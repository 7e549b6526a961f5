"""The agent's machine, one decision at a time."""

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
    TimerFired,
)

NODE = {"n1": {0: 1000, 1: 1000}}


def assignment(uid: str = "u", policy: str = "Never", milli: int = 0, mib: int = 0, index: int = 0) -> PodAssignment:
    shares = (DeviceShare(index=index, milli=milli, memory_mib=mib),) if milli else ()
    return PodAssignment(uid, "ns", uid, "n1", shares, policy)


def played(*events: Event, backoff: Backoff = Backoff()) -> tuple[State, list[Command]]:  # noqa: B008  # frozen
    """The state after all events, and the commands of the last."""
    state, commands = State(NODE, backoff), list[Command]()
    for event in events:
        state, commands = state_machine.step(state, event)
    return state, commands


RUNNING = (PodAssigned(assignment(), 0), Started("u", 0, 1))


def without_reports(commands: list[Command]) -> list[Command]:
    return [command for command in commands if not isinstance(command, Report)]


def test_start() -> None:
    """A pod that is wanted is started."""
    _, commands = played(PodAssigned(assignment(), 0))
    assert without_reports(commands) == [Start("u", 0)]


def test_seen_again() -> None:
    """A pod that is seen again is not started again."""
    assert played(*RUNNING, PodAssigned(assignment(), 2))[1] == []


def test_share_too_large() -> None:
    """A pod whose share is taken is refused, with the holder's name."""
    state, commands = played(PodAssigned(assignment("a", milli=600), 0), PodAssigned(assignment("b", milli=500), 1))
    assert without_reports(commands) == []
    assert state.tasks["b"].stage is Stage.ENDED
    assert "ns/a" in state.tasks["b"].termination.message


def test_memory_too_large() -> None:
    """Memory counts by itself."""
    state, _ = played(
        PodAssigned(assignment("a", milli=100, mib=800), 0), PodAssigned(assignment("b", milli=100, mib=300), 1)
    )
    assert state.tasks["b"].termination.reason == "UnexpectedAdmissionError"


def test_nobody_gave_it_devices() -> None:
    """A pod that can never be accepted is told apart from one that came too late."""
    state, _ = played(PodAssigned(assignment("a"), 0, rejection="it asks for 2 GPUs and was given 0"))
    assert state.tasks["a"].termination.reason == "CreateContainerConfigError"


def test_saved_with_its_end() -> None:
    """What was saved at the end is kept; an end that says nothing about it keeps what was known."""
    first, _ = played(*RUNNING, CheckpointSaved("u", 3), Exited("u", 0, 0, 1, 5))
    second, _ = played(*RUNNING, CheckpointSaved("u", 3), Exited("u", 0, 0, 1, 5, saved_at=4))
    assert (first.tasks["u"].saved_at, second.tasks["u"].saved_at) == (3, 4)


def test_saved_before_its_start_is_known() -> None:
    """A pod that was found running may have saved its work: that is said with its start."""
    _, commands = played(PodAssigned(assignment(), 0, recovered=True), CheckpointSaved("u", 3), Started("u", 0, 1))
    (report,) = [command for command in commands if isinstance(command, Report)]
    assert report.task.saved_at == 3


def test_other_device() -> None:
    """Another device of the node is another matter."""
    _, commands = played(
        PodAssigned(assignment("a", milli=600), 0), PodAssigned(assignment("b", milli=600, index=1), 1)
    )
    assert Start("b", 0) in commands


def test_device_that_is_not_there() -> None:
    """A device that the node does not have is refused."""
    state, _ = played(PodAssigned(assignment(milli=1, index=7), 0))
    assert "no GPU 7" in state.tasks["u"].termination.message


def test_devices_are_free_after_the_end() -> None:
    """What a pod held can be had once it has ended."""
    ended = (PodAssigned(assignment("a", milli=1000), 0), Started("a", 0, 1), Exited("a", 0, 0, 1, 2))
    assert Start("b", 0) in played(*ended, PodAssigned(assignment("b", milli=1000), 3))[1]


def test_stop() -> None:
    """A stop is TERM, and KILL when the grace is over."""
    _, commands = played(*RUNNING, StopRequested("u", 30, 10))
    assert commands == [Signal("u", "TERM"), SetTimer("u", "kill", 40)]
    _, commands = played(*RUNNING, StopRequested("u", 30, 10), TimerFired("u", "kill", 40))
    assert commands[0] == Signal("u", "KILL")


def test_stop_told_twice() -> None:
    """A second wish to stop changes nothing, unless it leaves less time."""
    assert played(*RUNNING, StopRequested("u", 30, 10), StopRequested("u", 30, 11))[1] == []
    assert played(*RUNNING, StopRequested("u", 30, 10), StopRequested("u", 2, 11))[1] == [SetTimer("u", "kill", 13)]


def test_stop_while_starting() -> None:
    """A pod that is to stop before it runs is stopped as soon as it does."""
    _, commands = played(PodAssigned(assignment(), 0), StopRequested("u", 5, 1), Started("u", 0, 2))
    assert without_reports(commands) == [Signal("u", "TERM"), SetTimer("u", "kill", 6)]


def test_stopped() -> None:
    """A deletion is confirmed when the process has ended, and not before."""
    _, commands = played(*RUNNING, StopRequested("u", 5, 2), Exited("u", 0, 143, 1, 3))
    assert commands[-1] == ConfirmDeletion("u")


def test_gone() -> None:
    """A pod that is gone from the store is killed, and removed when it is dead."""
    assert played(*RUNNING, PodDeleted("u", 2))[1][0] == Signal("u", "KILL")
    assert played(*RUNNING, PodDeleted("u", 2), Exited("u", 0, 137, 1, 3))[1] == [Remove("u")]


def test_interactive_waits_longer_each_time() -> None:
    """An interactive pod that ends waits 10 s, then 20 s, up to five minutes."""
    pauses = [Backoff().pause(failures) for failures in range(1, 9)]
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]


def test_interactive_starts_again() -> None:
    """After the pause it is started again, as the next attempt."""
    began = (PodAssigned(assignment(policy="Always"), 0), Started("u", 0, 1), Exited("u", 0, 0, 1, 5))
    assert SetTimer("u", "restart", 15) in played(*began)[1]
    assert Start("u", 1) in played(*began, TimerFired("u", "restart", 15))[1]


def test_long_run_is_forgiven() -> None:
    """A pod that ran long enough waits the shortest time again."""
    events: list[Event] = [PodAssigned(assignment(policy="Always"), 0)]
    for attempt in range(3):
        events += [Started("u", attempt, 1), Exited("u", attempt, 1, 1, 2), TimerFired("u", "restart", 3)]
    _, commands = played(*events, Started("u", 3, 10), Exited("u", 3, 1, 10, 700))
    assert SetTimer("u", "restart", 710) in commands


def test_exit_status_and_policy() -> None:
    """What an exit status means depends on the restart policy."""
    outcomes = {}
    for policy in ("Never", "OnFailure", "Always"):
        for code in (0, 1):
            state, _ = played(PodAssigned(assignment(policy=policy), 0), Started("u", 0, 1), Exited("u", 0, code, 1, 2))
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
    state, _ = played(
        PodAssigned(assignment(policy="Always"), 0),
        StartFailed("u", 0, "ContainerCannotRun", "command not found: x", 127, 1),
    )
    assert phase_of(state.tasks["u"]) == "Failed"


def test_late_news_of_an_old_attempt() -> None:
    """An end that belongs to an earlier attempt says nothing about this one."""
    again = (
        PodAssigned(assignment(policy="Always"), 0),
        Started("u", 0, 1),
        Exited("u", 0, 1, 1, 2),
        TimerFired("u", "restart", 9),
    )
    assert played(*again, Started("u", 1, 10), Exited("u", 0, 1, 1, 11))[1] == []


def test_found_again() -> None:
    """A pod that ran before keeps its devices, and is not said to wait again."""
    _, commands = played(PodAssigned(assignment(milli=1000), 0, attempt=4, recovered=True))
    assert commands == [Start("u", 4)]
