"""The customer's three tests of fairness on a real control plane: the same commands, the same outcome, and `kubectl`
sees the same. The nodes are KWOK's, which only moves phases of pods."""

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
from support.seeds.fairness_steps import FILLING, QUOTAS, RETURNING, SHARING
from support.seeds.platform import Platform

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("kwok")]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    running = kwok_cluster()
    add_nodes(running, ["dgx1-1", "dgx1-2"])
    yield running
    running.stop()


@pytest.fixture
def platform(cluster: Cluster, tmp_path: Path) -> Iterator[Platform]:
    made = Platform(Path(sys.executable).parent, tmp_path / "platform", "--kubeconfig", str(cluster.kubeconfig)).up()
    for team, quota in QUOTAS.items():
        done = made.sh(f"aliquot project create {team} --gpu {quota:g}")
        assert done.status == 0, done
    yield made
    made.down()


def pods(cluster: Cluster) -> dict[str, Any]:
    """As kubectl sees them, by job."""
    found = json.loads(cluster.kubectl("get", "pods", "-A", "-o", "json"))["items"]
    return {pod["metadata"]["name"].removesuffix("-0-0"): pod for pod in found}


@dataclass(frozen=True)
class Life:
    """What stays the same as long as a pod runs on."""

    uid: str
    started_at: str
    node: str
    restarts: int


def lives(cluster: Cluster) -> dict[str, Life]:
    return {
        job: Life(
            pod["metadata"]["uid"],
            pod["status"]["startTime"],
            pod["spec"]["nodeName"],
            sum(one["restartCount"] for one in pod["status"]["containerStatuses"]),
        )
        for job, pod in pods(cluster).items()
        if pod["status"]["phase"] == "Running"
        and "deletionTimestamp" not in pod["metadata"]
        and pod["metadata"]["namespace"].removeprefix("runai-") in QUOTAS
    }


def check_granted(cluster: Cluster) -> None:
    """What a kubelet would have to grant fits each node: whole GPUs of pods, and one for each reservation."""
    asked: Counter[str] = Counter()
    for pod in pods(cluster).values():
        if pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running"):
            for container in pod["spec"]["containers"]:
                asked[pod["spec"]["nodeName"]] += int(container["resources"].get("limits", {}).get("nvidia.com/gpu", 0))
    assert asked == {"dgx1-1": 8, "dgx1-2": 8}


def test_sections_on_a_cluster(cluster: Cluster, platform: Platform) -> None:
    """Whoever borrowed gives back and nobody else is touched; what is free again is shared by quota."""
    played = run_fairness_steps(platform, lambda: None, lambda: lives(cluster))
    assert played.lives == lives(cluster)
    check_granted(cluster)
    listed = cluster.kubectl("get", "workloads", "-A")
    assert [line.split()[3] for line in listed.splitlines()[1:]].count("Pending") == 2
    assert "Traceback" not in platform.server.log


def test_sections_on_a_cluster_with_kills(cluster: Cluster, platform: Platform) -> None:
    """The same when the platform is killed after every third command, before it can have carried it out."""
    with_kills(cluster, platform, 3)


@pytest.mark.soak
def test_sections_on_a_cluster_with_many_kills(cluster: Cluster, platform: Platform) -> None:
    """The same, after each command."""
    with_kills(cluster, platform, 1)


def with_kills(cluster: Cluster, platform: Platform, every: int) -> None:
    commands = itertools.count(1)

    def between() -> None:
        if next(commands) % every == 0:
            platform.kill()

    run_fairness_steps(platform, between, lambda: lives(cluster))
    check_granted(cluster)
    assert platform.server.starts == len(FILLING + RETURNING + SHARING) // every + 1
    assert "Traceback" not in platform.server.log
