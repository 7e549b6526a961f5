"""Real nodes: what tests on them rely on, and that nothing of them remains."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.cluster import Cluster
from support.kubernetes.fixtures import available_nodes
from support.kubernetes.images import busybox, image
from support.kubernetes.nodes import NodeCluster, missing
from support.waiting import wait_until

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("nodes")]
TIMEOUT_SECONDS = 120.0
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
# Starts a node with a pod and prints what it created; runs until it is killed.
KILLED_RUN = """
import json, sys, time
from pathlib import Path
from support.kubernetes.nodes import NodeCluster
running = NodeCluster(Path(sys.argv[1]), nodes=1).start()
running.cluster.kubectl("run", "job", "--image=ubuntu", "--overrides", '{"spec": {"nodeName": "node-1"}}')
running.cluster.kubectl("wait", "--for=condition=Ready", "pod/job", "--timeout=120s")
node, network = running.nodes[0], running.network
made = {"folder": str(node.cluster.folder), "pid": node.container.pid, "group": node.container.cgroup,
        "bridge": network.bridge, "number": network.number}
print(json.dumps(made), flush=True)
time.sleep(3600)
"""


class Space:
    """A namespace on the real nodes, and what a test does there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.name = cluster.create_namespace()
        # Pods are refused until their service account exists.
        self.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=120s")

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self._cluster.kubectl("--namespace", self.name, *arguments, stdin=stdin)

    def run(self, name: str, node: str, gpus: int = 0, image: str = "ubuntu", **spec: Any) -> None:
        """Runs a pod on a node, without a scheduler."""
        container = {"name": "main", "image": image, "resources": {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1, **spec},
        }
        self.kubectl("apply", "-f", "-", stdin=json.dumps(pod))

    def run_ready(self, name: str, node: str, gpus: int = 0, image: str = "ubuntu") -> None:
        self.run(name, node, gpus, image)
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={TIMEOUT_SECONDS:.0f}s")

    def pod(self, name: str) -> dict[str, Any]:
        pod: dict[str, Any] = json.loads(self.kubectl("get", "pod", name, "-o", "json"))
        return pod


@pytest.fixture
def space(real_nodes: NodeCluster) -> Iterator[Space]:
    created = Space(real_nodes.cluster)
    yield created
    created.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=120s")


def test_pod_runs_and_has_a_log(space: Space) -> None:
    """A pod of an image without a tag is pulled, gets Ready, and its output can be read."""
    space.run_ready("job", "node-1", image="gcr.io/run-ai-demo/quickstart")

    wait_until(lambda: "step 1" in space.kubectl("logs", "job"), "the first step in the log", TIMEOUT_SECONDS)


def test_exec_exit_status(space: Space, real_nodes: NodeCluster) -> None:
    """The caller gets the exit status of a command in a container."""
    space.run_ready("job", "node-2")
    command = ["exec", "--namespace", space.name, "job", "--", "bash", "-c", "echo $HOSTNAME; exit 7"]

    output = real_nodes.cluster.kubectl(*command, check=False)

    assert output.splitlines() == ["job", "command terminated with exit code 7"]


def test_port_forward(space: Space, real_nodes: NodeCluster) -> None:
    """A forwarded port reaches the pod's server."""
    space.run_ready("notebook", "node-1", image="jupyter/base-notebook")
    with _forwarded(real_nodes.cluster, space.name, "notebook", 8888) as port:
        assert _fetch(f"http://127.0.0.1:{port}/") == b"a notebook\n"


def test_service_reaches_a_pod_on_another_node(space: Space) -> None:
    """A pod on one node reaches a pod on the other through a Service."""
    space.run_ready("notebook", "node-1", image="jupyter/base-notebook")
    space.run_ready("job", "node-2")
    space.kubectl("label", "pod", "notebook", "app=notebook")
    space.kubectl("create", "service", "clusterip", "notebook", "--tcp=80:8888")
    address = space.kubectl("get", "service", "notebook", "-o", "jsonpath={.spec.clusterIP}")
    fetch = f"until wget -qO- http://{address}/ 2>/dev/null; do sleep 0.2; done"

    assert space.kubectl("exec", "job", "--", "sh", "-c", fetch) == "a notebook\n"


def test_gpus_of_pods(space: Space, real_nodes: NodeCluster) -> None:
    """Two pods of one node see as many GPUs as they request, and never the same one."""
    for name, gpus in (("two", 2), ("three", 3)):
        space.run_ready(name, "node-1", gpus=gpus)
    command = ("sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES")
    seen = [space.kubectl("exec", name, "--", *command) for name in ("two", "three")]
    two, three = (set(names.strip().split(",")) for names in seen)

    assert (len(two), len(three)) == (2, 3)
    assert not two & three
    assert two | three <= set(real_nodes.nodes[0].gpus)


def test_node_refuses_a_pod_without_free_gpus(space: Space) -> None:
    """A node never assigns a GPU twice, whatever is bound to it: the pod that does not fit fails."""
    space.run_ready("most", "node-1", gpus=7)
    space.run("late", "node-1", gpus=2)

    wait_until(lambda: space.pod("late")["status"]["phase"] == "Failed", "the kubelet to fail the pod", TIMEOUT_SECONDS)

    assert "nvidia.com/gpu" in space.pod("late")["status"]["message"]


def test_unhealthy_gpu_is_not_allocatable(real_nodes: NodeCluster) -> None:
    """A node has one allocatable GPU less while one of them is unhealthy."""
    node = real_nodes.nodes[1]

    def allocatable() -> str:
        return str(node.object()["status"]["allocatable"]["nvidia.com/gpu"])

    node.plugin.set_health(node.gpus[0], False)
    wait_until(lambda: allocatable() == "7", "7 GPUs", TIMEOUT_SECONDS)
    node.plugin.set_health(node.gpus[0], True)
    wait_until(lambda: allocatable() == "8", "8 GPUs", TIMEOUT_SECONDS)


def test_image_loaded_on_a_node(space: Space, real_nodes: NodeCluster, tmp_path: Path) -> None:
    """An image that was loaded on a node runs there, without a registry."""
    files = {**busybox(), "bin/hello": b"#!/bin/sh\necho hello; trap exit TERM; sleep 3600 & wait\n"}
    real_nodes.nodes[0].load(image(tmp_path / "hello.tar", "example.com/hello:1", files, ["/bin/hello"]))
    space.run_ready("hello", "node-1", image="example.com/hello:1")

    wait_until(lambda: space.kubectl("logs", "hello") == "hello\n", "the log", TIMEOUT_SECONDS)


def test_killed_node_recovers(space: Space, real_nodes: NodeCluster) -> None:
    """A killed node and its pods become unready; after a restart they run again. The other node is not affected."""
    space.run_ready("job", "node-2")
    alive, dead = real_nodes.nodes
    dead.kill()
    try:
        wait_until(
            lambda: any(UNREACHABLE.items() <= taint.items() for taint in dead.object()["spec"].get("taints", [])),
            "the taint of an unreachable node",
            TIMEOUT_SECONDS,
        )
        assert not dead.ready()
        assert alive.ready()
        wait_until(lambda: _condition(space.pod("job"), "Ready") == "False", "the pod to be unready", TIMEOUT_SECONDS)
    finally:
        real_nodes.start_node(dead)
    space.kubectl("wait", "--for=condition=Ready", "pod/job", f"--timeout={TIMEOUT_SECONDS:.0f}s")

    assert space.pod("job")["status"]["containerStatuses"][0]["restartCount"] == 1


def test_nothing_remains_of_a_killed_run() -> None:
    """After the tests are killed, no process, mount, control group, interface or file of their nodes remains."""
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent / 'src'}"}
    command = [sys.executable, "-c", KILLED_RUN, str(available_nodes())]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        created = json.loads(run.stdout.readline())
        namespaces = {name: os.readlink(f"/proc/{created['pid']}/ns/{name}") for name in ("pid", "mnt", "net")}
        assert len(_processes_in(namespaces)) > 5  # first process, containerd, kubelet, kube-proxy, shim, pause, job
        assert _remaining(created) == {"folder", "group", "bridge"}
        run.send_signal(signal.SIGKILL)

    wait_until(lambda: not _remaining(created), "the processes to end", TIMEOUT_SECONDS)

    assert _processes_in(namespaces) == []
    assert created["folder"] not in Path("/proc/self/mountinfo").read_text()


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that real nodes need and that are missing are named, so that a skipped test says what to install."""
    monkeypatch.setenv("PATH", "/nowhere")

    assert missing() == "root" if os.geteuid() else missing().startswith("busybox, cc, containerd, ctr, ip")


def _remaining(created: dict[str, Any]) -> set[str]:
    groups = [*Path("/sys/fs/cgroup").glob(created["group"]), *Path("/sys/fs/cgroup").glob(f"*/{created['group']}")]
    links = [link.name for link in Path("/sys/class/net").iterdir() if link.name.startswith(created["bridge"])]
    exists = {"folder": Path(created["folder"]).exists(), "group": bool(groups), "bridge": bool(links)}
    return {name for name, is_left in exists.items() if is_left}


def _processes_in(namespaces: dict[str, str]) -> list[str]:
    """The processes in any of these namespaces."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(process / "ns" / name) == namespace for name, namespace in namespaces.items()):
                processes.append(process.name)
        except OSError:
            continue  # it has ended meanwhile
    return processes


@contextmanager
def _forwarded(cluster: Cluster, namespace: str, pod: str, port: int) -> Iterator[int]:
    options = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={namespace}"]
    command = [str(cluster.binaries / "kubectl"), *options, "port-forward", f"pod/{pod}", f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            match = re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", forward.stdout.readline())
            assert match is not None
            yield int(match[1])
        finally:
            forward.terminate()


def _fetch(url: str) -> bytes:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as response:
        return bytes(response.read())


def _condition(pod: dict[str, Any], kind: str) -> str:
    return str(next(item["status"] for item in pod["status"]["conditions"] if item["type"] == kind))
