"""The lease rules under a simulated clock, for the Python model and for lease.c."""

from __future__ import annotations

from pathlib import Path

import pytest

from native import lease_model as m
from native.lease_implementations import LeaseRules, Library, Model

MS = m.MS


class LeaseSimulation:
    """One gate and one clock. A process is a number; like the library, it records the lease it is counted under."""

    def __init__(self, rules: LeaseRules) -> None:
        self.rules = rules
        self.now = 1_000_000 * MS
        self.asleep: dict[int, int] = {}
        self.counted: dict[int, int] = {}

    def join(self, name: str, weight: int = 500, strict: bool = False) -> int | None:
        (joined,) = self.rules.step(m.Join(name, weight, strict), self.now)
        assert isinstance(joined, m.Joined)
        return joined.slot

    def tenants(self, *weights: int, strict: bool = False) -> list[int]:
        slots = [self.join(f"t{i}", w, strict) for i, w in enumerate(weights)]
        return [p for p in slots if p is not None]

    def ask(self, who: int) -> str:
        (decision,) = self.rules.step(m.Ask(who), self.now)
        assert isinstance(decision, m.Decision)
        if decision.action == "sleep":
            self.asleep[who] = decision.until
        return decision.action

    def launch(self, who: int, process: int = 0) -> None:
        (counted,) = self.rules.step(m.Launched(who, self.counted.get(process, 0)), self.now)
        assert isinstance(counted, m.Counted)
        self.counted[process] = counted.lease

    def synchronize(self, who: int, process: int = 0) -> None:
        self.rules.step(m.Emptied(who, self.counted.get(process, 0)), self.now)
        self.counted[process] = 0

    def drained(self, who: int) -> bool:
        (handed_over,) = self.rules.step(m.Drained(who), self.now)
        assert isinstance(handed_over, m.HandedOver)
        return handed_over.done

    def wait(self, who: int, begins: bool) -> None:
        self.rules.step(m.WaitBegins(who) if begins else m.WaitEnds(who), self.now)

    def spend(self, who: int, ms: int) -> None:
        """The holder launches once per millisecond."""
        for _ in range(ms):
            self.now += MS
            assert self.ask(who) != "wait"

    def run(self, busy: list[int], ms: int, drain: int = MS) -> None:
        """Every busy tenant launches whenever it is allowed to, in steps of half a millisecond."""
        end = self.now + ms * MS
        while self.now < end:
            for who in busy:
                if self.asleep.get(who, 0) <= self.now and self.ask(who) == "drain":
                    self.now += drain
                    self.drained(who)
            self.now += MS // 2

    def held(self, who: int) -> float:
        return self.rules.state().tenants[who].held / MS


@pytest.fixture(params=["model", "library"])
def sim(request: pytest.FixtureRequest, lease_library: Path) -> LeaseSimulation:
    return LeaseSimulation(Model() if request.param == "model" else Library(lease_library))


@pytest.mark.parametrize("weights", [(500, 500), (250, 750), (100, 200, 700), (250, 250, 250, 250)])
def test_shares_follow_the_weights(sim: LeaseSimulation, weights: tuple[int, ...]) -> None:
    """Tenants that always have work hold the lease in proportion to their weights, within one percentage point."""
    who = sim.tenants(*weights)
    sim.run(who, 4_000)
    total = sum(sim.held(w) for w in who)
    for tenant, weight in zip(who, weights, strict=True):
        assert sim.held(tenant) / total == pytest.approx(weight / sum(weights), abs=0.01)


def test_within_the_quantum_launches_pass(sim: LeaseSimulation) -> None:
    """Rule 1: the holder launches and the other tenant waits, until the quantum of 10 ms is over."""
    holder, other = sim.tenants(500, 500)
    assert (sim.ask(holder), sim.ask(other)) == ("go", "wait")
    for _ in range(9):
        sim.now += MS
        assert (sim.ask(holder), sim.ask(other)) == ("go", "wait")
    sim.now += MS
    assert sim.ask(holder) == "drain"
    assert sim.drained(holder)
    assert (sim.ask(holder), sim.ask(other)) == ("wait", "go")
    assert sim.held(holder) == 10


def test_uncontended_time_is_not_billed(sim: LeaseSimulation) -> None:
    """Rule 2: time that no other tenant wanted is not billed, so it does not delay later leases."""
    (early,) = sim.tenants(500)
    sim.run([early], 20_000)
    assert sim.held(early) == 0
    late = sim.join("late")
    assert late is not None
    sim.run([early, late], 2_000)
    assert sim.held(early) / sim.held(late) == pytest.approx(1, abs=0.05)


def test_inactivity_earns_no_credit(sim: LeaseSimulation) -> None:
    """Rule 3: a tenant that was inactive gets its share from now on, and not the time that it missed."""
    here, away, third = sim.tenants(500, 500, 500)
    sim.run([here, away, third], 500)
    sim.run([here, third], 10_000)
    before = sim.held(away), sim.held(here)
    sim.run([here, away, third], 3_000)
    assert (sim.held(away) - before[0]) / (sim.held(here) - before[1]) == pytest.approx(1, abs=0.1)


def test_inactivity_clears_debt(sim: LeaseSimulation) -> None:
    """Rule 3: a tenant with more virtual time than the others loses that debt when it was inactive."""
    early, other = sim.tenants(100, 900)
    sim.run([early, other], 1_000)
    third = sim.join("third", 900)
    assert third is not None
    sim.run([other, third], 1_000)
    state = sim.rules.state()
    assert state.tenants[early].vtime != min(state.tenants[w].vtime for w in (other, third))
    sim.ask(early)
    state = sim.rules.state()
    assert state.tenants[early].vtime == min(state.tenants[w].vtime for w in (other, third))


def test_idle_holder_loses_the_lease(sim: LeaseSimulation) -> None:
    """Rule 4: a holder that is idle for 2 ms loses the lease and is billed only up to its last launch."""
    idle, busy = sim.tenants(500, 500)
    assert sim.ask(idle) == "go"
    sim.now += 2 * MS
    assert sim.ask(busy) == "wait"
    sim.now += 1
    assert sim.ask(busy) == "go"
    assert sim.held(idle) == 0


def test_a_synchronizing_holder_is_not_idle(sim: LeaseSimulation) -> None:
    """Rule 4: a holder inside a synchronize call keeps the lease, and loses it 2 ms after the call."""
    holder, other = sim.tenants(500, 500)
    assert sim.ask(holder) == "go"
    sim.wait(holder, begins=True)
    sim.now += 8 * MS
    assert sim.ask(other) == "wait"
    sim.wait(holder, begins=False)
    sim.now += 3 * MS
    assert sim.ask(other) == "go"
    assert sim.held(holder) == 8


def test_dead_holder_is_replaced(sim: LeaseSimulation) -> None:
    """Rule 4: a holder killed inside a synchronize call loses the lease 200 ms after the end of its quantum."""
    holder, other = sim.tenants(500, 500)
    sim.ask(holder)
    sim.wait(holder, begins=True)
    sim.now += 205 * MS
    assert sim.ask(other) == "wait"
    sim.now += 10 * MS
    assert sim.ask(other) == "go"
    sim.wait(holder, begins=False)  # it was only slow: the count does not go below 0
    assert sim.rules.state().tenants[holder].waits_for_work == 0


def test_dead_waiter_does_not_block(sim: LeaseSimulation) -> None:
    """A tenant that was killed while it waited does not block others, even with the least virtual time."""
    live, dead = sim.tenants(500, 500)
    sim.run([live, dead], 100)
    while sim.ask(dead) != "wait":
        sim.run([live, dead], 5)
    before = sim.held(live)
    sim.run([live], 250)
    sim.run([live], 1_000)
    state = sim.rules.state()
    assert state.holder == live
    assert sim.ask(live) == "go"
    assert sim.held(live) - before < 250  # later time is uncontended and not billed


def test_queues_are_short_while_others_are_active(sim: LeaseSimulation) -> None:
    """Rule 5: queues are kept short while another tenant is active and for one second after."""
    me, other = sim.tenants(500, 500)
    sim.now += 2_000 * MS
    sim.ask(me)
    assert not sim.rules.crowded(me, sim.now)
    sim.ask(other)
    assert sim.rules.crowded(me, sim.now)
    sim.now += 999 * MS
    assert sim.rules.crowded(me, sim.now)
    sim.now += 2 * MS
    assert not sim.rules.crowded(me, sim.now)


def test_the_last_process_to_drain_hands_over(sim: LeaseSimulation) -> None:
    """Rule 6: with two processes of a tenant, the lease is handed over when both have synchronized."""
    multi, single = sim.tenants(500, 500)
    sim.ask(multi)
    sim.launch(multi, process=1)
    sim.launch(multi, process=2)
    sim.spend(multi, 9)
    sim.launch(multi, process=2)
    sim.ask(single)
    sim.now += MS
    assert sim.ask(multi) == "drain"
    sim.synchronize(multi, process=1)
    assert not sim.drained(multi)
    sim.spend(multi, 4)
    assert (sim.ask(multi), sim.ask(single)) == ("drain", "wait")
    sim.synchronize(multi, process=2)
    assert sim.drained(multi)
    assert sim.ask(single) == "go"
    assert sim.held(multi) == 14


def test_hand_over_waits_for_a_synchronizing_process(sim: LeaseSimulation) -> None:
    """Rule 6: the tenant keeps the lease while one of its processes waits for its work on the GPU."""
    multi, single = sim.tenants(500, 500)
    sim.ask(multi)
    sim.launch(multi, process=1)
    sim.launch(multi, process=2)
    sim.ask(single)
    sim.spend(multi, 10)
    sim.wait(multi, begins=True)
    sim.synchronize(multi, process=1)
    assert not sim.drained(multi)
    sim.spend(multi, 12)
    assert not sim.drained(multi)
    assert (sim.ask(multi), sim.ask(single)) == ("drain", "wait")
    sim.wait(multi, begins=False)
    sim.synchronize(multi, process=2)
    assert sim.drained(multi)
    assert (sim.ask(single), sim.held(multi)) == ("go", 22)


def test_hand_over_does_not_wait_for_a_dead_process(sim: LeaseSimulation) -> None:
    """Rule 6: a process that was killed or is busy on the CPU delays the hand-over by 5 ms, and only once."""
    multi, single = sim.tenants(500, 500)
    sim.ask(multi)
    sim.launch(multi, process=1)
    sim.launch(multi, process=2)
    sim.ask(single)
    sim.spend(multi, 10)
    assert sim.ask(multi) == "drain"
    sim.synchronize(multi, process=1)
    assert not sim.drained(multi)
    sim.spend(multi, 5)
    assert sim.ask(multi) == "drain"
    assert sim.drained(multi)
    assert sim.ask(single) == "go"
    sim.now += 3 * MS
    sim.ask(multi)
    sim.launch(multi, process=1)
    sim.synchronize(multi, process=1)
    assert sim.rules.state().tenants[multi].queued == 0


def test_strict_budget_applies_on_an_idle_gpu(sim: LeaseSimulation) -> None:
    """A strict tenant that is alone gets its fraction of the time and sleeps for the rest."""
    (alone,) = sim.tenants(250, strict=True)
    sim.run([alone], 4_000)
    assert sim.held(alone) / 4_000 == pytest.approx(0.25, abs=0.01)


def test_strict_tenants_do_not_disturb_each_other(sim: LeaseSimulation) -> None:
    """Two strict tenants with a quarter and a half get a quarter and a half of the time."""
    quarter, half = sim.tenants(250, 500, strict=True)
    sim.run([quarter, half], 4_000)
    assert sim.held(quarter) / 4_000 == pytest.approx(0.25, abs=0.02)
    assert sim.held(half) / 4_000 == pytest.approx(0.5, abs=0.02)


def test_a_pause_is_not_billed(sim: LeaseSimulation) -> None:
    """A strict tenant that was busy on the CPU for seconds is not billed for that time."""
    (alone,) = sim.tenants(250, strict=True)
    assert sim.ask(alone) == "go"
    sim.now += 5_000 * MS
    assert sim.ask(alone) == "go"
    assert sim.held(alone) == 0


def test_processes_share_their_tenants_slot(sim: LeaseSimulation) -> None:
    """All processes of a tenant share its slot; the 33rd tenant gets a slot when another is inactive."""
    first = sim.join("t0", 10)
    assert sim.join("t0", 10) == first
    assert len({sim.join(f"t{i}", 10) for i in range(32)}) == 32
    assert sim.join("t32", 10) is None
    sim.now += 100 * MS
    assert sim.join("t32", 10) is not None
