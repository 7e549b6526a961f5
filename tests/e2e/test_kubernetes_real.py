"""Borrowing and giving back on real nodes: containers that really stop and start, and a node that dies."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.cluster import Cluster
from support.kubernetes.nodes import NodeCluster
from support.seeds.platform import Platform, until

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("nodes")]
QUOTAS = {"real-a": 4, "real-b": 2, "real-c": 2, "real-d": 8}
# job -> (team, GPUs): sixteen in all, b and c two over their quota each
FILLING = {
    "a-1": ("real-a", 4),
    "b-1": ("real-b", 2),
    "b-2-gg": ("real-b", 2),
    "c-1": ("real-c", 2),
    "c-2-gg": ("real-c", 2),
    "d-1": ("real-d", 4),
}


@pytest.fixture
def platform(real_nodes: NodeCluster, tmp_path: Path) -> Iterator[Platform]:
    made = Platform(
        Path(sys.executable).parent, tmp_path / "platform",
        "--kubeconfig", str(real_nodes.cluster.kubeconfig), "--node-loss", "2", "--no-node-files", verb="serve",
    ).up()  # fmt: skip
    for team, quota in QUOTAS.items():
        made.sh(f"aliquot project create {team} --gpu {quota}")
    yield made
    for team in QUOTAS:
        made.sh(f"runai delete -A -p {team}")
    until(lambda: not pods(real_nodes.cluster), "all pods are gone")
    made.server.stop()


def pods(cluster: Cluster) -> dict[str, Any]:
    found = json.loads(cluster.kubectl("get", "pods", "-A", "-o", "json"))["items"]
    return {
        pod["metadata"]["name"].removesuffix("-0-0"): pod
        for pod in found
        if pod["metadata"]["namespace"].removeprefix("runai-") in QUOTAS
    }


def lives(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """The container of each job that runs, and when it was started."""
    return {
        job: (pod["status"]["containerStatuses"][0]["containerID"], pod["status"]["startTime"])
        for job, pod in pods(cluster).items()
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def submit(platform: Platform, job: str, team: str, gpus: int) -> None:
    done = platform.sh(f"runai submit {job} -i gcr.io/run-ai-demo/quickstart -g {gpus} --cpu 0.1 -p {team}")
    assert done.status == 0, done


def granted(cluster: Cluster) -> Counter[str]:
    """GPUs that the kubelets have given out, by node."""
    held: Counter[str] = Counter()
    for pod in pods(cluster).values():
        if pod["status"]["phase"] == "Running":
            held[pod["spec"]["nodeName"]] += int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    return held


def test_borrowed_and_given_back(real_nodes: NodeCluster, platform: Platform) -> None:
    """Who borrowed makes way by a real stop, waits, and starts anew when there is room; nobody else is touched."""
    cluster = real_nodes.cluster
    for job, (team, gpus) in FILLING.items():
        submit(platform, job, team, gpus)
        platform.wait_for_phase(job, team, "Running")
    assert granted(cluster) == {"node-1": 8, "node-2": 8}
    before = lives(cluster)

    submit(platform, "d-2-gg", "real-d", 2)
    platform.wait_for_phase("d-2-gg", "real-d", "Running")
    submit(platform, "d-3-gg", "real-d", 2)
    platform.wait_for_phase("d-3-gg", "real-d", "Running")
    for job, team in (("b-2-gg", "real-b"), ("c-2-gg", "real-c")):
        platform.wait_for_phase(job, team, "Pending")
    kept = {job: life for job, life in before.items() if not job.endswith("-gg")}
    assert {job: life for job, life in lives(cluster).items() if job in kept} == kept
    assert granted(cluster) == {"node-1": 8, "node-2": 8}

    assert platform.sh("runai delete d-1 -p real-d").status == 0
    for job, team in (("b-2-gg", "real-b"), ("c-2-gg", "real-c")):
        platform.wait_for_phase(job, team, "Running")
        status = platform.job(job, team)["status"]
        assert (status["interruptionCount"], status["restarts"]) == (1, 1)
        assert lives(cluster)[job] != before[job]
        until(lambda job=job, team=team: "step 1" in platform.sh(f"runai logs {job} -p {team}").out, job)  # type: ignore[misc]
    assert {job: life for job, life in lives(cluster).items() if job in kept} == {
        job: life for job, life in kept.items() if job != "d-1"
    }


def test_node_dies(real_nodes: NodeCluster, platform: Platform) -> None:
    """Its jobs go on elsewhere, once the cluster has noticed; those of other nodes run on."""
    cluster, (_, dying) = real_nodes.cluster, real_nodes.nodes
    for job in ("one", "two", "three", "four"):
        submit(platform, job, "real-a", 3)
        platform.wait_for_phase(job, "real-a", "Running")
    before = lives(cluster)
    there = {job for job, pod in pods(cluster).items() if pod["spec"]["nodeName"] == dying.name}
    assert there
    assert there != before.keys()
    dying.kill()
    try:
        # The other node has two GPUs left: too few for a job of three, so those that were there wait.
        for job in there:
            platform.wait_for_phase(job, "real-a", "Pending")
        (_, *others) = sorted(before.keys() - there)
        now = lives(cluster)
        assert {job: now.get(job) for job in others} == {job: before[job] for job in others}
        platform.sh(f"runai delete {min(before.keys() - there)} -p real-a")
        recovered = min(there, key=lambda job: platform.job(job, "real-a")["metadata"]["creationTimestamp"])
        platform.wait_for_phase(recovered, "real-a", "Running")
        (stop,) = platform.job(recovered, "real-a")["status"]["interruptions"]
        assert (stop["reason"], stop["message"]) == ("node-lost", f"node {dying.name} does not answer")
    finally:
        real_nodes.start_node(dying)
