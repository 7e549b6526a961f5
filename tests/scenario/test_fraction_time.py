"""F9: how the time of a GPU is shared. The library's own arithmetic (lease.c), with a clock that the test moves."""

from __future__ import annotations

import ctypes
import heapq
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "native" / "gpushare" / "lease.c"
GO, DRAIN, WAIT, SLEEP = range(4)
MS = 1_000_000
# Of gate.h: where tenants begin, and how long one is.
TENANTS, TENANT = 256, 152


@pytest.fixture(scope="session")
def leases(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("lease") / "lease.so"
    compiler = shutil.which("cc") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE)], check=True, timeout=120)
    found = ctypes.CDLL(str(made))
    found.lease_ask.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]
    found.lease_drained.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    found.lease_drained.restype = ctypes.c_bool
    note = ctypes.POINTER(ctypes.c_uint32)
    found.lease_launched.argtypes = found.lease_emptied.argtypes = [ctypes.c_void_p, note]
    found.lease_wait_begins.argtypes = [ctypes.c_void_p]
    found.lease_wait_ends.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    found.lease_join.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_bool, ctypes.c_uint64]
    return found


@dataclass(frozen=True)
class Job:
    """Launches kernels of so many nanoseconds, one after the other, from one moment to another."""

    weight: int
    strict: bool = False
    kernel: int = MS
    begins: int = 0
    ends: int = 10_000 * MS


class Card:
    """One GPU and those who launch on it."""

    def __init__(self, leases: ctypes.CDLL, *jobs: Job) -> None:
        self._leases = leases
        self._jobs = jobs
        self._gate = ctypes.create_string_buffer(16384)
        # Of each job: under which lease its process was last counted, and whether a kernel of it runs.
        self._counted = [ctypes.c_uint32() for _ in jobs]
        self._computing = [False] * len(jobs)
        self.computed = [0] * len(jobs)

    def run(self, seconds: float) -> list[float]:
        """The part of the card's time in which each has computed."""
        start = 1_000 * MS  # clocks of machines do not begin at 0
        end = start + int(seconds * 1000 * MS)
        turns = [(start + job.begins, place) for place, job in enumerate(self._jobs)]
        heapq.heapify(turns)
        while turns and turns[0][0] < end:
            now, place = heapq.heappop(turns)
            if self._computing[place]:
                self._computed(place, now)
            if now < start + self._jobs[place].ends:
                heapq.heappush(turns, (self._turn(place, now), place))
        return [computed / (end - start) for computed in self.computed]

    def _turn(self, place: int, now: int) -> int:
        """What one does at a moment; when it goes on."""
        job, gate, until = self._jobs[place], ctypes.addressof(self._gate), ctypes.c_uint64()
        me = self._leases.lease_join(gate, f"pod-{place}".encode(), job.weight, job.strict, now)
        assert me == place
        answer = self._leases.lease_ask(gate, me, now, ctypes.byref(until))
        if answer == GO:
            self._leases.lease_launched(self._tenant(place), ctypes.byref(self._counted[place]))
            # While a kernel runs the program is in a synchronise call, or the lease would be taken for idle.
            self._leases.lease_wait_begins(self._tenant(place))
            self._computing[place] = True
            self.computed[place] += job.kernel
            return now + job.kernel
        if answer == DRAIN:
            self._leases.lease_drained(gate, me, now)
            return now + 1000
        return int(until.value) if answer == SLEEP else now + MS // 10

    def _computed(self, place: int, now: int) -> None:
        self._leases.lease_wait_ends(self._tenant(place), now)
        self._leases.lease_emptied(self._tenant(place), ctypes.byref(self._counted[place]))
        self._computing[place] = False

    def _tenant(self, place: int) -> int:
        return ctypes.addressof(self._gate) + TENANTS + TENANT * place


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [
        ((250, 750), (0.25, 0.75)),
        ((500, 500), (0.5, 0.5)),
        ((100, 200, 700), (0.1, 0.2, 0.7)),
        ((250,) * 4, (0.25,) * 4),
    ],
)
def test_fair_follows_the_parts(leases: ctypes.CDLL, weights: tuple[int, ...], wanted: tuple[float, ...]) -> None:
    """Busy jobs get time in proportion to their parts, within two points."""
    found = Card(leases, *(Job(weight) for weight in weights)).run(5)

    assert found == pytest.approx(wanted, abs=0.02)


def test_fair_gives_idle_time_away(leases: ctypes.CDLL) -> None:
    """When the other is idle a job of a quarter has the whole card; when it comes back it has its part again."""
    card = Card(leases, Job(250), Job(750, begins=2_000 * MS, ends=4_000 * MS))

    small, large = card.run(6)

    # Four seconds alone, two seconds with a quarter.
    assert (small, large) == (pytest.approx(4.5 / 6, abs=0.02), pytest.approx(1.5 / 6, abs=0.02))


def test_who_was_away_has_saved_up_nothing(leases: ctypes.CDLL) -> None:
    """A job that comes late shares from then on: it is not paid back what it did not use."""
    early, late = Card(leases, Job(500), Job(500, begins=3_000 * MS)).run(6)

    assert (early, late) == (pytest.approx(0.75, abs=0.02), pytest.approx(0.25, abs=0.02))


@pytest.mark.parametrize("weight", [250, 500, 750])
def test_strict_keeps_to_the_part_on_an_idle_card(leases: ctypes.CDLL, weight: int) -> None:
    """A strict job never has more than its part, even when nobody else wants the rest."""
    (found,) = Card(leases, Job(weight, strict=True)).run(5)

    assert found == pytest.approx(weight / 1000, abs=0.01)


def test_strict_jobs_beside_each_other(leases: ctypes.CDLL) -> None:
    """25 and 75 are 25 and 75."""
    found = Card(leases, Job(250, strict=True), Job(750, strict=True)).run(5)

    assert found == pytest.approx((0.25, 0.75), abs=0.02)


def test_small_kernels_beside_large_ones(leases: ctypes.CDLL) -> None:
    """Shares are of time, not of launches: a thousand small kernels count as much as one that is as long."""
    found = Card(leases, Job(500, kernel=MS // 100), Job(500, kernel=5 * MS)).run(3)

    assert found == pytest.approx((0.5, 0.5), abs=0.03)
