"""F9: time sharing of a GPU. Runs the lease arithmetic of the native library (lease.c) with a simulated clock."""

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
# From gate.h: the offset of the tenants, and the size of one.
TENANTS, TENANT = 256, 152


@pytest.fixture(scope="session")
def leases(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("lease") / "lease.so"
    compiler = shutil.which("cc") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True, timeout=120)
    lease_c = ctypes.CDLL(str(library))
    lease_c.lease_ask.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]
    lease_c.lease_drained.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    lease_c.lease_drained.restype = ctypes.c_bool
    counted = ctypes.POINTER(ctypes.c_uint32)
    lease_c.lease_launched.argtypes = lease_c.lease_emptied.argtypes = [ctypes.c_void_p, counted]
    lease_c.lease_wait_begins.argtypes = [ctypes.c_void_p]
    lease_c.lease_wait_ends.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    lease_c.lease_join.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_bool, ctypes.c_uint64]
    return lease_c


@dataclass(frozen=True)
class Job:
    """Launches kernels of `kernel` nanoseconds, one after the other, between `begins` and `ends`."""

    weight: int
    strict: bool = False
    kernel: int = MS
    begins: int = 0
    ends: int = 10_000 * MS


class Gpu:
    """One GPU and the jobs that launch on it."""

    def __init__(self, leases: ctypes.CDLL, *jobs: Job) -> None:
        self._leases = leases
        self._jobs = jobs
        self._gate = ctypes.create_string_buffer(16384)
        # By job: the lease under which its process was last counted, and whether a kernel of it runs.
        self._counted = [ctypes.c_uint32() for _ in jobs]
        self._computing = [False] * len(jobs)
        self.computed = [0] * len(jobs)

    def run(self, seconds: float) -> list[float]:
        """The fraction of the GPU's time that each job has used."""
        start = 1_000 * MS  # a real clock does not start at 0
        end = start + int(seconds * 1000 * MS)
        events = [(start + job.begins, number) for number, job in enumerate(self._jobs)]
        heapq.heapify(events)
        while events and events[0][0] < end:
            now, number = heapq.heappop(events)
            if self._computing[number]:
                self._computed(number, now)
            if now < start + self._jobs[number].ends:
                heapq.heappush(events, (self._step(number, now), number))
        return [computed / (end - start) for computed in self.computed]

    def _step(self, number: int, now: int) -> int:
        """Lets a job act at a time. Returns when it acts next."""
        job, gate, until = self._jobs[number], ctypes.addressof(self._gate), ctypes.c_uint64()
        me = self._leases.lease_join(gate, f"pod-{number}".encode(), job.weight, job.strict, now)
        assert me == number
        answer = self._leases.lease_ask(gate, me, now, ctypes.byref(until))
        if answer == GO:
            self._leases.lease_launched(self._tenant(number), ctypes.byref(self._counted[number]))
            # While a kernel runs the program is in a synchronize call; otherwise the holder would count as idle.
            self._leases.lease_wait_begins(self._tenant(number))
            self._computing[number] = True
            self.computed[number] += job.kernel
            return now + job.kernel
        if answer == DRAIN:
            self._leases.lease_drained(gate, me, now)
            return now + 1000
        return int(until.value) if answer == SLEEP else now + MS // 10

    def _computed(self, number: int, now: int) -> None:
        self._leases.lease_wait_ends(self._tenant(number), now)
        self._leases.lease_emptied(self._tenant(number), ctypes.byref(self._counted[number]))
        self._computing[number] = False

    def _tenant(self, number: int) -> int:
        return ctypes.addressof(self._gate) + TENANTS + TENANT * number


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [
        ((250, 750), (0.25, 0.75)),
        ((500, 500), (0.5, 0.5)),
        ((100, 200, 700), (0.1, 0.2, 0.7)),
        ((250,) * 4, (0.25,) * 4),
    ],
)
def test_fair_follows_the_weights(leases: ctypes.CDLL, weights: tuple[int, ...], wanted: tuple[float, ...]) -> None:
    """Busy jobs get time in proportion to their fractions, within two percentage points."""
    shares = Gpu(leases, *(Job(weight) for weight in weights)).run(5)

    assert shares == pytest.approx(wanted, abs=0.02)


def test_fair_uses_idle_time(leases: ctypes.CDLL) -> None:
    """A job with a quarter gets the whole GPU while the other is idle, and its quarter when the other is back."""
    gpu = Gpu(leases, Job(250), Job(750, begins=2_000 * MS, ends=4_000 * MS))

    small, large = gpu.run(6)

    # Four seconds alone, two seconds with a quarter.
    assert (small, large) == pytest.approx((4.5 / 6, 1.5 / 6), abs=0.02)


def test_idle_time_earns_no_credit(leases: ctypes.CDLL) -> None:
    """A job that starts late shares from then on, and is not compensated for the time before."""
    early, late = Gpu(leases, Job(500), Job(500, begins=3_000 * MS)).run(6)

    assert (early, late) == pytest.approx((0.75, 0.25), abs=0.02)


@pytest.mark.parametrize("weight", [250, 500, 750])
def test_strict_stays_within_its_fraction(leases: ctypes.CDLL, weight: int) -> None:
    """A strict job never gets more than its fraction, even on an idle GPU."""
    (share,) = Gpu(leases, Job(weight, strict=True)).run(5)

    assert share == pytest.approx(weight / 1000, abs=0.01)


def test_strict_jobs_beside_each_other(leases: ctypes.CDLL) -> None:
    """Strict jobs with 25 % and 75 % get 25 % and 75 %."""
    shares = Gpu(leases, Job(250, strict=True), Job(750, strict=True)).run(5)

    assert shares == pytest.approx((0.25, 0.75), abs=0.02)


def test_small_kernels_beside_large_ones(leases: ctypes.CDLL) -> None:
    """Fractions are of time, not of launches: many small kernels count as much as one that takes as long."""
    shares = Gpu(leases, Job(500, kernel=MS // 100), Job(500, kernel=5 * MS)).run(3)

    assert shares == pytest.approx((0.5, 0.5), abs=0.03)
