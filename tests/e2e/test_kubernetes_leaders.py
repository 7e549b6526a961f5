"""Two schedulers at once on a real API server: one of them leads. However it ends, or stands still, the other goes on,
and no GPU is given twice."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from support.kubernetes.fault_testbed import FaultTestbed
from support.kubernetes.kwok import kwok_cluster
from support.stores.process import ServerProcess

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("kwok")]
_numbers = itertools.count()
GPUS = 64  # more than are bound at a time, so that a leader can be stopped with some of its plan undone


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultTestbed]:
    """One node, two teams that are each due half of it, and all but a scheduler."""
    cluster = kwok_cluster()
    made = FaultTestbed(cluster, tmp_path_factory.mktemp("leaders"), {"n1": GPUS})
    made.process("rest", "--parts", "server,loops", verb="serve", faulty=False).start()
    made.project("owner", GPUS / 2)
    made.project("borrower", GPUS / 2)
    yield made
    made.close()
    cluster.stop()


class Pair:
    def __init__(self, bed: FaultTestbed) -> None:
        self._bed = bed
        number = next(_numbers)  # each pair has logs of its own
        self.both = [bed.process(f"s{number}-{one}", "--parts", "scheduler", verb="serve") for one in range(2)]

    def start(self) -> None:
        """The first leads."""
        for process in self.both:
            process.start()
            self._bed.until(lambda: self._bed.holder() != "", "somebody leads")
        assert self.leads(self.both[0])

    def leads(self, process: ServerProcess) -> bool:
        return self._bed.holder() in terms(process)

    def end(self) -> None:
        for process in self.both:
            process.kill()
            self._bed.processes.remove(process)
        self._bed.forget_leaders("aliquot-scheduler")


def terms(process: ServerProcess) -> list[str]:
    """The names under which it has led, by its log."""
    said = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
    return [one["identity"] for one in said if one["event"] == "leading" and one["lease"] == "aliquot-scheduler"]


@pytest.fixture
def pair(bed: FaultTestbed) -> Iterator[Pair]:
    made = Pair(bed)
    made.start()
    yield made
    bed.faults.calm()
    for process in made.both:
        os.kill(process.pid, signal.SIGCONT) if process.alive else None
    bed.clear()
    bed.check()
    for process in made.both:
        assert "Traceback" not in process.log, process.log
    made.end()


def submit(bed: FaultTestbed, word: str, count: int, team: str = "borrower") -> None:
    for index in range(count):
        bed.submit(f"{word}-{index}", team, 1)


def all_run(bed: FaultTestbed) -> bool:
    return set(bed.phases().values()) == {"Running"}


def test_one_of_two_leads(bed: FaultTestbed, pair: Pair) -> None:
    """Both live, one decides."""
    submit(bed, "job", 12)
    bed.until(lambda: all_run(bed), "all run")
    assert [len(terms(process)) for process in pair.both] == [1, 0]
    bed.check()


def test_leader_killed(bed: FaultTestbed, pair: Pair) -> None:
    """The other one takes over when the lease has ended, and does what is there to do."""
    submit(bed, "before", 8)
    bed.until(lambda: all_run(bed), "all run")
    began = time.monotonic()
    pair.both[0].kill()
    submit(bed, "after", 8)
    bed.until(lambda: pair.leads(pair.both[1]), "the other leads")
    led = time.monotonic() - began
    bed.until(lambda: all_run(bed), "all run")
    print(f"\nleader killed: the other led after {led:.1f} s, all ran after {time.monotonic() - began:.1f} s")
    bed.check()


def test_leader_told_to_stop(bed: FaultTestbed, pair: Pair) -> None:
    """It gives the lease back before it ends, so that the other one need not wait."""
    first, second = pair.both
    began = time.monotonic()
    assert first.stop() == 0
    assert bed.holder() not in terms(first)
    submit(bed, "after", 8)
    bed.until(lambda: pair.leads(second), "the other leads")
    led = time.monotonic() - began
    bed.until(lambda: all_run(bed), "all run")
    print(f"\nleader told to stop: the other led after {led:.1f} s, all ran after {time.monotonic() - began:.1f} s")
    bed.check()


def test_leader_stands_still(bed: FaultTestbed, pair: Pair) -> None:
    """A leader that stood still in the middle of its plan does not go on with it where another has decided since."""
    first, second = pair.both
    still = threading.Event()

    def stop() -> None:
        os.kill(first.pid, signal.SIGSTOP)
        bed.faults.calm()  # what it has sent is done, and answered: it would go on with the rest
        still.set()

    bed.cordon("n1", True)  # so that all of it becomes one plan
    submit(bed, "late", GPUS)
    bed.until(lambda: all(job.status.refusals for job in bed.workloads().values()), "all wait")
    bed.faults.strike_at(10, stop, "/binding$")
    bed.cordon("n1", False)
    bed.until(still.is_set, "the leader stands still")
    submit(bed, "due", GPUS // 2, "owner")
    bed.until(lambda: pair.leads(second), "the other leads")
    bed.until(lambda: running(bed) == {"late": GPUS // 2, "due": GPUS // 2}, "all is given out")
    os.kill(first.pid, signal.SIGCONT)
    bed.until(lambda: "no longer leading" in first.log, "the first has noticed")
    assert pair.leads(second)
    assert running(bed) == {"late": GPUS // 2, "due": GPUS // 2}
    bed.check()


def running(bed: FaultTestbed) -> dict[str, int]:
    names = [name.partition("-")[0] for name, phase in bed.phases().items() if phase == "Running"]
    return {word: names.count(word) for word in sorted(set(names), reverse=True)}
