"""A cluster with KWOK nodes, `aliquot serve` on it, and kubectl: what users work with."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from support.kubernetes.cluster import CONTROLLERS, Cluster
from support.kubernetes.fixtures import available_programs
from support.kubernetes.kwok import add_nodes, start_kwok
from support.seeds.platform import Platform
from support.waiting import wait_until

NODES = ("dgx1-1", "dgx1-2", "dgx1-3")
GPUS = 8  # of each
# As in any cluster: these taint nodes, evict pods from nodes tainted NoExecute, and bind claims to volumes.
_NODES_AND_VOLUMES = (
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
)


class KwokTestbed:
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
        """A server that is not started yet, with a data folder of its own."""
        config = ("--kubeconfig", str(self.cluster.kubeconfig))
        platform = Platform(Path(sys.executable).parent, self._folder / name, *config, *arguments, verb="serve")
        self._platforms.append(platform)
        return platform

    def close(self) -> None:
        for platform in self._platforms:
            if platform.server.alive:
                platform.server.stop()
        self.cluster.stop()

    # --- kubectl

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(*arguments)

    def apply(self, *objects: dict[str, Any]) -> None:
        self.cluster.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )

    def get(self, kind: str, name: str, namespace: str = "default") -> Any:
        """The object as JSON; None if there is none."""
        output = self.cluster.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(output) if output else None

    def create_project(self, name: str, gpu: float) -> str:
        """Creates a project and returns its namespace."""
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
        """Binds a pod, as another scheduler would."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self.cluster.call(
            f"/api/v1/namespaces/{namespace}/pods/{pod}/binding",
            {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target},
        )

    def nodes_of_pods(self, namespace: str) -> dict[str, str]:
        """Pods and their nodes; the node of a pending pod is empty."""
        pods = json.loads(self.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}

    def events(self, namespace: str) -> set[tuple[str, str]]:
        """(object, reason) of each line of `kubectl get events`."""
        lines = self.kubectl("get", "events", "-n", namespace, "--no-headers").splitlines()
        return {(line.split()[3], line.split()[2]) for line in lines if len(line.split()) > 3}

    # --- waiting

    def wait_until_running(self, pod: str, namespace: str, node: str = "") -> Any:
        """The pod, once it runs; on that node if one is given."""

        def is_running() -> bool:
            current = self.get("pod", pod, namespace)
            return (
                current is not None
                and current["status"].get("phase") == "Running"
                and current["spec"]["nodeName"] == (node or current["spec"]["nodeName"])
            )

        wait_until(is_running, f"pod {pod} runs")
        return self.get("pod", pod, namespace)

    def wait_for_refusal(self, workload: str, namespace: str, text: str) -> None:
        """Waits until a refusal of the workload contains the text."""

        def is_refused() -> bool:
            status = (self.get("workload", workload, namespace) or {}).get("status", {})
            return any(text in refusal.get("text", "") for refusal in status.get("refusals", ()))

        wait_until(
            is_refused, f"{workload} is refused with {text!r}; it is {self.get('workload', workload, namespace)}"
        )

    def wait_for_events(self, namespace: str, target: str, *reasons: str) -> None:
        """Waits until an object has events with these reasons."""
        wanted = {(target, reason) for reason in reasons}
        wait_until(lambda: wanted <= self.events(namespace), f"events {wanted}")

    def delete_all(self, namespace: str) -> None:
        """Deletes all workloads and pods of a namespace and waits until they are gone."""
        for kind in ("trainingworkloads.run.ai", "interactiveworkloads.run.ai", "workloads.aliquot.dev", "pods"):
            self.kubectl("delete", kind, "--all", "-n", namespace, "--wait=false", "--ignore-not-found")
        wait_until(lambda: not self.kubectl("get", "pods", "-n", namespace, "-o", "name"), f"{namespace} is empty")


def table_rows(listing: str) -> list[dict[str, str]]:
    """The rows of a table that kubectl printed, by column title."""
    rows: list[dict[str, str]] = []
    titles: dict[str, slice] = {}
    for line in listing.splitlines():
        if line.startswith(("NAME ", "NAMESPACE ")):
            starts = [match.start() for match in re.finditer(r"(?:^|(?<=   ))\S", line)]
            ends = [*starts[1:], None]
            titles = {line[start:end].strip(): slice(start, end) for start, end in zip(starts, ends, strict=True)}
        elif line:
            rows.append({title: line[cell].strip() for title, cell in titles.items()})
    return rows
