"""Two schedulers at once on a real API server: one of them leads. If it ends or hangs the other takes over, and no GPU
is given twice."""

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
GPUS = 64  # more than are bound at a time, so that a leader can be stopped in the middle of its plan


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultTestbed]:
    """One node, two projects that are each entitled to half of it, and a platform without a scheduler."""
    cluster = kwok_cluster()
    testbed = FaultTestbed(cluster, tmp_path_factory.mktemp("leaders"), {"n1": GPUS})
    testbed.process("rest", "--parts", "server,loops", verb="serve", faulty=False).start()
    testbed.project("owner", GPUS / 2)
    testbed.project("borrower", GPUS / 2)
    yield testbed
    testbed.close()
    cluster.stop()


class SchedulerPair:
    def __init__(self, bed: FaultTestbed) -> None:
        self._bed = bed
        number = next(_numbers)  # each pair has its own logs
        self.both = [bed.process(f"s{number}-{index}", "--parts", "scheduler", verb="serve") for index in range(2)]

    def start(self) -> None:
        """Starts both; the first becomes the leader."""
        for process in self.both:
            process.start()
            self._bed.wait_until(lambda: self._bed.holder() != "", "there is a leader")
        assert self.leads(self.both[0])

    def leads(self, process: ServerProcess) -> bool:
        return self._bed.holder() in terms(process)

    def end(self) -> None:
        for process in self.both:
            process.kill()
            self._bed.processes.remove(process)
        self._bed.delete_leases("aliquot-scheduler")


def terms(process: ServerProcess) -> list[str]:
    """The identities under which it has led, from its log."""
    events = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
    return [
        event["identity"] for event in events if event["event"] == "leading" and event["lease"] == "aliquot-scheduler"
    ]


@pytest.fixture
def pair(bed: FaultTestbed) -> Iterator[SchedulerPair]:
    schedulers = SchedulerPair(bed)
    schedulers.start()
    yield schedulers
    bed.proxy.clear()
    for process in schedulers.both:
        os.kill(process.pid, signal.SIGCONT) if process.alive else None
    bed.clear()
    bed.check()
    for process in schedulers.both:
        assert "Traceback" not in process.log, process.log
    schedulers.end()


def submit(bed: FaultTestbed, prefix: str, count: int, project: str = "borrower") -> None:
    for index in range(count):
        bed.submit(f"{prefix}-{index}", project, 1)


def all_run(bed: FaultTestbed) -> bool:
    return set(bed.phases().values()) == {"Running"}


def test_one_of_two_leads(bed: FaultTestbed, pair: SchedulerPair) -> None:
    """Both run, and only the leader decides."""
    submit(bed, "job", 12)
    bed.wait_until(lambda: all_run(bed), "all run")
    assert [len(terms(process)) for process in pair.both] == [1, 0]
    bed.check()


def test_leader_killed(bed: FaultTestbed, pair: SchedulerPair) -> None:
    """The other one takes over when the lease has expired, and schedules the pending jobs."""
    submit(bed, "before", 8)
    bed.wait_until(lambda: all_run(bed), "all run")
    began = time.monotonic()
    pair.both[0].kill()
    submit(bed, "after", 8)
    bed.wait_until(lambda: pair.leads(pair.both[1]), "the other leads")
    led = time.monotonic() - began
    bed.wait_until(lambda: all_run(bed), "all run")
    print(f"\nleader killed: the other led after {led:.1f} s, all ran after {time.monotonic() - began:.1f} s")
    bed.check()


def test_leader_stopped(bed: FaultTestbed, pair: SchedulerPair) -> None:
    """It releases the lease before it ends, so that the other one need not wait."""
    first, second = pair.both
    began = time.monotonic()
    assert first.stop() == 0
    assert bed.holder() not in terms(first)
    submit(bed, "after", 8)
    bed.wait_until(lambda: pair.leads(second), "the other leads")
    led = time.monotonic() - began
    bed.wait_until(lambda: all_run(bed), "all run")
    print(f"\nleader stopped: the other led after {led:.1f} s, all ran after {time.monotonic() - began:.1f} s")
    bed.check()


def test_leader_hangs(bed: FaultTestbed, pair: SchedulerPair) -> None:
    """A leader that hung in the middle of its plan does not continue it after another leader has decided."""
    first, second = pair.both
    hung = threading.Event()

    def stop() -> None:
        os.kill(first.pid, signal.SIGSTOP)
        bed.proxy.clear()  # its requests were answered, so it would continue with the rest
        hung.set()

    bed.cordon("n1", True)  # so that all jobs become one plan
    submit(bed, "late", GPUS)
    bed.wait_until(lambda: all(job.status.refusals for job in bed.workloads().values()), "all are pending")
    bed.proxy.crash_after(10, stop, "/binding$")
    bed.cordon("n1", False)
    bed.wait_until(hung.is_set, "the leader hangs")
    submit(bed, "due", GPUS // 2, "owner")
    bed.wait_until(lambda: pair.leads(second), "the other leads")
    bed.wait_until(lambda: running(bed) == {"late": GPUS // 2, "due": GPUS // 2}, "all GPUs are bound")
    os.kill(first.pid, signal.SIGCONT)
    bed.wait_until(lambda: "no longer leading" in first.log, "the first has noticed")
    assert pair.leads(second)
    assert running(bed) == {"late": GPUS // 2, "due": GPUS // 2}
    bed.check()


def running(bed: FaultTestbed) -> dict[str, int]:
    names = [name.partition("-")[0] for name, phase in bed.phases().items() if phase == "Running"]
    return {prefix: names.count(prefix) for prefix in sorted(set(names), reverse=True)}
