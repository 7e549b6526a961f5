"""With a kubeconfig that the platform issued, everything outside the project's namespace is denied by the API server.

Which verbs, resources and namespaces there are is asked of the API server itself, so that nothing is forgotten.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from access.access_reviews import AccessQuestion, allowed, questions
from access.team import CLUSTER, Team, in_project
from aliquot.api import KINDS
from aliquot.auth.roles import REPORT, ROLES, ObjectScope, ScopedRole
from aliquot.auth.roles import allowed as rest_allows
from aliquot.backends.kubernetes.kubeconfigs import Kubeconfigs
from aliquot.backends.kubernetes.rbac import apply, read_namespace
from aliquot.backends.kubernetes.rbac_plan import decide
from aliquot.backends.kubernetes.unstructured_kinds import ROLE_BINDING, SECRET, SERVICE_ACCOUNT
from aliquot.backends.kubernetes.v2alpha1.definitions import RUNAI_KINDS
from aliquot.errors import Denied
from aliquot.labels import SYSTEM_NAMESPACE, namespace_of
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http import kubeconfig
from support.kubernetes.cluster import Cluster

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("access")]

# What Kubernetes lets everybody ask who has proved who he is: about himself.
FOR_EVERYBODY = {
    ("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
    ("create", "authorization.k8s.io", "selfsubjectrulesreviews"),
    ("create", "authentication.k8s.io", "selfsubjectreviews"),
}
ACTIONS = {
    "view": ("get", "list", "watch"),
    "create": ("create",),
    "edit": ("patch", "update"),
    "delete": ("delete",),
}


@dataclass(frozen=True)
class Holder:
    """Somebody with an issued kubeconfig."""

    role: str
    project: str
    name: str
    file: Path
    driver: KubernetesDriver
    cluster: Cluster

    @property
    def space(self) -> str:
        return namespace_of(self.project)

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """What kubectl says with the issued file, and nothing else."""
        command = [str(self.cluster.binaries / "kubectl"), f"--kubeconfig={self.file}", *words]
        environment = {"HOME": str(self.file.parent), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, timeout=120, check=False
        )
        return done.stdout + done.stderr


@pytest_asyncio.fixture(params=["l1-researcher", "system-administrator"])
async def holder(
    request: pytest.FixtureRequest, team: Team, admin: KubernetesDriver, cluster: Cluster, tmp_path: Path
) -> AsyncIterator[Holder]:
    """A researcher of one project; and somebody who may do everything in the whole cluster, asked for one project."""
    project = await team.project()
    name = await team.user()
    await team.rule(
        request.param, CLUSTER if request.param == "system-administrator" else in_project(project), user=name
    )
    issued = await Kubeconfigs(admin).issue(project, name, 3600)
    file = tmp_path / "issued"
    file.write_text(json.dumps(issued.kubeconfig))
    async with KubernetesDriver(kubeconfig.load([file])) as driver:
        yield Holder(request.param, project, name, file, driver, cluster)


async def test_everything_elsewhere_is_denied(
    holder: Holder, team: Team, admin: KubernetesDriver, namespace: str
) -> None:
    """No verb on any resource in any other namespace or in the cluster as a whole, but for questions about oneself."""
    other = await team.project()
    await team.rule("viewer", in_project(other), user="somebody-else")
    await apply(admin, decide(await read_namespace(admin, namespace_of(other))))
    asks = await questions(admin, [namespace_of(other), namespace, "default", "kube-system", SYSTEM_NAMESPACE])
    granted = await allowed(holder.driver, asks)
    print(f"\n{len(asks)} questions about {len({ask.resource for ask in asks})} resources, {len(granted)} granted")
    assert len(asks) > 3000
    assert {(ask.verb, ask.group, ask.resource) for ask in granted} == FOR_EVERYBODY


async def test_at_home_it_is_what_our_api_allows(holder: Holder, admin: KubernetesDriver) -> None:
    """In the project's own namespace, every verb on every resource: what the role has in our API, and nothing else."""
    asks = [ask for ask in await questions(admin, [holder.space]) if ask.namespace == holder.space]
    granted = {(ask.verb, ask.group, ask.resource) for ask in await allowed(holder.driver, asks)}
    served = {(ask.group, ask.resource) for ask in asks}
    assert granted == {one for one in wanted(holder.role) if one[1:] in served}
    assert ("create", "aliquot.dev", "workloads") in granted


def wanted(role: str) -> set[tuple[str, str, str]]:
    """The same from the table of our API."""
    found: set[tuple[str, str, str]] = set()
    named = [*((kind, kind.name) for kind in KINDS if kind.namespaced), *((kind, "Workload") for kind in RUNAI_KINDS)]
    for kind, name in named:
        may = {
            act: rest_allows([ScopedRole(role, "project", "p")], act, name, ObjectScope("p"))
            for act in (*ACTIONS, REPORT)
        }
        found |= {(verb, kind.group, kind.plural) for act, verbs in ACTIONS.items() if may[act] for verb in verbs}
        status = [*(["get"] if may["view"] else []), *(["patch", "update"] if may[REPORT] else [])]
        found |= {(verb, kind.group, f"{kind.plural}/status") for verb in status if kind.has_status}
        if kind.name == "Pod":
            talk = ("attach", "exec", "portforward") if may["edit"] else ()
            found |= {(verb, "", f"pods/{part}") for part in talk for verb in ("create", "get")}
            found |= {("get", "", "pods/log")} if may["view"] else set()
            found |= {("create", "", "pods/binding")} if may[REPORT] else set()
    return found


async def test_every_role_by_name(team: Team, admin: KubernetesDriver) -> None:
    """For each role, a Kubernetes user with the name in the rule may do what our API allows the role, and no more."""
    project = await team.project()
    space = namespace_of(project)
    users = {role: await team.member(project, role) for role in ROLES}
    await apply(admin, decide(await read_namespace(admin, space)))
    kinds = {(kind.group, kind.plural) for kind in KINDS if kind.namespaced}
    asks = [
        AccessQuestion(verb, group, resource, place)
        for group, resource in sorted(kinds)
        for verb in ("get", "list", "watch", "create", "patch", "update", "delete", "deletecollection")
        for place in (space, "default", "")
    ]
    for role, user in users.items():
        granted = await allowed(admin, asks, user=user)
        assert {ask.namespace for ask in granted} <= {space}
        found = {(ask.verb, ask.group, ask.resource) for ask in granted}
        assert found == {one for one in wanted(role) if one[1:] in kinds}, role


DENIED = [
    # Elsewhere, by what people would try.
    "get pods -A",
    "get workloads -A",
    "get secrets -n kube-system",
    "get nodes",
    "get projects",
    "get accessrules.aliquot.dev",
    "get users.aliquot.dev",
    "get --raw /api/v1/nodes/any/proxy/pods",
    "get --raw /metrics",
    "delete pod any -n default",
    "exec any -n kube-system -- id",
    "logs any -n default",
    "create namespace mine",
    "label namespace {space} aliquot.dev/project=other --overwrite",
    "create token default -n kube-system",
    "create clusterrolebinding me --clusterrole=cluster-admin --serviceaccount=runai:any",
    "create rolebinding me -n default --clusterrole=admin --serviceaccount=runai:any",
    # At home, where more could be had.
    "get secrets -n {space}",
    "get serviceaccounts -n {space}",
    "create token default -n {space}",
    "create rolebinding me -n {space} --clusterrole=admin --serviceaccount=runai:any",
    "create role all -n {space} --verb=* --resource=*",
    "get rolebindings -n {space}",
    "patch rolebinding any -n {space} -p {{}}",
    # As somebody else.
    "get secrets -n kube-system --as=admin --as-group=system:masters",
    "get pods -n {space} --as=system:serviceaccount:kube-system:default",
    "create token {account} -n runai",
    "get serviceaccount {account} -n runai",
]


async def test_kubectl_is_refused(holder: Holder) -> None:
    """Real requests: the API server says no to each."""
    names = {"space": holder.space, "account": f"{holder.space}.{holder.name}"}
    for line in DENIED:
        said = holder.kubectl(*(word.format(**names) for word in line.split()))
        assert "Forbidden" in said or "forbidden" in said or "You must be logged in" in said, f"{line}: {said}"
        assert "Unauthorized" not in said, line


async def test_kubectl_works_at_home(holder: Holder) -> None:
    """Without naming a namespace: list, submit, describe and delete a workload."""
    job = {
        "apiVersion": "aliquot.dev/v1",
        "kind": "Workload",
        "metadata": {"name": "train"},
        "spec": {"type": "training", "image": "pytorch", "compute": {"gpu": 1}},
    }
    assert "No resources found in " + holder.space in holder.kubectl("get", "workloads,pods")
    assert holder.kubectl("apply", "-f", "-", stdin=json.dumps(job)) == "workload.aliquot.dev/train created\n"
    assert "train" in holder.kubectl("get", "workloads", "-o", "name")
    assert holder.kubectl("delete", "workload", "train").startswith('workload.aliquot.dev "train" deleted')


async def test_no_pod_speaks_for_another(holder: Holder, team: Team, admin: KubernetesDriver) -> None:
    """Accounts of others are not where pods are made, so no pod can be started as one."""
    boss = await team.member(holder.project, "editor")
    await Kubeconfigs(admin).issue(holder.project, boss, 3600)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "spy", "namespace": holder.space},
        "spec": {"serviceAccountName": f"{holder.space}.{boss}", "containers": [{"name": "c", "image": "x"}]},
    }
    said = holder.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    assert f'serviceaccount "{holder.space}.{boss}" not found' in said


async def test_own_binding_cannot_be_widened(holder: Holder, admin: KubernetesDriver) -> None:
    """The binding that gives the rights is not its holder's to change."""
    (mine, *_) = (await admin.list(ROLE_BINDING, holder.space)).items
    with pytest.raises(Denied):
        await holder.driver.patch(ROLE_BINDING, mine.name, holder.space, {"subjects": []})
    with pytest.raises(Denied):
        await holder.driver.delete(ROLE_BINDING, mine.name, holder.space)
    with pytest.raises(Denied):
        await holder.driver.list(SECRET, SYSTEM_NAMESPACE)
    with pytest.raises(Denied):
        await holder.driver.create(
            SERVICE_ACCOUNT, Document({"metadata": {"name": "mine", "namespace": SYSTEM_NAMESPACE}})
        )
