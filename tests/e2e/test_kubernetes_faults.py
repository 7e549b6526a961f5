"""Faults of a real API server: the platform is killed between two writes, the API server is down, or its answers are
wrong, late or lost. No job is lost, no GPU is given twice, and histories list each interruption once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence

import pytest

from support.kubernetes.cluster import Cluster
from support.kubernetes.fault_proxy import WRITES, BreakWatch, Delay, DropResponse, ExpireWatch, Respond, Rule
from support.kubernetes.fault_testbed import FaultTestbed
from support.kubernetes.kwok import kwok_cluster
from support.stores.process import ServerProcess

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("kwok")]
GPUS = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    running = kwok_cluster()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def bed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultTestbed]:
    """One node, and two projects that are each entitled to half of it."""
    testbed = FaultTestbed(cluster, tmp_path_factory.mktemp("faults"), {"n1": GPUS})
    yield testbed
    testbed.close()


@pytest.fixture
def faulty_platform(bed: FaultTestbed, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """The whole platform in one process behind the proxy, without jobs."""
    bed.delete_leases()
    running = bed.process(f"platform-{len(bed.processes)}", faulty=getattr(request, "param", True)).start()
    if not bed.has_project("owner"):
        bed.project("owner", GPUS / 2)
        bed.project("borrower", GPUS / 2)
    yield running
    bed.proxy.clear()
    if running.starts and not running.ready():
        running.kill()
        bed.delete_leases()
        running.start()
    bed.clear()
    assert running.stop() == 0
    assert "Traceback" not in running.log


# ---------------------------------------------------------------- killed between two writes


class Plan:
    """An owner reclaims its quota: evictions, nominations, bindings and refusals."""

    def __init__(self, bed: FaultTestbed, round_: int, *, fractions: bool = False) -> None:
        self._bed = bed
        self._borrowers = [f"b{round_}-{index}" for index in range(GPUS)]
        last = {"half": 0.5, "rest": 0.5} if fractions else {"last": 1}
        self._owners = {f"o{round_}-{name}": gpu for name, gpu in {"pair": 2, "one": 1, **last}.items()}
        self._light = f"o{round_}-light"
        self._huge = f"o{round_}-huge"

    def prepare(self) -> None:
        for name in self._borrowers:
            self._bed.submit(name, "borrower", 1)
        self._bed.wait_until(lambda: set(self._bed.phases().values()) == {"Running"}, "the borrower has every GPU")

    def begin(self) -> None:
        for name, gpu in self._owners.items():
            self._bed.submit(name, "owner", gpu)
        self._bed.submit(self._light, "owner", 0)
        self._bed.submit(self._huge, "owner", 2 * GPUS)

    def is_done(self) -> bool:
        jobs = self._bed.workloads()
        running = {name for name, job in jobs.items() if job.status.phase == "Running"}
        waiting = [job for name, job in jobs.items() if name not in running]
        return (
            running >= {*self._owners, self._light}
            and len(running & set(self._borrowers)) == GPUS / 2
            and len(waiting) == 1 + GPUS / 2
            and all(job.status.phase == "Pending" and job.status.refusals for job in waiting)
        )


def killed_at(bed: FaultTestbed, platform: ServerProcess, plan: Plan, write: int) -> int:
    """Runs one plan and kills the platform after so many writes; returns the number of writes until then, or in all."""
    killed = threading.Event()

    def kill() -> None:
        os.kill(platform.pid, signal.SIGKILL)
        killed.set()

    plan.prepare()
    bed.proxy.crash_after(write, kill)
    plan.begin()
    bed.wait_until(lambda: killed.is_set() or plan.is_done(), f"write {write}")
    writes = len(bed.proxy.writes)
    bed.proxy.clear()
    if killed.is_set():
        platform.kill()
        bed.delete_leases()
        platform.start()
    bed.wait_until(plan.is_done, f"the plan is done after a kill at write {write}")
    bed.check()
    bed.clear()
    return writes


def killed_between_writes(
    bed: FaultTestbed, platform: ServerProcess, rounds: int | None, *, fractions: bool = False
) -> None:
    writes = killed_at(bed, platform, Plan(bed, 0, fractions=fractions), 1000)
    chosen = range(1, writes) if rounds is None else sorted(random.Random(8).sample(range(1, writes), rounds))
    for round_, write in enumerate(chosen, 1):
        killed_at(bed, platform, Plan(bed, round_, fractions=fractions), write)
    print(f"\nof {writes} writes killed after {list(chosen)}; {bed.audit.checks} checks")
    assert platform.starts > len(chosen) / 2


def test_killed_between_writes(bed: FaultTestbed, faulty_platform: ServerProcess) -> None:
    """Whichever write of a plan was the last before a kill, the next process finishes the plan."""
    killed_between_writes(bed, faulty_platform, 8)


@pytest.mark.soak
@pytest.mark.parametrize("fractions", [False, True], ids=["whole", "fractions"])
def test_killed_between_any_two_writes(bed: FaultTestbed, faulty_platform: ServerProcess, fractions: bool) -> None:
    """The same after each of its writes, also with GPU fractions."""
    killed_between_writes(bed, faulty_platform, None, fractions=fractions)


# ---------------------------------------------------------------- the API server is down


def probe(platform: ServerProcess, path: str) -> int:
    try:
        with urllib.request.urlopen(platform.url + path, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def api_server_down(bed: FaultTestbed, platform: ServerProcess, seconds: float) -> None:
    for index in range(4):
        bed.submit(f"before-{index}", "borrower", 1)
    bed.wait_until(lambda: list(bed.phases().values()) == ["Running"] * 4, "jobs run")
    before, pid = set(bed.audit.pods) - bed.audit.deleted, platform.pid
    for index in range(20):  # a backlog
        bed.submit(f"backlog-{index}", "owner", 0.5 if index < 4 else 0)
    bed.cluster.kill_apiserver()
    deadline = time.monotonic() + seconds
    bed.wait_until(lambda: probe(platform, "/readyz") == 503, "not ready")
    while time.monotonic() < deadline:
        assert probe(platform, "/readyz") == 503
        assert probe(platform, "/healthz") == 200
        time.sleep(0.5)
    bed.cluster.start_apiserver()
    bed.wait_until(lambda: probe(platform, "/readyz") == 200, "ready again")
    bed.wait_until(lambda: list(bed.phases().values()) == ["Running"] * 24, "the backlog is drained")
    assert before <= set(bed.audit.pods) - bed.audit.deleted
    assert platform.pid == pid
    bed.check()


@pytest.mark.parametrize("faulty_platform", [False], indirect=True, ids=["direct"])
def test_api_server_down(bed: FaultTestbed, faulty_platform: ServerProcess) -> None:
    """While it is down the platform is not ready and running jobs continue; afterwards the backlog is scheduled."""
    api_server_down(bed, faulty_platform, 5)


@pytest.mark.soak
@pytest.mark.parametrize("faulty_platform", [False], indirect=True, ids=["direct"])
def test_api_server_down_for_a_minute(bed: FaultTestbed, faulty_platform: ServerProcess) -> None:
    """The same for 60 seconds."""
    api_server_down(bed, faulty_platform, 60)


# ---------------------------------------------------------------- wrong, late and lost responses

CHANGES = ("PUT", "PATCH")
BINDINGS = Rule(Respond(409), 0.2, ("POST",), "/binding$")
FAULTS: dict[str, Sequence[Rule]] = {
    "watches-cut": [Rule(BreakWatch(3))],
    "watches-expired": [Rule(ExpireWatch(3))],
    "conflicts": [Rule(Respond(409), 0.3, CHANGES), BINDINGS],
    "too-many": [Rule(Respond(429, 1), 0.2)],
    "errors": [Rule(Respond(500), 0.15), Rule(Respond(503), 0.15)],
    "slow": [Rule(Delay(1.5), 0.3)],
    "lost": [Rule(DropResponse(), 0.3, WRITES)],
    "all": [
        Rule(BreakWatch(5), 0.3),
        Rule(ExpireWatch(5), 0.3),
        Rule(Respond(409), 0.05, CHANGES),
        Rule(Respond(429, 1), 0.05),
        Rule(Respond(500), 0.05),
        Rule(Delay(0.5), 0.1),
        Rule(DropResponse(), 0.1, WRITES),
    ],
}


def stream(bed: FaultTestbed, steps: int, seed: str) -> None:
    """Jobs are submitted, end and are deleted; then all jobs that are left fit, and run."""
    chance, finished = random.Random(seed), set()
    for step in range(steps):
        bed.submit(f"s{step}", chance.choice(("owner", "borrower")), chance.choice((0, 0.5, 0.5, 1, 2)))
        jobs = bed.workloads()
        running = [name for name, job in sorted(jobs.items()) if job.status.phase == "Running"]
        if running and chance.random() < 0.4:
            finished.add(name := chance.choice(running))
            bed.finish(jobs[name])
        unfinished = sorted(set(jobs) - finished)
        if len(unfinished) > 6:
            bed.delete(jobs[chance.choice(unfinished)])
    for name, job in bed.workloads().items():
        if name not in finished and (job.spec.compute.gpu or 0) > 1000:
            bed.delete(job)
    wanted = {name: "Completed" if name in finished else "Running" for name in bed.workloads()}
    bed.wait_until(lambda: bed.phases() == wanted, f"{wanted}")


def run_with_faults(bed: FaultTestbed, rules: Sequence[Rule], steps: int, seed: str) -> None:
    bed.proxy.injected.clear()
    bed.proxy.rules = rules
    bed.reset_connections()  # the rules do not apply to watches that are already open
    stream(bed, steps, seed)
    injected = dict(bed.proxy.injected)
    assert injected
    bed.proxy.clear()
    bed.check()
    print(f"\n{seed}: {injected}; {bed.audit.checks} checks")


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(bed: FaultTestbed, faulty_platform: ServerProcess, fault: str) -> None:
    """Jobs are submitted, end and are deleted while the API server is faulty; all reach the right phase meanwhile."""
    run_with_faults(bed, FAULTS[fault], 16, fault)


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_for_long(bed: FaultTestbed, faulty_platform: ServerProcess, fault: str) -> None:
    """The same with hundreds of jobs."""
    run_with_faults(bed, FAULTS[fault], 200, f"long {fault}")


def test_refused_for_a_while(bed: FaultTestbed, faulty_platform: ServerProcess) -> None:
    """Every request is refused in the middle of a plan; afterwards the plan is finished."""
    plan, refused = Plan(bed, 0), threading.Event()

    def refuse() -> None:
        bed.proxy.down = True
        bed.proxy.reset_connections()
        refused.set()

    plan.prepare()
    bed.proxy.crash_after(9, refuse)
    plan.begin()
    bed.wait_until(refused.is_set, "every request is refused")
    bed.wait_until(lambda: probe(faulty_platform, "/readyz") == 503, "not ready")
    bed.proxy.clear()
    bed.wait_until(plan.is_done, "the plan is finished")
    bed.check()
