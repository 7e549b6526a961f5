"""Real nodes on one machine: each with its own kubelet, containerd and kube-proxy, and pods that really run.

`NodeCluster` is a control plane with such nodes. A node runs in a `NodeContainer` and ends with it. It pulls images
from a local registry: images.py builds them, and `NodeCluster.registry.add` adds more. Its GPUs are names that a device
plugin assigns (device_plugin.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.kubernetes.cluster import CONTROLLERS as CLUSTER_CONTROLLERS
from support.kubernetes.cluster import Cluster, ClusterError
from support.kubernetes.device_plugin import RESOURCE, DevicePlugin, gpu_names
from support.kubernetes.images import PAUSE, busybox_images, pause_image
from support.kubernetes.node_configs import CNI, CONTAINERD, KUBELET
from support.kubernetes.node_container import NodeContainer
from support.kubernetes.node_network import NodeNetwork
from support.kubernetes.registry import Registry

# Besides those of every test cluster: controllers of nodes and their pods, and of the kinds that create pods.
CONTROLLERS = (
    *CLUSTER_CONTROLLERS,
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "job-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
)
CONTROLLER_ARGUMENTS = (
    "--node-monitor-grace-period=20s",  # after this silence a node is NotReady
    "--kube-api-qps=1000",  # the default would add two seconds to the start
    "--kube-api-burst=1000",
)
CNI_PLUGINS = Path("/usr/lib/cni")  # of Debian's containernetworking-plugins
PROGRAMS = ("busybox", "cc", "containerd", "ctr", "ip", "iptables", "nsenter", "runc", "unshare")
HEALTH_PORT = 10256  # kube-proxy is healthy once it has written its rules


def missing() -> str:
    """What this machine lacks to run nodes; empty if nothing."""
    if os.geteuid() != 0:
        return "root"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if not (CNI_PLUGINS / "bridge").exists():
        lacking.append("containernetworking-plugins")
    return f"{', '.join(lacking)} (on Debian, `make packages` installs that)" if lacking else ""


class RealNode:
    """Node `node-N` of a cluster. After `kill` it can be started again, with an empty disk."""

    def __init__(self, cluster: Cluster, network: NodeNetwork, registry: Registry, number: int, gpus: int = 0) -> None:
        self.cluster = cluster
        self.name = f"node-{number}"
        self.gpus = gpu_names(number, gpus)
        self.folder = cluster.folder / self.name
        self.container = NodeContainer(self.folder, network, number)
        self.address = self.container.address
        self._pods = network.pods(number)
        self._registry = registry
        self._plugin: DevicePlugin | None = None

    # --- start and stop

    def start(self, *images: Path) -> RealNode:
        """Starts the node with these images and waits until it is ready; `ClusterError` with a log's tail otherwise."""
        before = self._heartbeat()
        try:
            self._start_container()
            self._start_containerd()
            for image in images:
                self.load(image)
            self._start_kubelet()
            if self.gpus:
                self._plugin = DevicePlugin(self.plugin_folder, self.gpus).start()
            self._await("kubelet", lambda: self._heartbeat() != before and self.ready())
            self._start_proxy()
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """Kills every process of the node at once, as a power failure would."""
        self.container.kill()
        self.cluster.on_end(self.name, self.container.cleanup_script())
        if self._plugin is not None:
            self._plugin.stop()
            self._plugin = None
        for program in ("containerd", "kubelet", "kube-proxy"):
            self.cluster.forget(f"{self.name}-{program}")

    def stop(self) -> None:
        """Kills the node and deletes its Node object."""
        self.kill()
        self.cluster.kubectl("delete", "node", self.name, "--ignore-not-found")

    def ready(self) -> bool:
        """Whether its Node is Ready, without taints, and with all its GPUs."""
        node = self.object()
        gpus = int(node.get("status", {}).get("allocatable", {}).get(RESOURCE, 0))
        untainted = not node.get("spec", {}).get("taints")
        return _ready_condition(node).get("status") == "True" and untainted and gpus == len(self.gpus)

    # --- for tests

    def object(self) -> dict[str, Any]:
        """The Node object; empty if there is none."""
        try:
            node = json.loads(self.cluster.call(f"/api/v1/nodes/{self.name}"))
        except urllib.error.HTTPError as exc:
            if exc.code != 404:
                raise
            return {}
        assert isinstance(node, dict)
        return node

    def load(self, tar: Path) -> None:
        """Loads an image (see images.py) into the node's containerd, as if it had been pulled before."""
        if self._ctr("images", "import", str(tar)) is None:
            raise ClusterError(f"{self.name}: image {tar} not loaded")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the node's namespaces."""
        inside = self.container.inside(*command)
        return subprocess.run(
            inside, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, check=False
        )

    @property
    def plugin(self) -> DevicePlugin:
        """The device plugin that provides this node's GPUs."""
        assert self._plugin is not None
        return self._plugin

    @property
    def plugin_folder(self) -> Path:
        """Where the kubelet expects the sockets of device plugins, as a path of the host."""
        return self.folder / "var/lib/kubelet/device-plugins"

    # --- internals

    def _start_container(self) -> None:
        self.container.clean()
        self.cluster.on_end(self.name, self.container.cleanup_script())
        self.container.start()
        self.cluster.on_end(self.name, self.container.cleanup_script())  # now with the process to wait for
        values = {
            "folder": self.folder,
            "pki": self.cluster.pki,
            "name": self.name,
            "address": self.address,
            "cgroup": self.container.cgroup,
            "pause": PAUSE,
            "runc": shutil.which("runc"),
            "plugins": CNI_PLUGINS,
            "pods": self._pods,
        }
        mirror = f'[host."{self._registry.url}"]\ncapabilities = ["pull", "resolve"]\n'
        for path, text in {
            "containerd.toml": CONTAINERD % values,
            "kubelet.yaml": KUBELET % values,
            "cni/10-bridge.conflist": CNI % values,
            "registries/_default/hosts.toml": mirror,
        }.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text)

    def _start_containerd(self) -> None:
        self._start("containerd", "containerd", "--config", f"{self.folder}/containerd.toml")
        self._await("containerd", lambda: self._ctr("version") is not None)

    def _start_kubelet(self) -> None:
        self.cluster.write_identity(self.name, f"/O=system:nodes/CN=system:node:{self.name}", f"IP:{self.address}")
        self._start(
            "kubelet",
            f"{self.cluster.binaries}/kubelet",
            f"--config={self.folder}/kubelet.yaml",
            f"--kubeconfig={self.cluster.folder}/{self.name}.kubeconfig",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        )
        self._await("kubelet", lambda: (self.plugin_folder / "kubelet.sock").exists())

    def _start_proxy(self) -> None:
        """Makes Services work inside pods, the API server's among them."""
        self.cluster.write_identity(f"{self.name}-proxy", "/CN=system:kube-proxy")
        self._start(
            "kube-proxy",
            f"{self.cluster.binaries}/kube-proxy",
            f"--kubeconfig={self.cluster.folder}/{self.name}-proxy.kubeconfig",
            f"--hostname-override={self.name}",
            "--proxy-mode=iptables",
            f"--bind-address={self.address}",
            f"--healthz-bind-address={self.address}:{HEALTH_PORT}",
            # Without these it would change settings of the host.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
        )
        self._await("kube-proxy", self._has_services)

    def _has_services(self) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"http://{self.address}:{HEALTH_PORT}/healthz", timeout=5) as response:
            return bool(response.status == 200)

    def _start(self, program: str, *command: str) -> None:
        self.cluster.spawn(f"{self.name}-{program}", *self.container.inside(*command))

    def _await(self, program: str, ready: Callable[[], bool]) -> None:
        self.cluster.wait_until_ready(f"{self.name}-{program}", ready)

    def _ctr(self, *arguments: str) -> str | None:
        """The output of `ctr` on this node; None if it fails."""
        done = self.run("ctr", f"--address={self.folder}/run/containerd.sock", "--namespace=k8s.io", *arguments)
        return done.stdout if done.returncode == 0 else None

    def _heartbeat(self) -> str:
        """Changes when the kubelet reports: the Node's status may be older than the last kill."""
        return str(_ready_condition(self.object()).get("lastHeartbeatTime"))


class NodeCluster:
    """A cluster with real nodes, a network for them, and a registry with the images of images.py."""

    def __init__(self, binaries: Path, nodes: int = 2, gpus: int = 8) -> None:
        self.network = NodeNetwork()
        self.cluster = Cluster(
            binaries,
            address=self.network.host,
            controllers=CONTROLLERS,
            controller_arguments=CONTROLLER_ARGUMENTS,
            held=[self.network.lock],
        )
        self.cluster.on_end("network", self.network.cleanup_script)
        self.registry = Registry(self.network.host)
        self.nodes = [RealNode(self.cluster, self.network, self.registry, index + 1, gpus) for index in range(nodes)]
        self._pause = pause_image(self.cluster.folder)

    def start(self) -> NodeCluster:
        try:
            for tar in busybox_images(self.cluster.folder):
                self.registry.add(tar)
            self.cluster.start()
            with ThreadPoolExecutor() as pool:
                list(pool.map(self.start_node, self.nodes))
        except BaseException:
            self.stop()
            raise
        return self

    def start_node(self, node: RealNode) -> None:
        """Starts a node of the cluster, for the first time or after a kill."""
        node.start(self._pause)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
        self.cluster.stop()
        self.registry.close()
        self.network.close()


def _ready_condition(node: dict[str, Any]) -> dict[str, Any]:
    conditions = node.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == "Ready"), {})
