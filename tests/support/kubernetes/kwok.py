"""Nodes without machines: KWOK registers nodes and moves the phases of their pods, nothing more.

It assigns no devices. A deleted pod is gone when its grace period is over or KWOK has released it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from support.kubernetes.cluster import CONTROLLERS, START_SECONDS, Cluster, ClusterError, free_port
from support.kubernetes.fixtures import available_programs

MANAGED = "kwok.x-k8s.io/node"
V100 = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB", "nvidia.com/gpu.memory": "32510", "nvidia.com/gpu.count": "8"}


def kwok_cluster(*api_arguments: str) -> Cluster:
    """A control plane with KWOK; the caller stops it."""
    cluster = Cluster(
        available_programs(),
        *api_arguments,
        controllers=(*CONTROLLERS, "node-lifecycle-controller"),  # removes the taint of nodes that are Ready
        controller_arguments=("--node-monitor-grace-period=12h",),
    ).start()
    start_kwok(cluster)
    return cluster


def start_kwok(cluster: Cluster) -> None:
    """KWOK manages every node that has its annotation from now on."""
    cluster._spawn(
        "kwok",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--manage-nodes-with-annotation-selector={MANAGED}=fake",
        "--node-lease-duration-seconds=40",
        f"--server-address=127.0.0.1:{free_port()}",
    )


def node_manifest(name: str, gpus: int = 8, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A Node with so many GPUs, labelled as simulated."""
    capacity = {"cpu": "96", "memory": "1Ti", "pods": "250", "nvidia.com/gpu": str(gpus)}
    node_labels = {
        "kubernetes.io/hostname": name,
        "aliquot.dev/simulated": "true",
        "type": "kwok",
        **V100,
        **(labels or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": node_labels, "annotations": {MANAGED: "fake"}},
        "status": {"allocatable": capacity, "capacity": capacity, "phase": "Running"},
    }


def add_nodes(cluster: Cluster, names: Iterable[str], gpus: int = 8) -> None:
    """Creates the nodes and waits until they are Ready."""
    wanted = list(names)
    for name in wanted:
        cluster.call("/api/v1/nodes", node_manifest(name, gpus))
    deadline = time.monotonic() + START_SECONDS
    while not set(wanted) <= ready_nodes(cluster):
        if time.monotonic() > deadline:
            raise ClusterError(f"of {len(wanted)} nodes only {len(ready_nodes(cluster))} are Ready")
        time.sleep(0.1)


def ready_nodes(cluster: Cluster) -> set[str]:
    return {
        item["metadata"]["name"]
        for item in json.loads(cluster.call("/api/v1/nodes"))["items"]
        if any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in item["status"].get("conditions", ())
        )
    }
