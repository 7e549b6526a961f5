"""Volumes, users and Services of jobs on real nodes, as their containers see them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.cluster import Cluster
from support.kubernetes.manifests import claim, storage_class, volume, workload_manifest
from support.kubernetes.nodes import NodeCluster
from support.seeds.platform import Platform
from support.waiting import wait_until

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("nodes")]
SPACE = "runai-team-a"
SERVER_SCRIPT = "mkdir -p /www && echo hello >/www/index.html && httpd -p 8080 -h /www && exec job"
JOB = "-i gcr.io/run-ai-demo/quickstart"


@pytest.fixture(scope="module")
def real_node_platform(real_nodes: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder, kubeconfig = tmp_path_factory.mktemp("mounts"), real_nodes.cluster.kubeconfig
    running = Platform(
        Path(sys.executable).parent, folder / "platform", "--kubeconfig", str(kubeconfig), "--no-node-files",
        verb="serve",
    ).up()  # fmt: skip
    for command in ("aliquot project create team-a --gpu 4", "runai config project team-a"):
        done = running.sh(command)
        assert done.status == 0, done
    yield running
    running.sh("runai delete -A -p team-a")
    wait_until(lambda: not real_nodes.cluster.kubectl("get", "pods", "-n", SPACE, "-o", "name"), "its pods are gone")
    running.server.stop()


def apply(cluster: Cluster, *objects: dict[str, Any]) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def exec_output(platform: Platform, job: str, command: str) -> str:
    done = platform.sh(f"runai exec {job} -- {command}")
    assert done.status == 0, done
    return done.out


def test_claim(real_nodes: NodeCluster, real_node_platform: Platform) -> None:
    """One job reads what another wrote into a claim, on the node that has the volume."""
    apply(
        real_nodes.cluster, storage_class("local"), volume("local-0", "local", "node-2"), claim("test", SPACE, "local")
    )
    for job in ("pvc-test", "pvc-again"):
        real_node_platform.submit(job, "team-a", f"--pvc test:/tmp/pvc1mount {JOB} -g 1")
    exec_output(real_node_platform, "pvc-test", "sh -c 'echo mine >/tmp/pvc1mount/file'")
    assert exec_output(real_node_platform, "pvc-again", "cat /tmp/pvc1mount/file") == "mine\n"
    assert "/tmp/pvc1mount" in real_node_platform.sh("runai get pvc-test").out
    both = ("pod/pvc-test-0-0", "pod/pvc-again-0-0")
    listed = real_nodes.cluster.kubectl("get", *both, "-n", SPACE, "-o", "jsonpath={.items[*].spec.nodeName}")
    assert listed.split() == ["node-2", "node-2"]
    real_node_platform.sh("runai delete pvc-test")
    assert exec_output(real_node_platform, "pvc-again", "cat /tmp/pvc1mount/file") == "mine\n"


def test_files_and_user(real_nodes: NodeCluster, real_node_platform: Platform) -> None:
    """Files of a ConfigMap are mounted at the requested path, and the job runs as the requested user."""
    real_nodes.cluster.kubectl("create", "configmap", "settings", "-n", SPACE, "--from-literal=rate=0.1")
    flags = "--configmap-volume name=settings,path=/etc/settings --run-as-uid 1234 --run-as-gid 77"
    real_node_platform.submit("files", "team-a", f"{JOB} {flags}")
    assert exec_output(real_node_platform, "files", "cat /etc/settings/rate") == "0.1"
    assert "uid=1234 gid=77" in exec_output(real_node_platform, "files", "id")


def test_missing_files(real_node_platform: Platform) -> None:
    """A job that mounts a missing ConfigMap reports it."""
    real_node_platform.submit(
        "nothing", "team-a", "-i ubuntu --configmap-volume name=nothing,path=/etc/x", "Initializing", "Pending"
    )
    wait_until(
        lambda: 'configmap "nothing" not found' in real_node_platform.sh("runai describe job nothing").out,
        "the missing ConfigMap is named",
    )


def test_service(real_nodes: NodeCluster, real_node_platform: Platform) -> None:
    """Other pods reach a job through its Service once its readiness probe succeeds."""
    probes = {"readiness": {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1}}
    server = workload_manifest(
        "web", SPACE, 0, image="ubuntu", command=["sh", "-c", SERVER_SCRIPT], probes=probes, ports=[{"container": 8080}]
    )
    apply(real_nodes.cluster, server)
    real_node_platform.submit("client", "team-a", JOB)
    real_node_platform.wait_for_phase("web", "team-a", "Running")
    address = real_nodes.cluster.kubectl("get", "service", "web", "-n", SPACE, "-o", "jsonpath={.spec.clusterIP}")
    real_nodes.cluster.kubectl("wait", "pod/web-0-0", "-n", SPACE, "--for=condition=Ready", "--timeout=60s")
    request = f"sh -c 'printf \"GET / HTTP/1.0\\r\\n\\r\\n\" | nc -w 5 {address} 8080'"
    wait_until(lambda: "hello" in real_node_platform.sh(f"runai exec client -- {request}").out, "it responds")
