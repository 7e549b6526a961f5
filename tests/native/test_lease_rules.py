"""Who holds the lease of a GPU, under a fake clock: the model and the library's lease.c follow the same rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from native import lease_model as m
from native.lease_implementations import LeaseRules, Library, Model

MS = m.MS


class Clockwork:
    """One gate and one clock. A process is a number; it records the lease it is counted under, as the library does."""

    def __init__(self, rules: LeaseRules) -> None:
        self.rules = rules
        self.now = 1_000_000 * MS
        self.asleep: dict[int, int] = {}
        self.counted: dict[int, int] = {}

    def join(self, name: str, weight: int = 500, strict: bool = False) -> int | None:
        (place,) = self.rules.step(m.Join(name, weight, strict), self.now)
        assert isinstance(place, m.Place)
        return place.who

    def tenants(self, *weights: int, strict: bool = False) -> list[int]:
        places = [self.join(f"t{i}", w, strict) for i, w in enumerate(weights)]
        return [p for p in places if p is not None]

    def ask(self, who: int) -> str:
        (turn,) = self.rules.step(m.Ask(who), self.now)
        assert isinstance(turn, m.Turn)
        if turn.turn == "sleep":
            self.asleep[who] = turn.until
        return turn.turn

    def launch(self, who: int, process: int = 0) -> None:
        (note,) = self.rules.step(m.Launched(who, self.counted.get(process, 0)), self.now)
        assert isinstance(note, m.Counted)
        self.counted[process] = note.lease

    def empty(self, who: int, process: int = 0) -> None:
        self.rules.step(m.Emptied(who, self.counted.get(process, 0)), self.now)
        self.counted[process] = 0

    def drained(self, who: int) -> bool:
        (passed,) = self.rules.step(m.Drained(who), self.now)
        assert isinstance(passed, m.Passed)
        return passed.done

    def wait(self, who: int, begins: bool) -> None:
        self.rules.step(m.WaitBegins(who) if begins else m.WaitEnds(who), self.now)

    def spend(self, who: int, ms: int) -> None:
        """The holder launches all the time."""
        for _ in range(ms):
            self.now += MS
            assert self.ask(who) != "wait"

    def run(self, busy: list[int], ms: int, drain: int = MS) -> None:
        """Every busy tenant launches whenever it may, in steps of half a millisecond."""
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
def clock(request: pytest.FixtureRequest, lease_library: Path) -> Clockwork:
    return Clockwork(Model() if request.param == "model" else Library(lease_library))


@pytest.mark.parametrize("weights", [(500, 500), (250, 750), (100, 200, 700), (250, 250, 250, 250)])
def test_shares_follow_the_weights(clock: Clockwork, weights: tuple[int, ...]) -> None:
    """Tenants that always have work hold the card in proportion to their fractions, to one point."""
    who = clock.tenants(*weights)
    clock.run(who, 4_000)
    total = sum(clock.held(w) for w in who)
    for tenant, weight in zip(who, weights, strict=True):
        assert clock.held(tenant) / total == pytest.approx(weight / sum(weights), abs=0.01)


def test_within_the_quantum_launches_pass(clock: Clockwork) -> None:
    """Rule 1: the holder launches and the other waits, until ten milliseconds are over and another tenant waits."""
    holder, other = clock.tenants(500, 500)
    assert (clock.ask(holder), clock.ask(other)) == ("go", "wait")
    for _ in range(9):
        clock.now += MS
        assert (clock.ask(holder), clock.ask(other)) == ("go", "wait")
    clock.now += MS
    assert clock.ask(holder) == "drain"
    assert clock.drained(holder)
    assert (clock.ask(holder), clock.ask(other)) == ("wait", "go")
    assert clock.held(holder) == 10


def test_alone_is_free(clock: Clockwork) -> None:
    """Rule 2: time that no other tenant wanted is not billed; running alone does not lengthen a later wait."""
    (early,) = clock.tenants(500)
    clock.run([early], 20_000)
    assert clock.held(early) == 0
    late = clock.join("late")
    assert late is not None
    clock.run([early, late], 2_000)
    assert clock.held(early) / clock.held(late) == pytest.approx(1, abs=0.05)


def test_absence_saves_nothing_up(clock: Clockwork) -> None:
    """Rule 3: a tenant that was away for long gets its share from now on, not the time it missed as well."""
    here, away, third = clock.tenants(500, 500, 500)
    clock.run([here, away, third], 500)
    clock.run([here, third], 10_000)
    before = clock.held(away), clock.held(here)
    clock.run([here, away, third], 3_000)
    assert (clock.held(away) - before[0]) / (clock.held(here) - before[1]) == pytest.approx(1, abs=0.1)


def test_absence_forgives_debts(clock: Clockwork) -> None:
    """Rule 3: a tenant far ahead of the others does not pay for it after it was away."""
    early, other = clock.tenants(100, 900)
    clock.run([early, other], 1_000)
    third = clock.join("third", 900)
    assert third is not None
    clock.run([other, third], 1_000)
    state = clock.rules.state()
    assert state.tenants[early].vtime != min(state.tenants[w].vtime for w in (other, third))
    clock.ask(early)
    state = clock.rules.state()
    assert state.tenants[early].vtime == min(state.tenants[w].vtime for w in (other, third))


def test_idle_holder_is_passed_over(clock: Clockwork) -> None:
    """Rule 4: a holder that does nothing for 2 ms loses the lease, and is billed only to its last launch."""
    idle, busy = clock.tenants(500, 500)
    assert clock.ask(idle) == "go"
    clock.now += 2 * MS
    assert clock.ask(busy) == "wait"
    clock.now += 1
    assert clock.ask(busy) == "go"
    assert clock.held(idle) == 0


def test_waiting_for_ones_own_work_is_not_idling(clock: Clockwork) -> None:
    """Rule 4: a holder inside a synchronise call keeps the lease, and loses it 2 ms after."""
    holder, other = clock.tenants(500, 500)
    assert clock.ask(holder) == "go"
    clock.wait(holder, begins=True)
    clock.now += 8 * MS
    assert clock.ask(other) == "wait"
    clock.wait(holder, begins=False)
    clock.now += 3 * MS
    assert clock.ask(other) == "go"
    assert clock.held(holder) == 8


def test_dead_holder_is_replaced(clock: Clockwork) -> None:
    """Rule 4: a holder killed inside a synchronise call loses the lease 200 ms past its quantum, and idles after."""
    holder, other = clock.tenants(500, 500)
    clock.ask(holder)
    clock.wait(holder, begins=True)
    clock.now += 205 * MS
    assert clock.ask(other) == "wait"
    clock.now += 10 * MS
    assert clock.ask(other) == "go"
    clock.wait(holder, begins=False)  # it was alive, only slow: its count does not go below none
    assert clock.rules.state().tenants[holder].waits_for_work == 0


def test_dead_waiter_is_forgotten(clock: Clockwork) -> None:
    """A tenant that was killed while it waited does not block others, though it had used the least."""
    living, dead = clock.tenants(500, 500)
    clock.run([living, dead], 100)
    while clock.ask(dead) != "wait":
        clock.run([living, dead], 5)
    before = clock.held(living)
    clock.run([living], 250)
    clock.run([living], 1_000)
    state = clock.rules.state()
    assert state.holder == living
    assert clock.ask(living) == "go"
    assert clock.held(living) - before < 250  # and soon it is billed no more, being alone


def test_queues_are_short_while_others_are_near(clock: Clockwork) -> None:
    """Rule 5: a tenant alone queues as it likes; for a second after another was there it does not."""
    me, other = clock.tenants(500, 500)
    clock.now += 2_000 * MS
    clock.ask(me)
    assert not clock.rules.crowded(me, clock.now)
    clock.ask(other)
    assert clock.rules.crowded(me, clock.now)
    clock.now += 999 * MS
    assert clock.rules.crowded(me, clock.now)
    clock.now += 2 * MS
    assert not clock.rules.crowded(me, clock.now)


def test_the_last_process_to_drain_hands_over(clock: Clockwork) -> None:
    """Rule 6: with work of two processes on the card, the lease goes when both have waited for theirs."""
    many, one = clock.tenants(500, 500)
    clock.ask(many)
    clock.launch(many, process=1)
    clock.launch(many, process=2)
    clock.spend(many, 9)
    clock.launch(many, process=2)
    clock.ask(one)
    clock.now += MS
    assert clock.ask(many) == "drain"
    clock.empty(many, process=1)
    assert not clock.drained(many)
    clock.spend(many, 4)
    assert (clock.ask(many), clock.ask(one)) == ("drain", "wait")
    clock.empty(many, process=2)
    assert clock.drained(many)
    assert clock.ask(one) == "go"
    assert clock.held(many) == 14


def test_a_process_that_waits_for_its_work_is_waited_for(clock: Clockwork) -> None:
    """Rule 6: three queues of half a quantum each last longer than one; work on the card keeps the lease."""
    many, one = clock.tenants(500, 500)
    clock.ask(many)
    clock.launch(many, process=1)
    clock.launch(many, process=2)
    clock.ask(one)
    clock.spend(many, 10)
    clock.wait(many, begins=True)
    clock.empty(many, process=1)
    assert not clock.drained(many)
    clock.spend(many, 12)
    assert not clock.drained(many)
    assert (clock.ask(many), clock.ask(one)) == ("drain", "wait")
    clock.wait(many, begins=False)
    clock.empty(many, process=2)
    assert clock.drained(many)
    assert (clock.ask(one), clock.held(many)) == ("go", 22)


def test_a_process_that_never_drains_is_not_waited_for(clock: Clockwork) -> None:
    """Rule 6: a process that was killed, or computes elsewhere, holds up the hand-over for 5 ms, and only once."""
    many, one = clock.tenants(500, 500)
    clock.ask(many)
    clock.launch(many, process=1)
    clock.launch(many, process=2)
    clock.ask(one)
    clock.spend(many, 10)
    assert clock.ask(many) == "drain"
    clock.empty(many, process=1)
    assert not clock.drained(many)
    clock.spend(many, 5)
    assert clock.ask(many) == "drain"
    assert clock.drained(many)
    assert clock.ask(one) == "go"
    clock.now += 3 * MS
    clock.ask(many)
    clock.launch(many, process=1)
    clock.empty(many, process=1)
    assert clock.rules.state().tenants[many].queued == 0


def test_strict_budget_holds_on_an_idle_card(clock: Clockwork) -> None:
    """A strict tenant alone gets its fraction of the time and sleeps the rest."""
    (alone,) = clock.tenants(250, strict=True)
    clock.run([alone], 4_000)
    assert clock.held(alone) / 4_000 == pytest.approx(0.25, abs=0.01)


def test_strict_tenants_do_not_disturb_each_other(clock: Clockwork) -> None:
    """Two strict tenants of a quarter and a half each get theirs."""
    quarter, half = clock.tenants(250, 500, strict=True)
    clock.run([quarter, half], 4_000)
    assert clock.held(quarter) / 4_000 == pytest.approx(0.25, abs=0.02)
    assert clock.held(half) / 4_000 == pytest.approx(0.5, abs=0.02)


def test_a_pause_is_not_billed(clock: Clockwork) -> None:
    """A strict tenant that held the lease and then computed on the CPU for seconds owes nothing for them."""
    (alone,) = clock.tenants(250, strict=True)
    assert clock.ask(alone) == "go"
    clock.now += 5_000 * MS
    assert clock.ask(alone) == "go"
    assert clock.held(alone) == 0


def test_places_are_found_again(clock: Clockwork) -> None:
    """All processes of a tenant share its slot; the thirty-third tenant waits until another has left."""
    first = clock.join("t0", 10)
    assert clock.join("t0", 10) == first
    assert len({clock.join(f"t{i}", 10) for i in range(32)}) == 32
    assert clock.join("t32", 10) is None
    clock.now += 100 * MS
    assert clock.join("t32", 10) is not None
