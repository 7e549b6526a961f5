"""Runs the steps of the three fairness tests, and checks the state of the cluster after each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from aliquot.labels import DEVICES
from support.seeds.documented_commands import COLUMNS_2020
from support.seeds.fairness_steps import (
    EVICTED,
    FAIRNESS_STEPS,
    OVER_QUOTA_FAIRNESS_STEPS,
    OVER_QUOTA_STEPS,
    QUOTAS,
    Step,
)
from support.seeds.platform import PREFIX, Platform
from support.waiting import wait_until

_TEAMS = {name[-1]: name for name in QUOTAS}
_NAMESPACES = {f"runai-{team}" for team in QUOTAS}
# Reads the identities of the running jobs, by name; an identity stays the same until the job is stopped or restarted.
ReadInstances = Callable[[], Mapping[str, Any]]


def team_of(job: str) -> str:
    return _TEAMS[job[0]]


class Cluster:
    """The state of all jobs, and the identities of the jobs that must keep running."""

    def __init__(self, platform: Platform, read_instances: ReadInstances) -> None:
        self._platform = platform
        self._read_instances = read_instances
        self.instances: Mapping[str, Any] = {}

    def pods(self) -> dict[str, Any]:
        """The pods that are bound to a node, by job."""
        return {
            pod["metadata"]["name"].removesuffix("-0-0"): pod
            for pod in self._platform.get(f"{PREFIX}/pods")["items"]
            if pod["spec"].get("nodeName") and pod["metadata"]["namespace"] in _NAMESPACES
        }

    def phases(self) -> dict[str, str]:
        jobs = self._platform.get(f"{PREFIX}/workloads")["items"]
        return {job["metadata"]["name"]: job.get("status", {}).get("phase", "") for job in jobs}

    def allocated(self) -> tuple[float, ...]:
        milli: Counter[str] = Counter()
        for job, pod in self.pods().items():
            milli[team_of(job)] += sum(share["milli"] for share in shares(pod))
        return tuple(milli[team] / 1000 for team in QUOTAS)

    def settle(self, step: Step) -> None:
        """Wait for the expected state of a step, and check that no other job was restarted."""

        def state() -> tuple[Any, ...]:
            phases = self.phases()
            pending = {job for job, phase in phases.items() if phase == "Pending"}
            others = {phase for phase in phases.values() if phase != "Pending"}
            return self.allocated(), pending, others, self.pods().keys() == phases.keys() - pending

        expected = step.allocated, set(step.pending.split()), {"Running"}, True
        wait_until(lambda: state() == expected, f"{step.command}: {expected}; it is {state()}")
        instances = self._read_instances()
        kept = {
            job: instance
            for job, instance in self.instances.items()
            if job not in (step.pending + " " + step.deleted).split()
        }
        assert {job: instances.get(job) for job in kept} == kept, step.command
        assert all(instance.restarts == 0 for instance in instances.values()), instances
        self.instances = instances


def shares(pod: Any) -> list[Any]:
    return list(json.loads(pod["metadata"]["annotations"][DEVICES]))


def _run_step(platform: Platform, cluster: Cluster, step: Step, between: Callable[[], None]) -> None:
    done = platform.sh(step.command)
    assert done.status == 0, done
    between()
    cluster.settle(step)


def run_fairness_steps(platform: Platform, between: Callable[[], None], read_instances: ReadInstances) -> Cluster:
    """Run all steps of the three tests. `between` runs after each command, before the state is checked."""
    cluster = Cluster(platform, read_instances)
    for step in OVER_QUOTA_STEPS:
        _run_step(platform, cluster, step, between)
    check_full(platform, cluster)
    for step in FAIRNESS_STEPS:
        _run_step(platform, cluster, step, between)
    for job, by in EVICTED.items():
        check_evicted(platform, job, by)
    for step in OVER_QUOTA_FAIRNESS_STEPS:
        _run_step(platform, cluster, step, between)
    check_uninterrupted(platform, cluster)
    return cluster


def check_full(platform: Platform, cluster: Cluster) -> None:
    """Thirteen jobs use all sixteen GPUs; the fractions of a team share a GPU."""
    lines = platform.sh("runai list -A").out.splitlines()
    assert lines[0].split() == COLUMNS_2020.split()
    assert len(lines) == 14
    pods = cluster.pods()
    positions = {
        job: (pod["spec"]["nodeName"], tuple(share["index"] for share in shares(pod))) for job, pod in pods.items()
    }
    assert positions["b-1-g06"] == positions["b-2-g04"]
    assert positions["c-1-g05"] == positions["c-2-g03"] == positions["c-3-g02"]
    used: Counter[str] = Counter()
    for pod in pods.values():
        used[pod["spec"]["nodeName"]] += sum(share["milli"] for share in shares(pod))
    assert used == {"dgx1-1": 8000, "dgx1-2": 8000}


def check_evicted(platform: Platform, job: str, by: str) -> None:
    """The evicted job is pending, its events name the other job, and its wait time counts from the eviction."""
    team = team_of(job)
    (row,) = (line for line in platform.sh(f"runai list -p {team}").out.splitlines() if line.startswith(f"{job} "))
    assert row.split()[1] == "Pending"
    assert "dgx1" not in row
    text = platform.sh(f"runai describe job {job} -p {team}").out
    assert "STATUS: Pending\n" in text
    assert re.search(r"^WAIT TIME: \d+[sm]", text, re.MULTILINE), text
    assert re.search(rf"^workload/{job} +Warning +\S+ +\[Evicted\] .*\b{by}\b", text, re.MULTILINE), text
    status = platform.job(job, team)["status"]
    (interruption,) = status["interruptions"]
    assert (interruption["reason"], interruption["by"], status["interruptionCount"]) == ("reclaimed", by, 1)
    assert 0 <= interruption.get("lostSeconds", 0) <= status["runSeconds"] + 1
    assert status["queuedAt"] >= interruption["at"] > platform.job(job, team)["metadata"]["creationTimestamp"]


def check_uninterrupted(platform: Platform, cluster: Cluster) -> None:
    """Jobs that were never evicted have run without interruption."""
    for job, phase in cluster.phases().items():
        status = platform.job(job, team_of(job))["status"]
        assert len(status.get("interruptions", ())) == (job in EVICTED), job
        if phase == "Running" and job not in EVICTED:
            assert status.get("runSeconds", 0) == 0, (
                job
            )  # it counts the time before the last interruption, and there was none
