"""The three tests of fairness as somebody plays them: command by command, looking at the cluster after each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from aliquot.labels import DEVICES
from support.seeds.documented_commands import COLUMNS_2020
from support.seeds.fairness_steps import EVICTED, FILLING, QUOTAS, RETURNING, SHARING, Step
from support.seeds.platform import PREFIX, Platform
from support.waiting import wait_until

_TEAMS = {name[-1]: name for name in QUOTAS}
_PLACES = {f"runai-{team}" for team in QUOTAS}
# What stays the same as long as a job runs on.
Lives = Callable[[], Mapping[str, Any]]


def team_of(job: str) -> str:
    return _TEAMS[job[0]]


class Cluster:
    """What the server says of all jobs, and what must go on as it was."""

    def __init__(self, platform: Platform, lives: Lives) -> None:
        self._platform = platform
        self._look = lives
        self.lives: Mapping[str, Any] = {}

    def pods(self) -> dict[str, Any]:
        """Those that hold something, by job."""
        return {
            pod["metadata"]["name"].removesuffix("-0-0"): pod
            for pod in self._platform.get(f"{PREFIX}/pods")["items"]
            if pod["spec"].get("nodeName") and pod["metadata"]["namespace"] in _PLACES
        }

    def phases(self) -> dict[str, str]:
        jobs = self._platform.get(f"{PREFIX}/workloads")["items"]
        return {job["metadata"]["name"]: job.get("status", {}).get("phase", "") for job in jobs}

    def held(self) -> tuple[float, ...]:
        milli: Counter[str] = Counter()
        for job, pod in self.pods().items():
            milli[team_of(job)] += sum(share["milli"] for share in shares(pod))
        return tuple(milli[team] / 1000 for team in QUOTAS)

    def settle(self, step: Step) -> None:
        """Until the cluster is as the document says; and nobody who should run on was touched meanwhile."""

        def now() -> tuple[Any, ...]:
            phases = self.phases()
            waiting = {job for job, phase in phases.items() if phase == "Pending"}
            others = {phase for phase in phases.values() if phase != "Pending"}
            return self.held(), waiting, others, self.pods().keys() == phases.keys() - waiting

        wanted = step.held, set(step.waits.split()), {"Running"}, True
        wait_until(lambda: now() == wanted, f"{step.command}: {wanted}; it is {now()}")
        lives = self._look()
        kept = {job: life for job, life in self.lives.items() if job not in (step.waits + " " + step.ends).split()}
        assert {job: lives.get(job) for job in kept} == kept, step.command
        assert all(life.restarts == 0 for life in lives.values()), lives
        self.lives = lives


def shares(pod: Any) -> list[Any]:
    return list(json.loads(pod["metadata"]["annotations"][DEVICES]))


def play(platform: Platform, cluster: Cluster, step: Step, between: Callable[[], None]) -> None:
    done = platform.sh(step.command)
    assert done.status == 0, done
    between()
    cluster.settle(step)


def run_fairness_steps(platform: Platform, between: Callable[[], None], lives: Lives) -> Cluster:
    """A, B and C, each going on from the one before."""
    cluster = Cluster(platform, lives)
    for step in FILLING:
        play(platform, cluster, step, between)
    full(platform, cluster)
    for step in RETURNING:
        play(platform, cluster, step, between)
    for job, by in EVICTED.items():
        stopped(platform, job, by)
    for step in SHARING:
        play(platform, cluster, step, between)
    undisturbed(platform, cluster)
    return cluster


def full(platform: Platform, cluster: Cluster) -> None:
    """Thirteen jobs on sixteen GPUs; the fractions of a team share one."""
    lines = platform.sh("runai list -A").out.splitlines()
    assert lines[0].split() == COLUMNS_2020.split()
    assert len(lines) == 14
    pods = cluster.pods()
    places = {job: (pod["spec"]["nodeName"], tuple(one["index"] for one in shares(pod))) for job, pod in pods.items()}
    assert places["b-1-g06"] == places["b-2-g04"]
    assert places["c-1-g05"] == places["c-2-g03"] == places["c-3-g02"]
    used: Counter[str] = Counter()
    for pod in pods.values():
        used[pod["spec"]["nodeName"]] += sum(one["milli"] for one in shares(pod))
    assert used == {"dgx1-1": 8000, "dgx1-2": 8000}


def stopped(platform: Platform, job: str, by: str) -> None:
    """Who was stopped waits, knows for whom, and its wait counts from then on."""
    team = team_of(job)
    (row,) = (line for line in platform.sh(f"runai list -p {team}").out.splitlines() if line.startswith(f"{job} "))
    assert row.split()[1] == "Pending"
    assert "dgx1" not in row
    told = platform.sh(f"runai describe job {job} -p {team}").out
    assert "STATUS: Pending\n" in told
    assert re.search(r"^WAIT TIME: \d+[sm]", told, re.MULTILINE), told
    assert re.search(rf"^workload/{job} +Warning +\S+ +\[Evicted\] .*\b{by}\b", told, re.MULTILINE), told
    status = platform.job(job, team)["status"]
    (stop,) = status["interruptions"]
    assert (stop["reason"], stop["by"], status["interruptionCount"]) == ("reclaimed", by, 1)
    assert 0 <= stop.get("lostSeconds", 0) <= status["runSeconds"] + 1
    assert status["queuedAt"] >= stop["at"] > platform.job(job, team)["metadata"]["creationTimestamp"]


def undisturbed(platform: Platform, cluster: Cluster) -> None:
    """In the end who was never stopped has run without a break."""
    for job, phase in cluster.phases().items():
        status = platform.job(job, team_of(job))["status"]
        assert len(status.get("interruptions", ())) == (job in EVICTED), job
        if phase == "Running" and job not in EVICTED:
            assert status.get("runSeconds", 0) == 0, job  # up to the last stop: there was none
