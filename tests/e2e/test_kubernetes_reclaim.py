"""Reclaim and node loss on real nodes: containers really stop and start, and a node is killed."""

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
from support.seeds.platform import Platform
from support.waiting import wait_until

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("nodes")]
QUOTAS = {"real-a": 4, "real-b": 2, "real-c": 2, "real-d": 8}
# job -> (project, GPUs): sixteen in all; b and c are two over their quota each
FILLING = {
    "a-1": ("real-a", 4),
    "b-1": ("real-b", 2),
    "b-2-gg": ("real-b", 2),
    "c-1": ("real-c", 2),
    "c-2-gg": ("real-c", 2),
    "d-1": ("real-d", 4),
}


@pytest.fixture
def real_node_platform(real_nodes: NodeCluster, tmp_path: Path) -> Iterator[Platform]:
    running = Platform(
        Path(sys.executable).parent, tmp_path / "platform",
        "--kubeconfig", str(real_nodes.cluster.kubeconfig), "--node-loss", "2", "--no-node-files", verb="serve",
    ).up()  # fmt: skip
    for team, quota in QUOTAS.items():
        running.sh(f"aliquot project create {team} --gpu {quota}")
    yield running
    for team in QUOTAS:
        running.sh(f"runai delete -A -p {team}")
    wait_until(lambda: not pods(real_nodes.cluster), "all pods are gone")
    running.server.stop()


def pods(cluster: Cluster) -> dict[str, Any]:
    items = json.loads(cluster.kubectl("get", "pods", "-A", "-o", "json"))["items"]
    return {
        pod["metadata"]["name"].removesuffix("-0-0"): pod
        for pod in items
        if pod["metadata"]["namespace"].removeprefix("runai-") in QUOTAS
    }


def running_containers(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """The container of each job that runs, and when it was started."""
    return {
        job: (pod["status"]["containerStatuses"][0]["containerID"], pod["status"]["startTime"])
        for job, pod in pods(cluster).items()
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def submit(platform: Platform, job: str, team: str, gpus: int) -> None:
    done = platform.sh(f"runai submit {job} -i gcr.io/run-ai-demo/quickstart -g {gpus} --cpu 0.1 -p {team}")
    assert done.status == 0, done


def assigned_gpus(cluster: Cluster) -> Counter[str]:
    """GPUs that the kubelets have assigned, by node."""
    assigned: Counter[str] = Counter()
    for pod in pods(cluster).values():
        if pod["status"]["phase"] == "Running":
            assigned[pod["spec"]["nodeName"]] += int(
                pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
            )
    return assigned


def test_reclaim(real_nodes: NodeCluster, real_node_platform: Platform) -> None:
    """Jobs over quota are evicted, wait, and start again when GPUs are free; no other job is affected."""
    cluster = real_nodes.cluster
    for job, (team, gpus) in FILLING.items():
        submit(real_node_platform, job, team, gpus)
        real_node_platform.wait_for_phase(job, team, "Running")
    assert assigned_gpus(cluster) == {"node-1": 8, "node-2": 8}
    before = running_containers(cluster)

    submit(real_node_platform, "d-2-gg", "real-d", 2)
    real_node_platform.wait_for_phase("d-2-gg", "real-d", "Running")
    submit(real_node_platform, "d-3-gg", "real-d", 2)
    real_node_platform.wait_for_phase("d-3-gg", "real-d", "Running")
    for job, team in (("b-2-gg", "real-b"), ("c-2-gg", "real-c")):
        real_node_platform.wait_for_phase(job, team, "Pending")
    kept = {job: container for job, container in before.items() if not job.endswith("-gg")}
    assert {job: container for job, container in running_containers(cluster).items() if job in kept} == kept
    assert assigned_gpus(cluster) == {"node-1": 8, "node-2": 8}

    assert real_node_platform.sh("runai delete d-1 -p real-d").status == 0
    for job, team in (("b-2-gg", "real-b"), ("c-2-gg", "real-c")):
        real_node_platform.wait_for_phase(job, team, "Running")
        status = real_node_platform.job(job, team)["status"]
        assert (status["interruptionCount"], status["restarts"]) == (1, 1)
        assert running_containers(cluster)[job] != before[job]
        wait_until(lambda job=job, team=team: "step 1" in real_node_platform.sh(f"runai logs {job} -p {team}").out, job)  # type: ignore[misc]
    assert {job: container for job, container in running_containers(cluster).items() if job in kept} == {
        job: container for job, container in kept.items() if job != "d-1"
    }


def test_node_lost(real_nodes: NodeCluster, real_node_platform: Platform) -> None:
    """Its jobs are restarted elsewhere once the cluster has noticed; jobs of other nodes keep running."""
    cluster, (_, dying) = real_nodes.cluster, real_nodes.nodes
    for job in ("one", "two", "three", "four"):
        submit(real_node_platform, job, "real-a", 3)
        real_node_platform.wait_for_phase(job, "real-a", "Running")
    before = running_containers(cluster)
    on_node = {job for job, pod in pods(cluster).items() if pod["spec"]["nodeName"] == dying.name}
    assert on_node
    assert on_node != before.keys()
    dying.kill()
    try:
        # The other node has two free GPUs, too few for a job of three, so the jobs of the lost node are pending.
        for job in on_node:
            real_node_platform.wait_for_phase(job, "real-a", "Pending")
        (_, *others) = sorted(before.keys() - on_node)
        now = running_containers(cluster)
        assert {job: now.get(job) for job in others} == {job: before[job] for job in others}
        real_node_platform.sh(f"runai delete {min(before.keys() - on_node)} -p real-a")
        recovered = min(on_node, key=lambda job: real_node_platform.job(job, "real-a")["metadata"]["creationTimestamp"])
        real_node_platform.wait_for_phase(recovered, "real-a", "Running")
        (stop,) = real_node_platform.job(recovered, "real-a")["status"]["interruptions"]
        assert (stop["reason"], stop["message"]) == ("node-lost", f"node {dying.name} does not answer")
    finally:
        real_nodes.start_node(dying)
