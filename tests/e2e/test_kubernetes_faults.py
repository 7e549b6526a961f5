"""Bad days on a real API server: we are killed between two writes, it goes away, it answers wrongly, late or not at
all. Nobody is lost, no GPU is given twice, and histories tell each interruption once."""

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
    """One node, and two teams that are each due half of it."""
    made = FaultTestbed(cluster, tmp_path_factory.mktemp("faults"), {"n1": GPUS})
    yield made
    made.close()


@pytest.fixture
def platform(bed: FaultTestbed, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """All of it in one process, behind the proxy; nobody has any jobs."""
    bed.forget_leaders()
    running = bed.process(f"platform-{len(bed.processes)}", faulty=getattr(request, "param", True)).start()
    if not bed.has_project("owner"):
        bed.project("owner", GPUS / 2)
        bed.project("borrower", GPUS / 2)
    yield running
    bed.faults.calm()
    if running.starts and not running.ready():
        running.kill()
        bed.forget_leaders()
        running.start()
    bed.clear()
    assert running.stop() == 0
    assert "Traceback" not in running.log


# ---------------------------------------------------------------- killed between two writes


class Plan:
    """An owner asks for all that is due to him: evictions, promises, bindings and refusals."""

    def __init__(self, bed: FaultTestbed, round_: int, *, parts: bool = False) -> None:
        self._bed = bed
        self._borrowers = [f"b{round_}-{index}" for index in range(GPUS)]
        last = {"half": 0.5, "rest": 0.5} if parts else {"last": 1}
        self._owners = {f"o{round_}-{word}": gpu for word, gpu in {"pair": 2, "one": 1, **last}.items()}
        self._light = f"o{round_}-light"
        self._huge = f"o{round_}-huge"

    def prepare(self) -> None:
        for name in self._borrowers:
            self._bed.submit(name, "borrower", 1)
        self._bed.until(lambda: set(self._bed.phases().values()) == {"Running"}, "the borrower has everything")

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
    """One plan with a kill after so many writes; how many writes there were until then or, without a kill, in all."""
    killed = threading.Event()

    def kill() -> None:
        os.kill(platform.pid, signal.SIGKILL)
        killed.set()

    plan.prepare()
    bed.faults.strike_at(write, kill)
    plan.begin()
    bed.until(lambda: killed.is_set() or plan.is_done(), f"write {write}")
    writes = len(bed.faults.writes)
    bed.faults.calm()
    if killed.is_set():
        platform.kill()
        bed.forget_leaders()
        platform.start()
    bed.until(plan.is_done, f"all is well after a kill at write {write}")
    bed.check()
    bed.clear()
    return writes


def killed_between_writes(
    bed: FaultTestbed, platform: ServerProcess, rounds: int | None, *, parts: bool = False
) -> None:
    writes = killed_at(bed, platform, Plan(bed, 0, parts=parts), 1000)
    chosen = range(1, writes) if rounds is None else sorted(random.Random(8).sample(range(1, writes), rounds))
    for round_, write in enumerate(chosen, 1):
        killed_at(bed, platform, Plan(bed, round_, parts=parts), write)
    print(f"\nof {writes} writes killed after {list(chosen)}; GPUs were counted {bed.ledger.moments} times")
    assert platform.starts > len(chosen) / 2


def test_killed_between_writes(bed: FaultTestbed, platform: ServerProcess) -> None:
    """Whichever write of a plan was our last, whoever comes next finishes it."""
    killed_between_writes(bed, platform, 8)


@pytest.mark.soak
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
def test_killed_between_any_two_writes(bed: FaultTestbed, platform: ServerProcess, parts: bool) -> None:
    """The same after each of its writes, also where parts of GPUs are asked for."""
    killed_between_writes(bed, platform, None, parts=parts)


# ---------------------------------------------------------------- the API server is away


def probe(platform: ServerProcess, path: str) -> int:
    try:
        with urllib.request.urlopen(platform.url + path, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def away(bed: FaultTestbed, platform: ServerProcess, seconds: float) -> None:
    for index in range(4):
        bed.submit(f"before-{index}", "borrower", 1)
    bed.until(lambda: list(bed.phases().values()) == ["Running"] * 4, "jobs run")
    before, pid = set(bed.ledger.lives) - bed.ledger.gone, platform.pid
    for index in range(20):  # a backlog
        bed.submit(f"backlog-{index}", "owner", 0.5 if index < 4 else 0)
    bed.cluster.kill_apiserver()
    until = time.monotonic() + seconds
    bed.until(lambda: probe(platform, "/readyz") == 503, "not ready")
    while time.monotonic() < until:
        assert probe(platform, "/readyz") == 503
        assert probe(platform, "/healthz") == 200
        time.sleep(0.5)
    bed.cluster.start_apiserver()
    bed.until(lambda: probe(platform, "/readyz") == 200, "ready again")
    bed.until(lambda: list(bed.phases().values()) == ["Running"] * 24, "the backlog is drained")
    assert before <= set(bed.ledger.lives) - bed.ledger.gone
    assert platform.pid == pid
    bed.check()


@pytest.mark.parametrize("platform", [False], indirect=True, ids=["direct"])
def test_api_server_away(bed: FaultTestbed, platform: ServerProcess) -> None:
    """While it is gone we say that we are not ready; running jobs are left alone, and what waited is done after."""
    away(bed, platform, 5)


@pytest.mark.soak
@pytest.mark.parametrize("platform", [False], indirect=True, ids=["direct"])
def test_api_server_away_for_a_minute(bed: FaultTestbed, platform: ServerProcess) -> None:
    """The same for 60 seconds."""
    away(bed, platform, 60)


# ---------------------------------------------------------------- wrong, late and lost answers

CHANGES = ("PUT", "PATCH")
BINDINGS = Rule(Respond(409), 0.2, ("POST",), "/binding$")
TROUBLES: dict[str, Sequence[Rule]] = {
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
    """Jobs come, end and are deleted; then, with room for all that are left, they all run."""
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
    bed.until(lambda: bed.phases() == wanted, f"{wanted}")


def under(bed: FaultTestbed, rules: Sequence[Rule], steps: int, seed: str) -> None:
    bed.faults.dealt.clear()
    bed.faults.rules = rules
    bed.cut()  # watches that are open know nothing of the rules
    stream(bed, steps, seed)
    dealt = dict(bed.faults.dealt)
    assert dealt
    bed.faults.calm()
    bed.check()
    print(f"\n{seed}: {dealt}; GPUs were counted {bed.ledger.moments} times")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_troubles(bed: FaultTestbed, platform: ServerProcess, trouble: str) -> None:
    """Jobs come, end and are deleted while the API server has a bad day; it comes out right while that lasts."""
    under(bed, TROUBLES[trouble], 16, trouble)


@pytest.mark.soak
@pytest.mark.parametrize("trouble", TROUBLES)
def test_troubles_for_long(bed: FaultTestbed, platform: ServerProcess, trouble: str) -> None:
    """The same with hundreds of jobs."""
    under(bed, TROUBLES[trouble], 200, f"long {trouble}")


def test_refused_for_a_while(bed: FaultTestbed, platform: ServerProcess) -> None:
    """Everything is refused in the middle of a plan; afterwards the plan is finished."""
    plan, cut = Plan(bed, 0), threading.Event()

    def refuse() -> None:
        bed.faults.down = True
        bed.faults.cut()
        cut.set()

    plan.prepare()
    bed.faults.strike_at(9, refuse)
    plan.begin()
    bed.until(cut.is_set, "everything is refused")
    bed.until(lambda: probe(platform, "/readyz") == 503, "not ready")
    bed.faults.calm()
    bed.until(plan.is_done, "the plan is finished")
    bed.check()
