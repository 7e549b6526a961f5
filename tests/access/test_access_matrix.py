"""With a kubeconfig that the platform issued, everything outside the project's namespace is denied by the API server.

The API server itself lists the verbs and resources, so that none is forgotten.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from access.access_reviews import AccessQuestion, all_questions, allowed
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

# Kubernetes allows every authenticated user to question about itself.
ALLOWED_TO_EVERYONE = {
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
    """A user with an issued kubeconfig."""

    role: str
    project: str
    name: str
    file: Path
    driver: KubernetesDriver
    cluster: Cluster

    @property
    def space(self) -> str:
        return namespace_of(self.project)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """The output of kubectl with the issued file only."""
        command = [str(self.cluster.binaries / "kubectl"), f"--kubeconfig={self.file}", *arguments]
        environment = {"HOME": str(self.file.parent), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, timeout=120, check=False
        )
        return done.stdout + done.stderr


@pytest_asyncio.fixture(params=["l1-researcher", "system-administrator"])
async def holder(
    request: pytest.FixtureRequest, team: Team, admin: KubernetesDriver, cluster: Cluster, tmp_path: Path
) -> AsyncIterator[Holder]:
    """A researcher of one project, and an administrator of the cluster, each with a kubeconfig for one project."""
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


async def test_other_namespaces_are_denied(holder: Holder, team: Team, admin: KubernetesDriver, namespace: str) -> None:
    """No verb on any resource is allowed in another namespace or in the cluster, except reviews of one's own rights."""
    other = await team.project()
    await team.rule("viewer", in_project(other), user="somebody-else")
    await apply(admin, decide(await read_namespace(admin, namespace_of(other))))
    questions = await all_questions(admin, [namespace_of(other), namespace, "default", "kube-system", SYSTEM_NAMESPACE])
    granted = await allowed(holder.driver, questions)
    resources = {question.resource for question in questions}
    print(f"\n{len(questions)} questions about {len(resources)} resources, {len(granted)} granted")
    assert len(questions) > 3000
    assert {(question.verb, question.group, question.resource) for question in granted} == ALLOWED_TO_EVERYONE


async def test_own_namespace_matches_the_rest_api(holder: Holder, admin: KubernetesDriver) -> None:
    """In the project's namespace a role may do exactly what the REST API allows it, for every verb and resource."""
    questions = [
        question for question in await all_questions(admin, [holder.space]) if question.namespace == holder.space
    ]
    granted = {
        (question.verb, question.group, question.resource) for question in await allowed(holder.driver, questions)
    }
    served = {(question.group, question.resource) for question in questions}
    assert granted == {right for right in wanted(holder.role) if right[1:] in served}
    assert ("create", "aliquot.dev", "workloads") in granted


def wanted(role: str) -> set[tuple[str, str, str]]:
    """(verb, group, resource) that the REST API's table grants the role."""
    rights: set[tuple[str, str, str]] = set()
    named = [*((kind, kind.name) for kind in KINDS if kind.namespaced), *((kind, "Workload") for kind in RUNAI_KINDS)]
    for kind, name in named:
        may = {
            act: rest_allows([ScopedRole(role, "project", "p")], act, name, ObjectScope("p"))
            for act in (*ACTIONS, REPORT)
        }
        rights |= {(verb, kind.group, kind.plural) for act, verbs in ACTIONS.items() if may[act] for verb in verbs}
        status = [*(["get"] if may["view"] else []), *(["patch", "update"] if may[REPORT] else [])]
        rights |= {(verb, kind.group, f"{kind.plural}/status") for verb in status if kind.has_status}
        if kind.name == "Pod":
            connect = ("attach", "exec", "portforward") if may["edit"] else ()
            rights |= {(verb, "", f"pods/{part}") for part in connect for verb in ("create", "get")}
            rights |= {("get", "", "pods/log")} if may["view"] else set()
            rights |= {("create", "", "pods/binding")} if may[REPORT] else set()
    return rights


async def test_every_role_by_name(team: Team, admin: KubernetesDriver) -> None:
    """For each role, the Kubernetes user named in the rule may do exactly what the REST API allows the role."""
    project = await team.project()
    space = namespace_of(project)
    users = {role: await team.member(project, role) for role in ROLES}
    await apply(admin, decide(await read_namespace(admin, space)))
    kinds = {(kind.group, kind.plural) for kind in KINDS if kind.namespaced}
    questions = [
        AccessQuestion(verb, group, resource, scope)
        for group, resource in sorted(kinds)
        for verb in ("get", "list", "watch", "create", "patch", "update", "delete", "deletecollection")
        for scope in (space, "default", "")
    ]
    for role, user in users.items():
        granted = await allowed(admin, questions, user=user)
        assert {question.namespace for question in granted} <= {space}
        rights = {(question.verb, question.group, question.resource) for question in granted}
        assert rights == {right for right in wanted(role) if right[1:] in kinds}, role


DENIED = [
    # In other namespaces and in the cluster.
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
    # In the own namespace: what would allow to get more rights.
    "get secrets -n {space}",
    "get serviceaccounts -n {space}",
    "create token default -n {space}",
    "create rolebinding me -n {space} --clusterrole=admin --serviceaccount=runai:any",
    "create role all -n {space} --verb=* --resource=*",
    "get rolebindings -n {space}",
    "patch rolebinding any -n {space} -p {{}}",
    # As another user.
    "get secrets -n kube-system --as=admin --as-group=system:masters",
    "get pods -n {space} --as=system:serviceaccount:kube-system:default",
    "create token {account} -n runai",
    "get serviceaccount {account} -n runai",
]


async def test_kubectl_is_refused(holder: Holder) -> None:
    """The API server refuses each of these requests."""
    names = {"space": holder.space, "account": f"{holder.space}.{holder.name}"}
    for line in DENIED:
        output = holder.kubectl(*(word.format(**names) for word in line.split()))
        assert "Forbidden" in output or "forbidden" in output or "You must be logged in" in output, f"{line}: {output}"
        assert "Unauthorized" not in output, line


async def test_kubectl_works_in_the_own_namespace(holder: Holder) -> None:
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


async def test_no_pod_runs_as_another_user(holder: Holder, team: Team, admin: KubernetesDriver) -> None:
    """Accounts of other users are not in the project's namespace, so no pod can run as one."""
    editor = await team.member(holder.project, "editor")
    await Kubeconfigs(admin).issue(holder.project, editor, 3600)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "spy", "namespace": holder.space},
        "spec": {"serviceAccountName": f"{holder.space}.{editor}", "containers": [{"name": "c", "image": "x"}]},
    }
    output = holder.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    assert f'serviceaccount "{holder.space}.{editor}" not found' in output


async def test_own_binding_cannot_be_widened(holder: Holder, admin: KubernetesDriver) -> None:
    """A user cannot change the binding that grants its rights."""
    (binding, *_) = (await admin.list(ROLE_BINDING, holder.space)).items
    with pytest.raises(Denied):
        await holder.driver.patch(ROLE_BINDING, binding.name, holder.space, {"subjects": []})
    with pytest.raises(Denied):
        await holder.driver.delete(ROLE_BINDING, binding.name, holder.space)
    with pytest.raises(Denied):
        await holder.driver.list(SECRET, SYSTEM_NAMESPACE)
    with pytest.raises(Denied):
        await holder.driver.create(
            SERVICE_ACCOUNT, Document({"metadata": {"name": "mine", "namespace": SYSTEM_NAMESPACE}})
        )
