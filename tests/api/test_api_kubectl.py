"""People with kubectl and people with our API work on the same objects."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from api.people import Office
from api.wire import Api, Json, named, unique, until
from support.kubernetes.cluster import Cluster
from support.stores.process import ServerProcess

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("kube")]
WORK = {"type": "training", "image": "none"}


@pytest.fixture
def here(kube_server: ServerProcess, cluster: Cluster) -> str:
    """A namespace that no other test uses."""
    return cluster.create_namespace()


@pytest.fixture
def office(kube_server: ServerProcess) -> Iterator[Office]:
    api = Api(kube_server.url, kube_server.token)
    yield Office(api)
    api.close()


def _manifest(kind: str, name: str, spec: Json, namespace: str = "") -> str:
    place = {"name": name, **({"namespace": namespace} if namespace else {})}
    return json.dumps({"apiVersion": "aliquot.dev/v1", "kind": kind, "metadata": place, "spec": spec})


def _heads(text: str) -> list[list[str]]:
    """The heading of each table."""
    return [line.split() for line in text.splitlines() if "NAME" in line.split()]


def test_get_projects_and_workloads(cluster: Cluster, office: Office, here: str) -> None:
    """`kubectl get projects,workloads -A` shows both with the columns one looks for."""
    project = office.project()
    office.admin.post(f"namespaces/{here}/workloads", named("train-1", WORK)).ok(201)
    shown = cluster.kubectl("get", "projects,workloads", "-A")
    assert f"project.aliquot.dev/{project} " in shown
    assert "workload.aliquot.dev/train-1 " in shown
    projects, workloads = _heads(shown)
    assert projects == ["NAME", "DEPARTMENT", "GPU", "QUOTA", "GPUS", "PHASE", "AGE"]
    assert workloads == ["NAMESPACE", "NAME", "TYPE", "PHASE", "USER", "GPUS", "AGE"]


@pytest.mark.parametrize("word", ["proj", "projects", "project", "wl", "workloads", "dept", "np", "ar", "tok", "usr"])
def test_short_names(cluster: Cluster, office: Office, word: str) -> None:
    """Every kind has a short name."""
    cluster.kubectl("get", word, "-A")


def test_category(cluster: Cluster, office: Office, here: str) -> None:
    """`kubectl get aliquot` shows everything of ours in a namespace."""
    office.admin.post(f"namespaces/{here}/workloads", named("train-1", WORK)).ok(201)
    office.admin.post(f"namespaces/{here}/templates", named("big")).ok(201)
    shown = cluster.kubectl("get", "aliquot", "-n", here, "-o", "name").split()
    assert {"workload.aliquot.dev/train-1", "template.aliquot.dev/big"} <= set(shown)
    assert "department.aliquot.dev/default" in shown


@pytest.mark.parametrize(
    "path, sentence",
    [
        ("workload.spec", "compute"),
        ("workload.spec.compute.gpu", "GPU"),
        ("project.spec.quota.gpu", "Guaranteed number of GPUs"),
        ("project.spec.department", "Department that the project belongs to"),
    ],
)
def test_explain(cluster: Cluster, office: Office, path: str, sentence: str) -> None:
    """`kubectl explain` tells what a field is for."""
    shown = cluster.kubectl("explain", path)
    assert sentence in " ".join(shown.split())
    assert "<no description>" not in shown.lower()
    assert "DESCRIPTION:\n    <empty>" not in shown


def test_explain_leaves_no_field_out(cluster: Cluster, office: Office) -> None:
    """Every field of a workload's spec has a sentence."""
    shown = cluster.kubectl("explain", "workload.spec")
    fields = shown.partition("FIELDS:")[2]
    assert "<no description>" not in fields


@pytest.mark.parametrize(
    "spec, path",
    [
        ({"quota": {"gpu": "many"}}, "spec.quota.gpu"),
        ({"quota": {"gpu": -1}}, "spec.quota.gpu"),
        ({"quota": {"gpu": 0.0005}}, "spec.quota.gpu"),
        ({"priority": "high"}, "spec.priority"),
        ({"qouta": {"gpu": 1}}, "spec.qouta"),
        ({"pools": {"default": {}}}, "spec.pools"),
    ],
)
def test_apply_of_a_wrong_project(cluster: Cluster, office: Office, spec: Json, path: str) -> None:
    """`kubectl apply` of something wrong names the field, and nothing is there afterwards."""
    name = unique("wrong")
    said = cluster.kubectl("apply", "-f", "-", stdin=_manifest("Project", name, spec), check=False)
    assert path in said
    assert len(said) < 600
    office.admin.get(f"projects/{name}").refused(404)


@pytest.mark.parametrize(
    "spec, words",
    [
        ({"type": "traning"}, "spec.type"),
        ({"type": "training", "compute": {"gpu": 1, "gpuMemory": "4Gi"}}, "only one of gpu, gpuMemory and migProfile"),
        ({"type": "training", "serving": {}}, "serving is for type inference only"),
        ({"type": "training", "completions": 2, "parallelism": 3}, "parallelism must not be more than completions"),
    ],
)
def test_apply_of_a_wrong_workload(cluster: Cluster, office: Office, here: str, spec: Json, words: str) -> None:
    """Rules between fields are said in words too."""
    said = cluster.kubectl("apply", "-f", "-", stdin=_manifest("Workload", "w", spec, here), check=False)
    assert words in said
    assert office.admin.get(f"namespaces/{here}/workloads").names == []


def test_applied_is_seen_by_us(cluster: Cluster, office: Office, here: str) -> None:
    """What kubectl applied is read, listed and watched through our server."""
    path = f"namespaces/{here}/workloads"
    with office.admin.watch(path) as stream:
        cluster.kubectl("apply", "-f", "-", stdin=_manifest("Workload", "w", WORK, here))
        assert stream.names(1) == [("ADDED", "w")]
    assert office.admin.get(f"{path}/w").ok()["spec"] == WORK
    assert office.admin.get(path).names == ["w"]


def test_ours_is_seen_by_kubectl(cluster: Cluster, office: Office, here: str) -> None:
    """What came through our server is there for kubectl."""
    office.admin.post(f"namespaces/{here}/workloads", named("w", WORK)).ok(201)
    shown = json.loads(cluster.kubectl("get", "workload", "w", "-n", here, "-o", "json"))
    assert shown["spec"] == {**WORK, "subject": "admin"}


def test_changed_by_both(cluster: Cluster, office: Office, here: str) -> None:
    """Neither undoes the other's change."""
    path = f"namespaces/{here}/workloads"
    cluster.kubectl("apply", "-f", "-", stdin=_manifest("Workload", "w", WORK, here))
    office.admin.patch(f"{path}/w", {"spec": {"description": "ours"}}).ok()
    cluster.kubectl("label", "workload", "w", "-n", here, "team=a")
    seen = office.admin.get(f"{path}/w").ok()
    assert seen["metadata"]["labels"] == {"team": "a"}
    assert seen["spec"] == {**WORK, "description": "ours"}


def test_deleted_by_kubectl(cluster: Cluster, office: Office, here: str) -> None:
    """What kubectl deleted is gone for us."""
    path = f"namespaces/{here}/workloads"
    office.admin.post(path, named("w", WORK)).ok(201)
    cluster.kubectl("delete", "workload", "w", "-n", here)
    office.admin.get(f"{path}/w").refused(404)


def test_project_becomes_ready(cluster: Cluster, office: Office) -> None:
    """A project made with kubectl gets its namespace and becomes ready, as if made through us."""
    name = unique("team")
    cluster.kubectl("apply", "-f", "-", stdin=_manifest("Project", name, {"quota": {"gpu": 2}}))
    cluster.kubectl("wait", f"project/{name}", "--for=jsonpath={.status.phase}=Ready", "--timeout=60s")
    labels = json.loads(cluster.kubectl("get", "namespace", f"runai-{name}", "-o", "json"))["metadata"]["labels"]
    assert labels["aliquot.dev/project"] == name


def test_rule_made_with_kubectl(cluster: Cluster, office: Office) -> None:
    """An access rule made with kubectl is in force in our server."""
    ann, rule = office.person(), unique("rule")
    spec = {"subject": {"kind": "user", "name": ann.name}, "role": "viewer", "scope": {"kind": "cluster"}}
    cluster.kubectl("apply", "-f", "-", stdin=_manifest("AccessRule", rule, spec))
    until(lambda: office.roles(ann) == ["viewer"])


def test_unknown_fields_of_a_pod_survive(cluster: Cluster, office: Office, here: str) -> None:
    """A field of a pod that we do not know stays when the pod is changed through us."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": here},
        "spec": {"containers": [{"name": "main", "image": "none"}], "shareProcessNamespace": True},
    }
    until(lambda: "default" in cluster.kubectl("get", "serviceaccounts", "-n", here, "-o", "name"))
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    office.admin.patch(f"namespaces/{here}/pods/p", {"metadata": {"labels": {"team": "a"}}}).ok()
    seen = json.loads(cluster.kubectl("get", "pod", "p", "-n", here, "-o", "json"))
    assert seen["spec"]["shareProcessNamespace"] is True
    assert seen["metadata"]["labels"] == {"team": "a"}


def test_secrets_of_users_stay_inside(cluster: Cluster, office: Office) -> None:
    """What our server hides it hides also when kubectl wrote it."""
    name = unique("user")
    cluster.kubectl("apply", "-f", "-", stdin=_manifest("User", name, {"passwordHash": "scrypt$secret"}))
    assert b"scrypt$secret" not in office.admin.get(f"users/{name}").raw
    assert b"scrypt$secret" not in office.admin.get("users").raw


def test_hidden_notes_survive(cluster: Cluster, office: Office) -> None:
    """Read, change and write back through us keeps what kubectl noted for its next apply."""
    name = unique("user")
    cluster.kubectl("apply", "-f", "-", stdin=_manifest("User", name, {"passwordHash": "scrypt$secret"}))
    seen = office.admin.get(f"users/{name}").ok()
    office.admin.put(f"users/{name}", {**seen, "spec": {**seen["spec"], "firstName": "Ann"}}).ok()
    stored = json.loads(cluster.kubectl("get", "user.aliquot.dev", name, "-o", "json"))
    assert "kubectl.kubernetes.io/last-applied-configuration" in stored["metadata"]["annotations"]
    assert stored["spec"]["passwordHash"] == "scrypt$secret"
