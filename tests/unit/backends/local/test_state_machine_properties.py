"""The invariants of the agent's state machine, against any order of events."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aliquot.api import DeviceShare
from aliquot.backends.local import state_machine
from aliquot.backends.local.pod_status import phase_of
from aliquot.backends.local.runtime import PodAssignment
from aliquot.backends.local.state_machine import Backoff, Command, Event, Stage, State

DEVICES = {"n1": {0: 100, 1: 0}, "n2": {0: 100}}
ORDER = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}
uids = st.sampled_from([f"u{i}" for i in range(5)])
codes = st.sampled_from([0, 1, 137, 143])


class FakeMachine(RuleBasedStateMachine):
    """Fake processes, timers and a store that carry out commands when the test chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State(DEVICES, Backoff(first=1, longest=4))
        self.now = 0.0
        self.assignments: dict[str, PodAssignment] = {}
        self.starting: dict[str, int] = {}
        self.processes: dict[str, int] = {}
        self.attempts: set[tuple[str, int]] = set()
        self.killed: set[str] = set()
        self.timers: dict[tuple[str, str], float] = {}
        self.phases: dict[str, tuple[str, int]] = {}
        self.stopping: set[str] = set()
        self.deleted: set[str] = set()
        self.confirmed: set[str] = set()

    def feed(self, event: Event) -> None:
        self.now += 1
        self.state, commands = state_machine.step(self.state, event)
        for command in commands:
            self.execute(command)

    def execute(self, command: Command) -> None:
        uid = command.uid
        match command:
            case state_machine.Start(_, attempt):
                assert uid not in self.processes, "a second process"
                assert uid not in self.starting, "started twice"
                assert (uid, attempt) not in self.attempts, "an attempt twice"
                self.attempts.add((uid, attempt))
                self.starting[uid] = attempt
            case state_machine.Signal(_, "KILL"):
                self.killed.add(uid)
            case state_machine.SetTimer(_, timer, at):
                self.timers[uid, timer] = at
            case state_machine.Report(_, task):
                before = self.phases.get(uid, ("Pending", 0))
                after = phase_of(task), task.attempt
                assert ORDER[before[0]] <= ORDER[after[0]], "went back"
                assert before[0] not in ("Succeeded", "Failed") or before == after, "changed its end"
                assert before[1] <= after[1]
                self.phases[uid] = after
            case state_machine.ConfirmDeletion():
                assert uid not in {*self.processes, *self.starting}, "confirmed too early"
                self.confirmed.add(uid)
            case state_machine.Remove():
                assert uid not in {*self.processes, *self.starting}, "removed too early"

    @rule(
        uid=uids,
        node=st.sampled_from(["n1", "n2"]),
        policy=st.sampled_from(["Never", "OnFailure", "Always"]),
        shares=st.dictionaries(st.integers(0, 1), st.tuples(st.integers(1, 1000), st.integers(0, 100)), max_size=2),
    )
    def assign(self, uid: str, node: str, policy: str, shares: dict[int, tuple[int, int]]) -> None:
        if uid in self.deleted:
            return
        held = tuple(DeviceShare(index=i, milli=milli, memory_mib=mib) for i, (milli, mib) in shares.items())
        self.assignments.setdefault(uid, PodAssignment(uid, "ns", uid, node, held, policy))
        if uid not in self.stopping:
            self.feed(state_machine.PodAssigned(self.assignments[uid], self.now))

    @rule(uid=uids, grace=st.integers(0, 30))
    def request_stop(self, uid: str, grace: int) -> None:
        if uid in self.assignments and uid not in self.deleted:
            self.stopping.add(uid)
            self.feed(state_machine.StopRequested(uid, grace, self.now))

    @rule(uid=uids)
    def delete(self, uid: str) -> None:
        if uid in self.assignments and uid not in self.deleted:
            self.deleted.add(uid)
            self.feed(state_machine.PodDeleted(uid, self.now))

    @precondition(lambda self: self.starting)
    @rule(data=st.data(), fails=st.booleans())
    def started(self, data: st.DataObject, fails: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.starting)))
        attempt = self.starting.pop(uid)
        if fails:
            self.feed(state_machine.StartFailed(uid, attempt, "ContainerCannotRun", "no", 127, self.now))
        else:
            self.processes[uid] = attempt
            self.feed(state_machine.Started(uid, attempt, self.now))

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), code=codes)
    def ends(self, data: st.DataObject, code: int) -> None:
        uid = data.draw(st.sampled_from(sorted(self.processes)))
        self.end(uid, code)

    def end(self, uid: str, code: int) -> None:
        attempt = self.processes.pop(uid)
        self.killed.discard(uid)
        self.feed(state_machine.Exited(uid, attempt, code, self.now, self.now))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def saves(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.processes)))
        self.feed(state_machine.CheckpointSaved(uid, self.now))
        assert self.state.tasks[uid].saved_at == self.now - 1

    @precondition(lambda self: self.timers)
    @rule(data=st.data())
    def fire(self, data: st.DataObject) -> None:
        uid, timer = data.draw(st.sampled_from(sorted(self.timers)))
        self.now = max(self.now, self.timers.pop((uid, timer)))
        self.feed(state_machine.TimerFired(uid, timer, self.now))  # type: ignore[arg-type]

    @invariant()
    def devices_are_not_given_twice(self) -> None:
        milli: Counter[tuple[str, int]] = Counter()
        memory: Counter[tuple[str, int]] = Counter()
        for task in self.state.tasks.values():
            if task.stage is not Stage.ENDED:
                for share in task.assignment.shares:
                    milli[task.assignment.node, share.index] += share.milli
                    memory[task.assignment.node, share.index] += share.memory_mib
        assert all(amount <= 1000 for amount in milli.values())
        assert all(amount <= DEVICES[node][i] or not DEVICES[node][i] for (node, i), amount in memory.items())

    @invariant()
    def live_pods_are_known(self) -> None:
        for uid in (*self.processes, *self.starting):
            assert self.state.tasks[uid].stage in (Stage.STARTING, Stage.RUNNING)

    def teardown(self) -> None:
        """Every stop ends: let what was asked happen, with processes that heed nothing but KILL."""
        for uid in list(self.assignments):
            self.request_stop(uid, 5)
        for _ in range(100):
            for uid in list(self.starting):
                self.processes[uid] = self.starting.pop(uid)
                self.feed(state_machine.Started(uid, self.processes[uid], self.now))
            for uid in [uid for uid in self.processes if uid in self.killed]:
                self.end(uid, 137)
            if not self.processes and not self.starting:
                break
            for key in list(self.timers):
                self.now = max(self.now, self.timers.pop(key))
                self.feed(state_machine.TimerFired(key[0], key[1], self.now))  # type: ignore[arg-type]
        assert not self.processes
        assert self.stopping - self.deleted <= self.confirmed


TestStateMachine = FakeMachine.TestCase
TestStateMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
