"""Real nodes: what tests on them rely on, and that nothing stays of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.cluster import Cluster
from support.kubernetes.fixtures import available_nodes
from support.kubernetes.images import busybox, image
from support.kubernetes.nodes import NodeCluster, missing

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("nodes")]
PATIENCE = 120.0
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
# Starts a node with a pod and tells what it made; ends only when it is killed.
LONELY_RUN = """
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
        # Pods are refused until the account is there under which they run.
        self.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=120s")

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self._cluster.kubectl("--namespace", self.name, *arguments, stdin=stdin)

    def run(self, name: str, node: str, gpus: int = 0, image: str = "ubuntu", **spec: Any) -> None:
        """A pod on a node, past any scheduler."""
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
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={PATIENCE:.0f}s")

    def pod(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "pod", name, "-o", "json"))
        return found


@pytest.fixture
def space(real_nodes: NodeCluster) -> Iterator[Space]:
    made = Space(real_nodes.cluster)
    yield made
    made.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=120s")


def test_a_pod_runs_and_its_log_is_there(space: Space) -> None:
    """A pod of an image without a tag is pulled, gets Ready, and its output can be read."""
    space.run_ready("job", "node-1", image="gcr.io/run-ai-demo/quickstart")

    _until(lambda: "step 1" in space.kubectl("logs", "job"))


def test_a_command_in_a_pod_ends_with_its_own_status(space: Space, real_nodes: NodeCluster) -> None:
    """What a command in a container returns is what the caller gets."""
    space.run_ready("job", "node-2")
    command = ["exec", "--namespace", space.name, "job", "--", "bash", "-c", "echo $HOSTNAME; exit 7"]

    said = real_nodes.cluster.kubectl(*command, check=False)

    assert said.splitlines() == ["job", "command terminated with exit code 7"]


def test_a_port_of_a_pod_can_be_reached_from_here(space: Space, real_nodes: NodeCluster) -> None:
    """A forwarded port answers with what the pod serves."""
    space.run_ready("notebook", "node-1", image="jupyter/base-notebook")
    with _forwarded(real_nodes.cluster, space.name, "notebook", 8888) as port:
        assert _fetch(f"http://127.0.0.1:{port}/") == b"a notebook\n"


def test_a_service_reaches_a_pod_on_another_node(space: Space) -> None:
    """The address of a service leads from a pod on one node to a pod on the other."""
    space.run_ready("notebook", "node-1", image="jupyter/base-notebook")
    space.run_ready("job", "node-2")
    space.kubectl("label", "pod", "notebook", "app=notebook")
    space.kubectl("create", "service", "clusterip", "notebook", "--tcp=80:8888")
    address = space.kubectl("get", "service", "notebook", "-o", "jsonpath={.spec.clusterIP}")
    fetch = f"until wget -qO- http://{address}/ 2>/dev/null; do sleep 0.2; done"

    assert space.kubectl("exec", "job", "--", "sh", "-c", fetch) == "a notebook\n"


def test_a_pod_gets_the_gpus_it_asked_for_and_knows_which(space: Space, real_nodes: NodeCluster) -> None:
    """Two pods of one node see as many GPUs as they asked for, and never the same one."""
    for name, gpus in (("two", 2), ("three", 3)):
        space.run_ready(name, "node-1", gpus=gpus)
    ask = ("sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES")
    seen = [space.kubectl("exec", name, "--", *ask) for name in ("two", "three")]
    two, three = (set(names.strip().split(",")) for names in seen)

    assert (len(two), len(three)) == (2, 3)
    assert not two & three
    assert two | three <= set(real_nodes.nodes[0].gpus)


def test_a_node_refuses_a_pod_for_which_no_gpu_is_left(space: Space) -> None:
    """Whoever binds pods, a node never gives out a GPU twice: the pod that is too much fails."""
    space.run_ready("most", "node-1", gpus=7)
    space.run("late", "node-1", gpus=2)

    _until(lambda: space.pod("late")["status"]["phase"] == "Failed")

    assert "nvidia.com/gpu" in space.pod("late")["status"]["message"]


def test_an_unhealthy_gpu_is_not_offered(real_nodes: NodeCluster) -> None:
    """A node offers one GPU less while one of them is unhealthy."""
    node = real_nodes.nodes[1]

    def offered() -> str:
        return str(node.object()["status"]["allocatable"]["nvidia.com/gpu"])

    node.plugin.set_health(node.gpus[0], False)
    _until(lambda: offered() == "7")
    node.plugin.set_health(node.gpus[0], True)
    _until(lambda: offered() == "8")


def test_an_image_can_be_put_on_a_node(space: Space, real_nodes: NodeCluster, tmp_path: Path) -> None:
    """An image made here runs where it was loaded, without a registry that has it."""
    files = {**busybox(), "bin/hello": b"#!/bin/sh\necho hello; trap exit TERM; sleep 3600 & wait\n"}
    real_nodes.nodes[0].load(image(tmp_path / "hello.tar", "example.com/hello:1", files, ["/bin/hello"]))
    space.run_ready("hello", "node-1", image="example.com/hello:1")

    _until(lambda: space.kubectl("logs", "hello") == "hello\n")


def test_a_killed_node_is_noticed_and_comes_back(space: Space, real_nodes: NodeCluster) -> None:
    """A node that dies is told unreachable, with its pods; started again it runs them again. The other node stays."""
    space.run_ready("job", "node-2")
    alive, dead = real_nodes.nodes
    dead.kill()
    try:
        _until(lambda: any(UNREACHABLE.items() <= taint.items() for taint in dead.object()["spec"].get("taints", [])))
        assert not dead.ready()
        assert alive.ready()
        _until(lambda: _condition(space.pod("job"), "Ready") == "False")
    finally:
        real_nodes.start_node(dead)
    space.kubectl("wait", "--for=condition=Ready", "pod/job", f"--timeout={PATIENCE:.0f}s")

    assert space.pod("job")["status"]["containerStatuses"][0]["restartCount"] == 1


def test_nothing_stays_of_a_run_that_was_killed() -> None:
    """When the tests are killed, no process, mount, control group, interface or file of their nodes is left."""
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent / 'src'}"}
    command = [sys.executable, "-c", LONELY_RUN, str(available_nodes())]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        made = json.loads(run.stdout.readline())
        spaces = {name: os.readlink(f"/proc/{made['pid']}/ns/{name}") for name in ("pid", "mnt", "net")}
        assert len(_processes_in(spaces)) > 5  # first process, containerd, kubelet, kube-proxy, shim, pause, job
        assert _left(made) == {"folder", "group", "bridge"}
        run.send_signal(signal.SIGKILL)

    _until(lambda: not _left(made))

    assert _processes_in(spaces) == []
    assert made["folder"] not in Path("/proc/self/mountinfo").read_text()


def test_a_machine_without_the_programs_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing for real nodes is named, so that a skipped test says it."""
    monkeypatch.setenv("PATH", "/nowhere")

    assert missing() == "root" if os.geteuid() else missing().startswith("busybox, cc, containerd, ctr, ip")


def _left(made: dict[str, Any]) -> set[str]:
    groups = [*Path("/sys/fs/cgroup").glob(made["group"]), *Path("/sys/fs/cgroup").glob(f"*/{made['group']}")]
    links = [link.name for link in Path("/sys/class/net").iterdir() if link.name.startswith(made["bridge"])]
    there = {"folder": Path(made["folder"]).exists(), "group": bool(groups), "bridge": bool(links)}
    return {name for name, still in there.items() if still}


def _processes_in(spaces: dict[str, str]) -> list[str]:
    """Those that are in any of these namespaces, or have them in use."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(process / "ns" / name) == space for name, space in spaces.items()):
                found.append(process.name)
        except OSError:
            continue  # it has ended meanwhile
    return found


@contextmanager
def _forwarded(cluster: Cluster, namespace: str, pod: str, port: int) -> Iterator[int]:
    where = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={namespace}"]
    command = [str(cluster.binaries / "kubectl"), *where, "port-forward", f"pod/{pod}", f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            said = re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", forward.stdout.readline())
            assert said is not None
            yield int(said[1])
        finally:
            forward.terminate()


def _fetch(url: str) -> bytes:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
        return bytes(answer.read())


def _condition(pod: dict[str, Any], kind: str) -> str:
    return next(one["status"] for one in pod["status"]["conditions"] if one["type"] == kind)


def _until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.1)
