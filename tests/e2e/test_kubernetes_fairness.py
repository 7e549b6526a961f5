"""The customer's three fairness tests on a real control plane: the same commands give the same result, and `kubectl`
shows the same. The nodes are KWOK's, which only moves phases of pods."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.cluster import Cluster
from support.kubernetes.kwok import add_nodes, kwok_cluster
from support.seeds.fairness_run import run_fairness_steps
from support.seeds.fairness_steps import FAIRNESS_STEPS, OVER_QUOTA_FAIRNESS_STEPS, OVER_QUOTA_STEPS, QUOTAS
from support.seeds.platform import Platform

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("kwok")]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    running = kwok_cluster()
    add_nodes(running, ["dgx1-1", "dgx1-2"])
    yield running
    running.stop()


@pytest.fixture
def kwok_platform(cluster: Cluster, tmp_path: Path) -> Iterator[Platform]:
    running = Platform(Path(sys.executable).parent, tmp_path / "platform", "--kubeconfig", str(cluster.kubeconfig)).up()
    for team, quota in QUOTAS.items():
        done = running.sh(f"aliquot project create {team} --gpu {quota:g}")
        assert done.status == 0, done
    yield running
    running.down()


def pods(cluster: Cluster) -> dict[str, Any]:
    """The pods that kubectl lists, by job."""
    items = json.loads(cluster.kubectl("get", "pods", "-A", "-o", "json"))["items"]
    return {pod["metadata"]["name"].removesuffix("-0-0"): pod for pod in items}


@dataclass(frozen=True)
class PodIdentity:
    """Stays the same as long as a pod keeps running."""

    uid: str
    started_at: str
    node: str
    restarts: int


def lives(cluster: Cluster) -> dict[str, PodIdentity]:
    return {
        job: PodIdentity(
            pod["metadata"]["uid"],
            pod["status"]["startTime"],
            pod["spec"]["nodeName"],
            sum(status["restartCount"] for status in pod["status"]["containerStatuses"]),
        )
        for job, pod in pods(cluster).items()
        if pod["status"]["phase"] == "Running"
        and "deletionTimestamp" not in pod["metadata"]
        and pod["metadata"]["namespace"].removeprefix("runai-") in QUOTAS
    }


def check_assigned(cluster: Cluster) -> None:
    """The GPUs that a kubelet would assign fit each node: whole GPUs of pods, and one for each reservation."""
    requested: Counter[str] = Counter()
    for pod in pods(cluster).values():
        if pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running"):
            for container in pod["spec"]["containers"]:
                limits = container["resources"].get("limits", {})
                requested[pod["spec"]["nodeName"]] += int(limits.get("nvidia.com/gpu", 0))
    assert requested == {"dgx1-1": 8, "dgx1-2": 8}


def test_sections_on_a_cluster(cluster: Cluster, kwok_platform: Platform) -> None:
    """Borrowed GPUs are reclaimed without affecting other jobs; freed GPUs are shared by quota."""
    result = run_fairness_steps(kwok_platform, lambda: None, lambda: lives(cluster))
    assert result.instances == lives(cluster)
    check_assigned(cluster)
    listed = cluster.kubectl("get", "workloads", "-A")
    assert [line.split()[3] for line in listed.splitlines()[1:]].count("Pending") == 2
    assert "Traceback" not in kwok_platform.server.log


def test_sections_on_a_cluster_with_kills(cluster: Cluster, kwok_platform: Platform) -> None:
    """The same if the platform is killed after every third command, before it can have acted on it."""
    run_with_kills(cluster, kwok_platform, 3)


@pytest.mark.soak
def test_sections_on_a_cluster_with_many_kills(cluster: Cluster, kwok_platform: Platform) -> None:
    """The same, with a kill after each command."""
    run_with_kills(cluster, kwok_platform, 1)


def run_with_kills(cluster: Cluster, platform: Platform, every: int) -> None:
    commands = itertools.count(1)

    def between() -> None:
        if next(commands) % every == 0:
            platform.kill()

    run_fairness_steps(platform, between, lambda: lives(cluster))
    check_assigned(cluster)
    assert platform.server.starts == len(OVER_QUOTA_STEPS + FAIRNESS_STEPS + OVER_QUOTA_FAIRNESS_STEPS) // every + 1
    assert "Traceback" not in platform.server.log
