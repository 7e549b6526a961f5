"""A cluster as its users see it: KWOK's nodes, `aliquot serve` beside it, and `kubectl`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from support.kubernetes.cluster import CONTROLLERS, Cluster
from support.kubernetes.fixtures import available_programs
from support.kubernetes.kwok import add_nodes, start_kwok
from support.seeds.platform import Platform, until

NODES = ("dgx1-1", "dgx1-2", "dgx1-3")
GPUS = 8  # of each
# As in any cluster: who marks nodes, who clears those that are marked NoExecute, and who gives claims their volumes.
_NODES_AND_VOLUMES = (
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
)


class KwokPlatform:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.cluster = Cluster(
            available_programs(),
            controllers=(*CONTROLLERS, *_NODES_AND_VOLUMES),
            controller_arguments=("--node-monitor-grace-period=12h",),
        ).start()
        try:
            start_kwok(self.cluster)
            add_nodes(self.cluster, NODES, GPUS)
        except BaseException:
            self.cluster.stop()
            raise
        self._platforms: list[Platform] = []

    def platform(self, name: str, *arguments: str) -> Platform:
        """One that is not started yet, with a data folder of its own."""
        config = ("--kubeconfig", str(self.cluster.kubeconfig))
        made = Platform(Path(sys.executable).parent, self._folder / name, *config, *arguments, verb="serve")
        self._platforms.append(made)
        return made

    def close(self) -> None:
        for platform in self._platforms:
            if platform.server.alive:
                platform.server.stop()
        self.cluster.stop()

    # --- with kubectl

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(*arguments)

    def apply(self, *objects: dict[str, Any]) -> None:
        self.cluster.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )

    def get(self, what: str, name: str, namespace: str = "default") -> Any:
        """As JSON; None where there is none."""
        found = self.cluster.kubectl("get", what, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(found) if found else None

    def project(self, name: str, gpu: float) -> str:
        """Its namespace."""
        self.apply(
            {
                "apiVersion": "aliquot.dev/v1",
                "kind": "Project",
                "metadata": {"name": name},
                "spec": {"quota": {"gpu": gpu}},
            }
        )
        self.kubectl("wait", f"project/{name}", "--for=jsonpath={.status.phase}=Ready", "--timeout=60s")
        return f"runai-{name}"

    def bind(self, pod: str, namespace: str, node: str) -> None:
        """As another scheduler does it."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self.cluster.call(
            f"/api/v1/namespaces/{namespace}/pods/{pod}/binding",
            {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target},
        )

    def places(self, namespace: str) -> dict[str, str]:
        """Pods and their nodes; of one that waits it is empty."""
        found = json.loads(self.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
        return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in found}

    def events(self, namespace: str) -> set[tuple[str, str]]:
        """(object, reason) of what `kubectl get events` tells."""
        lines = self.kubectl("get", "events", "-n", namespace, "--no-headers").splitlines()
        return {(line.split()[3], line.split()[2]) for line in lines if len(line.split()) > 3}

    # --- waiting

    def runs(self, pod: str, namespace: str, node: str = "") -> Any:
        """The pod, once it runs; on that node where one is named."""

        def so() -> bool:
            found = self.get("pod", pod, namespace)
            return (
                found is not None
                and found["status"].get("phase") == "Running"
                and found["spec"]["nodeName"] == (node or found["spec"]["nodeName"])
            )

        until(so, f"pod {pod} runs")
        return self.get("pod", pod, namespace)

    def told(self, workload: str, namespace: str, words: str) -> None:
        """The workload waits, and says so."""

        def so() -> bool:
            status = (self.get("workload", workload, namespace) or {}).get("status", {})
            return any(words in one.get("text", "") for one in status.get("refusals", ()))

        until(so, f"{workload} says {words!r}; it is {self.get('workload', workload, namespace)}")

    def tells(self, namespace: str, about: str, *reasons: str) -> None:
        """Until there are these events about an object."""
        wanted = {(about, reason) for reason in reasons}
        until(lambda: wanted <= self.events(namespace), f"events {wanted}")

    def empty(self, namespace: str) -> None:
        """Everything that runs there is taken away, and gone."""
        for what in ("trainingworkloads.run.ai", "interactiveworkloads.run.ai", "workloads.aliquot.dev", "pods"):
            self.kubectl("delete", what, "--all", "-n", namespace, "--wait=false", "--ignore-not-found")
        until(lambda: not self.kubectl("get", "pods", "-n", namespace, "-o", "name"), f"{namespace} is empty")


def pod(name: str, namespace: str, gpus: int, scheduler: str = "runai-scheduler") -> dict[str, Any]:
    """A plain one, of nobody."""
    container = {"name": "main", "image": "job", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"schedulerName": scheduler, "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


def workload(name: str, namespace: str, gpus: float, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "aliquot.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"type": "training", "image": "job", "compute": {"gpu": gpus}, "preemptionGrace": 1, **spec},
    }


def storage_class(name: str) -> dict[str, Any]:
    """Its volumes are there, and wait for the first pod that wants one."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def volume(name: str, of: str, node: str = "") -> dict[str, Any]:
    """A folder of a node: of that one alone where one is named."""
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": of,
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "hostPath": {"path": f"/tmp/{name}", "type": "DirectoryOrCreate"},
            **({"nodeAffinity": {"required": {"nodeSelectorTerms": [here]}}} if node else {}),
        },
    }


def claim(name: str, namespace: str, of: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "storageClassName": of,
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def training(name: str, namespace: str, gpus: int) -> dict[str, Any]:
    """As written for Run:ai."""
    return {
        "apiVersion": "run.ai/v2alpha1",
        "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"image": {"value": "job"}, "gpu": {"value": str(gpus)}},
    }


def columns(listing: str) -> list[dict[str, str]]:
    """A table of kubectl's, row by row; an empty cell is empty."""
    rows: list[dict[str, str]] = []
    titles: dict[str, slice] = {}
    for line in listing.splitlines():
        if line.startswith(("NAME ", "NAMESPACE ")):
            starts = [found.start() for found in re.finditer(r"(?:^|(?<=   ))\S", line)]
            ends = [*starts[1:], None]
            titles = {line[a:b].strip(): slice(a, b) for a, b in zip(starts, ends, strict=True)}
        elif line:
            rows.append({title: line[place].strip() for title, place in titles.items()})
    return rows
