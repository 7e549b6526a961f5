"""GPU time by lease: the arithmetic with a made-up clock, and real processes on the stand-in card."""

from __future__ import annotations

import ctypes as c
from pathlib import Path

import pytest

from native.rig import SOURCE, Rig, compile_library

GO, DRAIN, WAIT, SLEEP = range(4)
MS = 1_000_000


class Tenant(c.Structure):
    _fields_ = [
        ("name", c.c_char * 64), ("weight", c.c_uint32), ("strict", c.c_uint32), ("vtime", c.c_uint64),
        ("held", c.c_uint64), ("active", c.c_uint64), ("period", c.c_uint64), ("spent", c.c_uint64),
        ("waiting", c.c_uint32), ("waits_for_work", c.c_int32), ("futex", c.c_uint32), ("unused", c.c_uint32 * 5),
    ]  # fmt: skip


class Gate(c.Structure):
    _fields_ = [
        ("head", c.c_uint8 * 80), ("holder", c.c_uint32), ("unused", c.c_uint32), ("start", c.c_uint64),
        ("end", c.c_uint64),
        ("space", c.c_uint8 * 152), ("tenant", Tenant * 32),
    ]  # fmt: skip


class Clockwork:
    """The library's own lease.c, with time as an argument. Tenants always have work unless said otherwise."""

    def __init__(self, library: Path) -> None:
        self.lib = c.CDLL(str(library))
        self.lib.lease_ask.argtypes = [c.c_void_p, c.c_int, c.c_uint64, c.c_void_p]
        self.lib.lease_drained.argtypes = [c.c_void_p, c.c_int, c.c_uint64]
        self.lib.lease_join.argtypes = [c.c_void_p, c.c_char_p, c.c_uint32, c.c_bool, c.c_uint64]
        self.gate = Gate()
        self.now = 1_000_000 * MS
        self.asleep: dict[int, int] = {}

    def join(self, name: str, weight: int, strict: bool = False) -> int:
        return int(self.lib.lease_join(c.byref(self.gate), name.encode(), weight, strict, self.now))

    def ask(self, who: int) -> int:
        until = c.c_uint64()
        turn = int(self.lib.lease_ask(c.byref(self.gate), who, self.now, c.byref(until)))
        self.gate.tenant[who].waiting = int(turn == WAIT)
        if turn == SLEEP:
            self.asleep[who] = until.value
        return turn

    def run(self, busy: list[int], ms: int, drain: int = MS) -> None:
        """Every busy tenant launches whenever it may, in steps of half a millisecond."""
        end = self.now + ms * MS
        while self.now < end:
            for who in busy:
                if self.asleep.get(who, 0) > self.now:
                    continue
                if self.ask(who) == DRAIN:
                    self.now += drain
                    self.lib.lease_drained(c.byref(self.gate), who, self.now)
            self.now += MS // 2

    def held(self, who: int) -> float:
        return float(self.gate.tenant[who].held) / MS


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lease") / "liblease.so"
    compile_library(out, [SOURCE / "lease.c"], "-fvisibility=default")
    return out


@pytest.fixture
def clock(library: Path) -> Clockwork:
    return Clockwork(library)


@pytest.mark.parametrize("weights", [(500, 500), (250, 750), (100, 200, 700), (250, 250, 250, 250)])
def test_shares_follow_the_weights(clock: Clockwork, weights: tuple[int, ...]) -> None:
    """Tenants that always have work hold the card in proportion to their fractions, to one point."""
    who = [clock.join(f"t{i}", w) for i, w in enumerate(weights)]
    clock.run(who, 10_000)
    total = sum(clock.held(w) for w in who)
    for tenant, weight in zip(who, weights, strict=True):
        assert clock.held(tenant) / total == pytest.approx(weight / sum(weights), abs=0.01)


def test_alone_is_free(clock: Clockwork) -> None:
    """Time nobody else wanted is not billed: who ran alone does not wait longer afterwards."""
    early = clock.join("early", 500)
    clock.run([early], 60_000)
    assert clock.held(early) == 0
    late = clock.join("late", 500)
    clock.run([early, late], 2_000)
    assert clock.held(early) / clock.held(late) == pytest.approx(1, abs=0.05)


def test_absence_saves_nothing_up(clock: Clockwork) -> None:
    """Who was away for a minute gets its share from now on, not the minute as well."""
    here, away = clock.join("here", 500), clock.join("away", 500)
    third = clock.join("third", 500)
    clock.run([here, away, third], 500)
    clock.run([here, third], 60_000)
    before = clock.held(away), clock.held(here)
    clock.run([here, away, third], 3_000)
    assert (clock.held(away) - before[0]) / (clock.held(here) - before[1]) == pytest.approx(1, abs=0.1)


def test_idle_holder_is_passed_over(clock: Clockwork) -> None:
    """A holder that does nothing for 2 ms loses the lease, and is billed only to its last launch."""
    idle, busy = clock.join("idle", 500), clock.join("busy", 500)
    assert clock.ask(idle) == GO
    clock.now += 3 * MS
    assert clock.ask(busy) == GO
    assert clock.held(idle) == 0


def test_waiting_for_ones_own_work_is_not_idling(clock: Clockwork) -> None:
    """A holder inside a synchronise call keeps the lease."""
    holder, other = clock.join("holder", 500), clock.join("other", 500)
    assert clock.ask(holder) == GO
    clock.gate.tenant[holder].waits_for_work = 1
    clock.now += 8 * MS
    assert clock.ask(other) == WAIT


def test_dead_holder_is_replaced(clock: Clockwork) -> None:
    """A holder killed inside a synchronise call loses the lease 200 ms past its quantum."""
    holder, other = clock.join("holder", 500), clock.join("other", 500)
    clock.ask(holder)
    clock.gate.tenant[holder].waits_for_work = 1
    clock.now += 205 * MS
    assert clock.ask(other) == WAIT
    clock.now += 10 * MS
    assert clock.ask(other) == GO


def test_strict_budget_holds_on_an_idle_card(clock: Clockwork) -> None:
    """A strict tenant alone gets its fraction of the time and sleeps the rest."""
    alone = clock.join("alone", 250, strict=True)
    clock.run([alone], 10_000)
    assert clock.held(alone) / 10_000 == pytest.approx(0.25, abs=0.01)


def test_strict_tenants_do_not_disturb_each_other(clock: Clockwork) -> None:
    """Two strict tenants of a quarter and a half each get theirs."""
    quarter, half = clock.join("quarter", 250, strict=True), clock.join("half", 500, strict=True)
    clock.run([quarter, half], 10_000)
    assert clock.held(quarter) / 10_000 == pytest.approx(0.25, abs=0.02)
    assert clock.held(half) / 10_000 == pytest.approx(0.5, abs=0.02)


def test_a_pause_is_not_billed(clock: Clockwork) -> None:
    """A strict tenant that held the lease and then computed on the CPU for seconds owes nothing for them."""
    alone = clock.join("alone", 250, strict=True)
    assert clock.ask(alone) == GO
    clock.now += 5_000 * MS
    assert clock.ask(alone) == GO


def test_places_are_found_again(clock: Clockwork) -> None:
    """All processes of a tenant share its place; the thirty-third tenant waits until somebody has left."""
    first = clock.join("t0", 10)
    assert clock.join("t0", 10) == first
    assert len({clock.join(f"t{i}", 10) for i in range(32)}) == 32
    assert clock.join("t32", 10) == -1
    clock.now += 100 * MS
    assert clock.join("t32", 10) >= 0


SPIN = """
import time
cuda = Cuda()
print("ready", flush=True)
input()
launch, done, end = cuda.lib.cuLaunchKernel, 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(5):
        launch(ptr(400), 1, 1, 1, 1, 1, 1, 0, None, None, None)
        done += 1
    cuda.sync()
print(done)
"""


def shares(rig: Rig, seconds: float, tenants: list[tuple[str, int]], mode: str = "fair") -> list[float]:
    """Fractions of the card's time that programs of these tenants got, all starting together."""
    running = []
    for i, (tenant, weight) in enumerate(tenants):
        environment = {"GPUSHARE_TENANT": tenant, "GPUSHARE_WEIGHT": str(weight), "GPUSHARE_MODE": mode}
        environment["GPUSHARE_LEDGER"] = str(rig.folder / f"ledger-{tenant}")
        running.append(rig.start(SPIN, seconds, limit=2048, **environment))
        assert running[i].stdout.readline().strip() == "ready"  # type: ignore[union-attr]  # a pipe, always
    for process in running:
        process.stdin.write("\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    done = [int(process.communicate(timeout=60)[0]) for process in running]
    return [n * 400e-6 / seconds for n in done]


def test_real_processes_share_by_weight(rig: Rig) -> None:
    """Two programs of a quarter and three quarters get about that of the card between them, and little is lost."""
    small, large = shares(rig, 4, [("a", 250), ("b", 750)])
    assert small / (small + large) == pytest.approx(0.25, abs=0.06)
    assert small + large > 0.7


def test_more_processes_are_not_more_share(rig: Rig) -> None:
    """Three processes of one tenant hold the lease together as long as one process of the other."""
    shares(rig, 4, [("many", 500), ("many", 500), ("many", 500), ("one", 500)])
    (path,) = rig.folder.glob("GPU-*")
    gate = Gate.from_buffer_copy(path.read_bytes())
    held = {t.name: t.held for t in gate.tenant}
    assert held[b"many"] / (held[b"many"] + held[b"one"]) == pytest.approx(0.5, abs=0.06)


def test_strict_process_is_held_back(rig: Rig) -> None:
    """A strict program alone on the card gets its quarter and no more."""
    (got,) = shares(rig, 3, [("s", 250)], mode="strict")
    assert 0.1 < got < 0.29


def test_capture_is_not_gated(rig: Rig) -> None:
    """While a stream is captured no launch waits, for a drain would break the capture."""
    told = rig.python(
        """
        cuda = Cuda()
        cuda.call("cuStreamBeginCapture_v2", None, 0)
        for _ in range(200): cuda.call("cuLaunchKernel", ptr(1000), 1, 1, 1, 1, 1, 1, 0, None, None, None)
        graph = ptr()
        cuda.call("cuStreamEndCapture", None, c.byref(graph))
        print("captured")
        """,
        GPUSHARE_MODE="strict",
        GPUSHARE_WEIGHT="1",
    )
    assert told == ["captured"]
