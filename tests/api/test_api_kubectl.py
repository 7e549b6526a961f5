"""kubectl and our API work on the same objects."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from api.accounts import Accounts
from api.http_client import Api, Json, named, unique
from support.kubernetes.cluster import Cluster
from support.stores.process import ServerProcess
from support.waiting import wait_until

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("kube")]
WORK = {"type": "training", "image": "none"}


@pytest.fixture
def namespace(kube_server: ServerProcess, cluster: Cluster) -> str:
    """A namespace that no other test uses."""
    return cluster.create_namespace()


@pytest.fixture
def accounts(kube_server: ServerProcess) -> Iterator[Accounts]:
    api = Api(kube_server.url, kube_server.token)
    yield Accounts(api)
    api.close()


def _manifest(kind: str, name: str, spec: Json, namespace: str = "") -> str:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return json.dumps({"apiVersion": "aliquot.dev/v1", "kind": kind, "metadata": meta, "spec": spec})


def _heads(text: str) -> list[list[str]]:
    """The heading of each table."""
    return [line.split() for line in text.splitlines() if "NAME" in line.split()]


def test_get_projects_and_workloads(cluster: Cluster, accounts: Accounts, namespace: str) -> None:
    """`kubectl get projects,workloads -A` shows both with their columns."""
    project = accounts.project()
    accounts.admin.post(f"namespaces/{namespace}/workloads", named("train-1", WORK)).ok(201)
    shown = cluster.kubectl("get", "projects,workloads", "-A")
    assert f"project.aliquot.dev/{project} " in shown
    assert "workload.aliquot.dev/train-1 " in shown
    projects, workloads = _heads(shown)
    assert projects == ["NAME", "DEPARTMENT", "GPU", "QUOTA", "GPUS", "PHASE", "AGE"]
    assert workloads == ["NAMESPACE", "NAME", "TYPE", "PHASE", "USER", "GPUS", "AGE"]


@pytest.mark.parametrize("word", ["proj", "projects", "project", "wl", "workloads", "dept", "np", "ar", "tok", "usr"])
def test_short_names(cluster: Cluster, accounts: Accounts, word: str) -> None:
    """Every kind has a short name."""
    cluster.kubectl("get", word, "-A")


def test_category(cluster: Cluster, accounts: Accounts, namespace: str) -> None:
    """`kubectl get aliquot` shows all our objects in a namespace."""
    accounts.admin.post(f"namespaces/{namespace}/workloads", named("train-1", WORK)).ok(201)
    accounts.admin.post(f"namespaces/{namespace}/templates", named("big")).ok(201)
    shown = cluster.kubectl("get", "aliquot", "-n", namespace, "-o", "name").split()
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
def test_explain(cluster: Cluster, accounts: Accounts, path: str, sentence: str) -> None:
    """`kubectl explain` shows the description of a field."""
    shown = cluster.kubectl("explain", path)
    assert sentence in " ".join(shown.split())
    assert "<no description>" not in shown.lower()
    assert "DESCRIPTION:\n    <empty>" not in shown


def test_explain_leaves_no_field_out(cluster: Cluster, accounts: Accounts) -> None:
    """Every field of a workload's spec has a description."""
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
def test_apply_of_a_wrong_project(cluster: Cluster, accounts: Accounts, spec: Json, path: str) -> None:
    """`kubectl apply` of an invalid project names the field and creates nothing."""
    name = unique("wrong")
    output = cluster.kubectl("apply", "-f", "-", stdin=_manifest("Project", name, spec), check=False)
    assert path in output
    assert len(output) < 600
    accounts.admin.get(f"projects/{name}").refused(404)


@pytest.mark.parametrize(
    "spec, words",
    [
        ({"type": "traning"}, "spec.type"),
        ({"type": "training", "compute": {"gpu": 1, "gpuMemory": "4Gi"}}, "only one of gpu, gpuMemory and migProfile"),
        ({"type": "training", "serving": {}}, "serving is for type inference only"),
        ({"type": "training", "completions": 2, "parallelism": 3}, "parallelism must not be more than completions"),
    ],
)
def test_apply_of_a_wrong_workload(
    cluster: Cluster, accounts: Accounts, namespace: str, spec: Json, words: str
) -> None:
    """Rules that span fields have a readable message too."""
    output = cluster.kubectl("apply", "-f", "-", stdin=_manifest("Workload", "w", spec, namespace), check=False)
    assert words in output
    assert accounts.admin.get(f"namespaces/{namespace}/workloads").names == []


def test_applied_is_seen_by_us(cluster: Cluster, accounts: Accounts, namespace: str) -> None:
    """An object that kubectl applied can be read, listed and watched through our server."""
    path = f"namespaces/{namespace}/workloads"
    with accounts.admin.watch(path) as stream:
        cluster.kubectl("apply", "-f", "-", stdin=_manifest("Workload", "w", WORK, namespace))
        assert stream.names(1) == [("ADDED", "w")]
    assert accounts.admin.get(f"{path}/w").ok()["spec"] == WORK
    assert accounts.admin.get(path).names == ["w"]


def test_ours_is_seen_by_kubectl(cluster: Cluster, accounts: Accounts, namespace: str) -> None:
    """An object that was created through our server can be read with kubectl."""
    accounts.admin.post(f"namespaces/{namespace}/workloads", named("w", WORK)).ok(201)
    shown = json.loads(cluster.kubectl("get", "workload", "w", "-n", namespace, "-o", "json"))
    assert shown["spec"] == {**WORK, "subject": "admin"}


def test_changed_by_both(cluster: Cluster, accounts: Accounts, namespace: str) -> None:
    """Changes through kubectl and through our server do not undo each other."""
    path = f"namespaces/{namespace}/workloads"
    cluster.kubectl("apply", "-f", "-", stdin=_manifest("Workload", "w", WORK, namespace))
    accounts.admin.patch(f"{path}/w", {"spec": {"description": "ours"}}).ok()
    cluster.kubectl("label", "workload", "w", "-n", namespace, "team=a")
    current = accounts.admin.get(f"{path}/w").ok()
    assert current["metadata"]["labels"] == {"team": "a"}
    assert current["spec"] == {**WORK, "description": "ours"}


def test_deleted_by_kubectl(cluster: Cluster, accounts: Accounts, namespace: str) -> None:
    """An object that kubectl deleted is not found through our server."""
    path = f"namespaces/{namespace}/workloads"
    accounts.admin.post(path, named("w", WORK)).ok(201)
    cluster.kubectl("delete", "workload", "w", "-n", namespace)
    accounts.admin.get(f"{path}/w").refused(404)


def test_project_becomes_ready(cluster: Cluster, accounts: Accounts) -> None:
    """A project that kubectl created gets its namespace and becomes ready."""
    name = unique("team")
    cluster.kubectl("apply", "-f", "-", stdin=_manifest("Project", name, {"quota": {"gpu": 2}}))
    cluster.kubectl("wait", f"project/{name}", "--for=jsonpath={.status.phase}=Ready", "--timeout=60s")
    labels = json.loads(cluster.kubectl("get", "namespace", f"runai-{name}", "-o", "json"))["metadata"]["labels"]
    assert labels["aliquot.dev/project"] == name


def test_rule_made_with_kubectl(cluster: Cluster, accounts: Accounts) -> None:
    """An access rule that kubectl created is in force in our server."""
    ann, rule = accounts.user(), unique("rule")
    spec = {"subject": {"kind": "user", "name": ann.name}, "role": "viewer", "scope": {"kind": "cluster"}}
    cluster.kubectl("apply", "-f", "-", stdin=_manifest("AccessRule", rule, spec))
    wait_until(lambda: accounts.roles(ann) == ["viewer"], "the role")


def test_unknown_fields_of_a_pod_survive(cluster: Cluster, accounts: Accounts, namespace: str) -> None:
    """Fields of a pod that our types do not have survive a change through our server."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"containers": [{"name": "main", "image": "none"}], "shareProcessNamespace": True},
    }
    wait_until(
        lambda: "default" in cluster.kubectl("get", "serviceaccounts", "-n", namespace, "-o", "name"),
        "the default service account",
    )
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    accounts.admin.patch(f"namespaces/{namespace}/pods/p", {"metadata": {"labels": {"team": "a"}}}).ok()
    current = json.loads(cluster.kubectl("get", "pod", "p", "-n", namespace, "-o", "json"))
    assert current["spec"]["shareProcessNamespace"] is True
    assert current["metadata"]["labels"] == {"team": "a"}


def test_secrets_of_users_stay_inside(cluster: Cluster, accounts: Accounts) -> None:
    """Hidden fields are hidden also when kubectl wrote them."""
    name = unique("user")
    cluster.kubectl("apply", "-f", "-", stdin=_manifest("User", name, {"passwordHash": "scrypt$secret"}))
    assert b"scrypt$secret" not in accounts.admin.get(f"users/{name}").raw
    assert b"scrypt$secret" not in accounts.admin.get("users").raw


def test_last_applied_annotation_survives(cluster: Cluster, accounts: Accounts) -> None:
    """Reading and writing back an object keeps kubectl's last-applied annotation."""
    name = unique("user")
    cluster.kubectl("apply", "-f", "-", stdin=_manifest("User", name, {"passwordHash": "scrypt$secret"}))
    current = accounts.admin.get(f"users/{name}").ok()
    accounts.admin.put(f"users/{name}", {**current, "spec": {**current["spec"], "firstName": "Ann"}}).ok()
    stored = json.loads(cluster.kubectl("get", "user.aliquot.dev", name, "-o", "json"))
    assert "kubectl.kubernetes.io/last-applied-configuration" in stored["metadata"]["annotations"]
    assert stored["spec"]["passwordHash"] == "scrypt$secret"
