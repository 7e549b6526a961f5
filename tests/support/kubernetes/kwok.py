"""Nodes without machines: KWOK registers as their kubelet and moves the phases of pods, nothing more.

It picks no devices and frees nothing early: a pod that is deleted is gone when its grace is over or KWOK has let it go.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from support.kubernetes.cluster import CONTROLLERS, PATIENCE, Cluster, ClusterError, free_port
from support.kubernetes.fixtures import available_programs

MARK = "kwok.x-k8s.io/node"
V100 = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB", "nvidia.com/gpu.memory": "32510", "nvidia.com/gpu.count": "8"}


def kwok_cluster(*api_arguments: str) -> Cluster:
    """A control plane with KWOK beside it; its caller stops it."""
    cluster = Cluster(
        available_programs(),
        *api_arguments,
        controllers=(*CONTROLLERS, "node-lifecycle-controller"),  # who takes the taint from nodes that are Ready
        controller_arguments=("--node-monitor-grace-period=12h",),
    ).start()
    start_kwok(cluster)
    return cluster


def start_kwok(cluster: Cluster) -> None:
    """Everything that carries its mark from now on is looked after."""
    cluster._spawn(
        "kwok",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--manage-nodes-with-annotation-selector={MARK}=fake",
        "--node-lease-duration-seconds=40",
        f"--server-address=127.0.0.1:{free_port()}",
    )


def node(name: str, gpus: int = 8, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """The object of a node with so many GPUs, labelled simulated: what a user sees says so."""
    room = {"cpu": "96", "memory": "1Ti", "pods": "250", "nvidia.com/gpu": str(gpus)}
    marks = {"kubernetes.io/hostname": name, "aliquot.dev/simulated": "true", "type": "kwok", **V100, **(labels or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": marks, "annotations": {MARK: "fake"}},
        "status": {"allocatable": room, "capacity": room, "phase": "Running"},
    }


def add_nodes(cluster: Cluster, names: Iterable[str], gpus: int = 8) -> None:
    """Made, and Ready."""
    wanted = list(names)
    for name in wanted:
        cluster.call("/api/v1/nodes", node(name, gpus))
    until = time.monotonic() + PATIENCE
    while not set(wanted) <= ready_nodes(cluster):
        if time.monotonic() > until:
            raise ClusterError(f"of {len(wanted)} nodes only {len(ready_nodes(cluster))} are Ready")
        time.sleep(0.1)


def ready_nodes(cluster: Cluster) -> set[str]:
    return {
        item["metadata"]["name"]
        for item in json.loads(cluster.call("/api/v1/nodes"))["items"]
        if any(one["type"] == "Ready" and one["status"] == "True" for one in item["status"].get("conditions", ()))
    }
