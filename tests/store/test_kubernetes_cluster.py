"""The test cluster itself: it collects garbage, survives a crash, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from support.kubernetes.cluster import Cluster, ClusterError, programs
from support.kubernetes.kinds import CONFIG

pytestmark = pytest.mark.kube

DIES = """
import os, signal, sys
from support.kubernetes.cluster import Cluster, programs
cluster = Cluster(programs())
cluster._start_etcd()
print(cluster.folder, cluster._running["etcd"].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_orphans_are_collected(kube: KubernetesDriver, namespace: str) -> None:
    """The cluster removes an object whose owner is deleted."""
    owner = await kube.create(CONFIG, Document({"metadata": {"name": "owner", "namespace": namespace}}))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid}
    owned = {"name": "owned", "namespace": namespace, "ownerReferences": [reference]}
    created = await kube.create(CONFIG, Document({"metadata": owned}))
    await kube.delete(CONFIG, "owner", namespace)

    async with asyncio.timeout(60):
        async for change in kube.watch(CONFIG, namespace, version=created.version, fields="metadata.name=owned"):
            if change.type == "DELETED":
                break


def test_kubectl_speaks_to_it(cluster: Cluster, namespace: str) -> None:
    """kubectl sees the same objects, and its errors are reported."""
    assert namespace in cluster.kubectl("get", "namespaces", "-o", "name")
    with pytest.raises(ClusterError, match="not found"):
        cluster.kubectl("get", "namespace", "nowhere")


def test_nothing_survives_a_killed_test_run(cluster: Cluster) -> None:
    """When the tests are killed, the cluster's processes end and its folder is removed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    dying = subprocess.run([sys.executable, "-c", DIES], capture_output=True, text=True, env=environment, check=False)
    folder, pid = dying.stdout.split()

    until = time.monotonic() + 20
    while Path(folder).exists() or Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_failed_start_shows_the_log(cluster: Cluster) -> None:
    """A program that does not start is named, with the end of its output."""
    broken = Cluster(programs())
    try:
        broken._spawn("kube-apiserver", "--secure-port=0")
        with pytest.raises(ClusterError, match=r"(?s)kube-apiserver ended with 1\n.*etcd-servers"):
            broken.wait_until_ready("kube-apiserver", lambda: False)
    finally:
        broken.stop()
    assert not broken.folder.exists()
