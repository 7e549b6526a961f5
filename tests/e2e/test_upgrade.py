"""State that an earlier version wrote is served by this one."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.kwok_testbed import KwokTestbed
from support.kubernetes.manifests import workload_manifest
from support.seeds.platform import PREFIX, Platform
from support.waiting import wait_until

RECORDED = Path(__file__).parents[1] / "data" / "upgrade"
# What the server sets while it runs: versions count writes, and the status follows the pods.
MOVING = ("resourceVersion", "managedFields")


def stable(item: Any) -> Any:
    """What no restart may change: everything but the status and the version."""
    metadata = {key: value for key, value in item["metadata"].items() if key not in MOVING}
    return {**{key: value for key, value in item.items() if key != "status"}, "metadata": metadata}


@pytest.fixture
def upgraded(programs: Path, tmp_path: Path) -> Iterator[Platform]:
    platform = Platform(programs, tmp_path / "platform", "--simulate", "demo")
    with tarfile.open(RECORDED / "embedded.tar.gz") as archive:
        archive.extractall(platform.server.folder, filter="data")
    yield platform.up()
    platform.down()


def test_a_data_folder_of_an_earlier_version_is_served(upgraded: Platform) -> None:
    """Every object is there unchanged; finished jobs keep their logs; jobs that ran are started again."""
    recorded = json.loads((RECORDED / "embedded.json").read_text())

    for plural, items in recorded.items():
        served = {item["metadata"]["uid"]: item for item in upgraded.get(f"{PREFIX}/{plural}")["items"]}
        for item in items:
            assert stable(served[item["metadata"]["uid"]]) == stable(item)

    upgraded.wait_for_phase("train1", "team-a", "Running")
    upgraded.wait_for_phase("half", "team-a", "Running")
    upgraded.wait_for_phase("int1", "team-b", "Running")
    assert upgraded.phase("wide", "team-a") == "Pending"
    assert upgraded.phase("parked", "team-b") == "Stopped"
    assert upgraded.phase("ended", "team-a") == "Completed"
    assert upgraded.sh("runai logs ended -p team-a").out == "hello\n"
    refusals = upgraded.job("wide", "team-a")["status"]["refusals"]
    before = next(item for item in recorded["workloads"] if item["metadata"]["name"] == "wide")["status"]["refusals"]
    assert [refusal["code"] for refusal in refusals] == [refusal["code"] for refusal in before]


# --- on Kubernetes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KwokTestbed]:
    made = KwokTestbed(tmp_path / "cluster")
    yield made
    made.close()


class Restore:
    """Creates recorded objects in another cluster. The API server gives each a new uid, so references are rewritten."""

    def __init__(self, cluster: KwokTestbed) -> None:
        self._cluster = cluster
        self._uids: dict[str, str] = {}

    def all(self, objects: list[Any]) -> None:
        for recorded in objects:
            text = json.dumps(recorded)
            for old, new in self._uids.items():
                text = text.replace(old, new)
            self._create(json.loads(text), recorded["metadata"]["uid"])

    def _create(self, wanted: Any, uid: str) -> None:
        metadata = {
            key: value
            for key, value in wanted["metadata"].items()
            if key not in ("uid", "resourceVersion", "creationTimestamp", "generation", "selfLink")
        }
        if wanted["kind"] == "Namespace":
            wanted.pop("spec")  # its finalizer is the API server's
        manifest = json.dumps({**wanted, "metadata": metadata})
        made = json.loads(self._cluster.cluster.kubectl("create", "-f", "-", "-o", "json", stdin=manifest))
        self._uids[uid] = made["metadata"]["uid"]
        if wanted["kind"] == "CustomResourceDefinition":
            wait_until(lambda: self._is_established(metadata["name"]), f"{metadata['name']} is established")
        elif wanted["kind"] == "Namespace":
            account = ("serviceaccount/default", "-n", metadata["name"])  # needed by its pods; a controller creates it
            self._cluster.kubectl("wait", *account, "--for=create", "--timeout=60s")
        elif wanted.get("status"):
            patch = json.dumps({"status": wanted["status"]})
            namespace = ("-n", metadata["namespace"]) if "namespace" in metadata else ()
            self._cluster.kubectl(
                "patch", _resource(wanted), metadata["name"], *namespace,
                "--subresource=status", "--type=merge", "-p", patch,
            )  # fmt: skip

    def _is_established(self, name: str) -> bool:
        """`kubectl wait` fails as long as the definition has no conditions at all."""
        conditions = self._cluster.get("crd", name).get("status", {}).get("conditions") or ()
        return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


def _resource(wanted: Any) -> str:
    group = wanted["apiVersion"].partition("/")[0] if "/" in wanted["apiVersion"] else ""
    return f"{wanted['kind'].lower()}s.{group}" if group else wanted["kind"].lower()


@pytest.mark.kube
@pytest.mark.xdist_group("kwok")
def test_a_cluster_of_an_earlier_version_is_served(cluster: KwokTestbed) -> None:
    """Jobs that run go on in the same pods, one that waits still waits for the same reason, and new ones are taken."""
    with gzip.open(RECORDED / "cluster.json.gz") as text:
        objects = json.load(text)
    Restore(cluster).all(objects)
    recorded = {
        (item["metadata"]["namespace"], item["metadata"]["name"]): item for item in objects if item["kind"] == "Pod"
    }
    before = {key: cluster.get("pod", key[1], key[0])["metadata"]["uid"] for key in recorded}

    platform = cluster.platform("upgraded").up()

    cluster.apply(workload_manifest("later", "runai-team-b", 1))
    cluster.wait_until_running("later-0-0", "runai-team-b")
    for (namespace, name), item in recorded.items():
        pod = cluster.get("pod", name, namespace)
        assert pod["metadata"]["uid"] == before[namespace, name]
        assert pod["spec"].get("nodeName") == item["spec"].get("nodeName")
    phases = {name: platform.phase(name, "team-a") for name in ("whole", "borrow", "huge")}
    assert phases == {"whole": "Running", "borrow": "Running", "huge": "Pending"}
    assert cluster.get("trainingworkload", "classic", "runai-team-b")["status"]["phase"] == "Running"
    huge = next(item for item in objects if item["kind"] == "Workload" and item["metadata"]["name"] == "huge")
    codes = [refusal["code"] for refusal in huge["status"]["refusals"]]
    wait_until(
        lambda: [refusal["code"] for refusal in platform.job("huge", "team-a")["status"].get("refusals", ())] == codes,
        "the waiting job says why",
    )

    def allocated() -> dict[str, float]:
        projects = platform.get(f"{PREFIX}/projects")["items"]
        return {project["metadata"]["name"]: project["status"]["allocated"]["gpu"] for project in projects}

    wait_until(lambda: allocated() == {"team-a": 9, "team-b": 3}, "the projects' usage counts every pod once")
