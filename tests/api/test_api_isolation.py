"""Projects are isolated from each other, and users cannot raise their own permissions."""

from __future__ import annotations

import pytest

from aliquot.api import KINDS
from api.accounts import CLUSTER, Accounts, in_department, in_project, project_path
from api.http_client import Api, named, unique
from support.waiting import wait_until

WORK = {"type": "training", "image": "none"}


def test_list_shows_the_own_project_only(accounts: Accounts) -> None:
    """A list over all namespaces has only objects that the user may view."""
    own, other = accounts.project(), accounts.project()
    ann = accounts.member(own)
    for project in (own, other):
        accounts.admin.post(f"{project_path(project)}/workloads", named("w", WORK)).ok(201)
    namespaces = [item["metadata"]["namespace"] for item in ann.api.get("workloads").ok()["items"]]
    assert namespaces == [f"runai-{own}"]


@pytest.mark.parametrize("kind", ["projects", "namespaces"])
def test_lists_of_projects(accounts: Accounts, kind: str) -> None:
    """A member sees only the own project and namespace."""
    own, other = accounts.project(), accounts.project()
    ann = accounts.member(own)
    prefix = "runai-" if kind == "namespaces" else ""
    assert ann.api.get(kind).names == [prefix + own]
    ann.api.get(f"{kind}/{prefix}{other}").refused(403)


@pytest.mark.parametrize("kind", ["departments", "users", "accessrules", "schedulingpolicies"])
def test_nothing_of_the_cluster(accounts: Accounts, kind: str) -> None:
    """A member of a project does not see objects of the cluster."""
    ann = accounts.member(accounts.project())
    assert ann.api.get(kind).names == []


def test_watch_shows_the_own_project_only(accounts: Accounts) -> None:
    """A watch over all namespaces has only objects that the user may view."""
    own, other = accounts.project(), accounts.project()
    ann = accounts.member(own)
    with ann.api.watch("workloads") as stream:
        accounts.admin.post(f"{project_path(other)}/workloads", named("secret", WORK)).ok(201)
        accounts.admin.delete(f"{project_path(other)}/workloads/secret").ok()
        accounts.admin.post(f"{project_path(own)}/workloads", named("open", WORK)).ok(201)
        assert stream.names(1) == [("ADDED", "open")]


def test_watch_of_another_project(accounts: Accounts) -> None:
    """A watch of another project's namespace is denied."""
    own, other = accounts.project(), accounts.project()
    ann = accounts.member(own)
    version = ann.api.get(f"{project_path(own)}/workloads").version
    ann.api.get(f"{project_path(other)}/workloads", watch="true", resourceVersion=version).refused(403)


def test_department_sees_a_project_come_and_go(accounts: Accounts) -> None:
    """A department administrator sees the projects of the department come and go, and no others."""
    department = unique("dept")
    accounts.admin.post("departments", named(department)).ok(201)
    boss = accounts.grant(accounts.user("boss"), "department-administrator", in_department(department))
    own, other = unique("own"), unique("other")
    with boss.api.watch("projects") as stream:
        for name, spec in ((other, {}), (own, {"department": department})):
            accounts.admin.post("projects", named(name, spec)).ok(201)
            accounts.ready(name)
            accounts.admin.delete(f"projects/{name}").ok()
        seen = [stream.next()]
        while seen[-1]["type"] != "DELETED":
            seen.append(stream.next())
    assert seen[0]["type"] == "ADDED"
    assert {event["object"]["metadata"]["name"] for event in seen} == {own}


def test_department_administrator_makes_projects(accounts: Accounts) -> None:
    """A department administrator creates projects in the own department only."""
    department = unique("dept")
    accounts.admin.post("departments", named(department)).ok(201)
    boss = accounts.grant(accounts.user("boss"), "department-administrator", in_department(department))
    name = unique("team")
    boss.api.post("projects", named(name, {"department": department})).ok(201)
    wait_until(
        lambda: boss.api.patch(f"projects/{name}", {"spec": {"description": "x"}}).status == 200,
        "the role to allow the change",
    )
    boss.api.post("projects", named(unique("team"))).refused(403)
    boss.api.post("projects", named(unique("team"), {"department": "default"})).refused(403)


def test_project_is_not_moved_elsewhere(accounts: Accounts) -> None:
    """A department administrator cannot move a project to another department."""
    department = unique("dept")
    accounts.admin.post("departments", named(department)).ok(201)
    boss = accounts.grant(accounts.user("boss"), "department-administrator", in_department(department))
    name = unique("team")
    boss.api.post("projects", named(name, {"department": department})).ok(201)
    wait_until(lambda: boss.api.get(f"projects/{name}").status == 200, "the role to allow the read")
    seen = boss.api.get(f"projects/{name}").ok()
    boss.api.patch(f"projects/{name}", {"spec": {"department": None}}).refused(403)
    boss.api.put(f"projects/{name}", {**seen, "spec": {}}).refused(403)
    assert accounts.admin.get(f"projects/{name}").ok()["spec"]["department"] == department


def test_no_rule_no_view(accounts: Accounts) -> None:
    """A user without an access rule cannot list anything."""
    ann = accounts.user()
    for kind in KINDS:
        if kind.name != "Token":
            ann.api.get(kind.plural).refused(403)


def test_group_rule(accounts: Accounts) -> None:
    """A rule for a group applies to its members."""
    project, group = accounts.project(), unique("group")
    ann, bob = accounts.user(groups=[group]), accounts.user("bob")
    accounts.rule("l1-researcher", in_project(project), group=group)
    wait_until(lambda: ann.api.get(f"{project_path(project)}/workloads").status == 200, "the role to allow the list")
    bob.api.get(f"{project_path(project)}/workloads").refused(403)


def test_leaving_a_group(accounts: Accounts) -> None:
    """A user who leaves a group loses its roles."""
    project, group = accounts.project(), unique("group")
    ann = accounts.user(groups=[group])
    accounts.rule("l1-researcher", in_project(project), group=group)
    wait_until(lambda: ann.api.get(f"{project_path(project)}/workloads").status == 200, "the role to allow the list")
    accounts.admin.patch(f"users/{ann.name}", {"spec": {"groups": []}}).ok()
    wait_until(lambda: ann.api.get(f"{project_path(project)}/workloads").status == 403, "the role to be revoked")


def test_group_is_not_a_user(accounts: Accounts) -> None:
    """A rule for a group does not apply to a user of the same name."""
    ann = accounts.user()
    bob = accounts.user("bob", groups=[ann.name])
    accounts.rule("viewer", CLUSTER, group=ann.name)
    wait_until(lambda: accounts.roles(bob), "the user's role")
    assert accounts.roles(ann) == []


def test_deleted_rule(accounts: Accounts) -> None:
    """A deleted rule no longer applies."""
    ann = accounts.user()
    rule = accounts.rule("viewer", CLUSTER, user=ann.name)
    wait_until(lambda: ann.api.get("projects").status == 200, "the role to allow the list")
    accounts.admin.delete(f"accessrules/{rule}").ok()
    wait_until(lambda: ann.api.get("projects").status == 403, "the role to be revoked")


def test_rules_add_up(accounts: Accounts) -> None:
    """Two rules allow what either of them allows."""
    first, second = accounts.project(), accounts.project()
    ann = accounts.member(first)
    accounts.rule("viewer", in_project(second), user=ann.name)
    wait_until(lambda: ann.api.get(f"{project_path(second)}/workloads").status == 200, "the role to allow the list")
    ann.api.post(f"{project_path(first)}/workloads", named("w", WORK)).ok(201)
    ann.api.post(f"{project_path(second)}/workloads", named("w", WORK)).refused(403)


def test_templates_for_everybody(accounts: Accounts) -> None:
    """Every member can read templates of the system namespace, and none can write them."""
    ann, name = accounts.member(accounts.project()), unique("template")
    accounts.admin.post("namespaces/runai/templates", named(name)).ok(201)
    ann.api.get(f"namespaces/runai/templates/{name}").ok()
    assert name in ann.api.get("templates").names
    ann.api.patch(f"namespaces/runai/templates/{name}", {"spec": {"description": "x"}}).refused(403)
    ann.api.delete(f"namespaces/runai/templates/{name}").refused(403)
    ann.api.get("namespaces/runai/workloads").refused(403)


# --- privilege escalation

STRONG_IN_A_PROJECT = [
    "l1-researcher",
    "research-manager",
    "editor",
    "department-administrator",
    "system-administrator",
]


def _strong(accounts: Accounts, role: str) -> tuple[str, Api]:
    project = accounts.project()
    return project, accounts.grant(accounts.user("climber"), role, in_project(project)).api


@pytest.mark.parametrize("role", STRONG_IN_A_PROJECT)
def test_no_rule_for_oneself(accounts: Accounts, role: str) -> None:
    """No role in a project allows creating access rules, not even with the name of the project's namespace."""
    project, api = _strong(accounts, role)
    user = api.get("whoami").ok()["user"]
    spec = {"subject": {"kind": "user", "name": user}, "role": "system-administrator", "scope": {"kind": "cluster"}}
    for name in (unique("rule"), f"runai-{project}", project):
        api.post("accessrules", named(name, spec)).refused(403)
    api.patch("accessrules/admin", {"spec": {"subject": {"name": user}}}).refused(403)
    api.delete("accessrules/admin").refused(403)


@pytest.mark.parametrize("role", STRONG_IN_A_PROJECT)
def test_no_group_for_oneself(accounts: Accounts, role: str) -> None:
    """No role in a project allows joining a group or creating users."""
    project, api = _strong(accounts, role)
    user = api.get("whoami").ok()["user"]
    api.patch(f"users/{user}", {"spec": {"groups": ["admins"]}}).refused(403)
    api.patch(f"users/{user}/status", {"spec": {"groups": ["admins"]}}).refused(403)
    for name in (unique("user"), f"runai-{project}"):
        api.post("users", named(name)).refused(403)


@pytest.mark.parametrize("role", STRONG_IN_A_PROJECT)
def test_no_token_of_another(accounts: Accounts, role: str) -> None:
    """No role in a project allows creating a token for another user."""
    project, api = _strong(accounts, role)
    for name in (unique("token"), f"runai-{project}"):
        api.post("tokens", named(name, {"user": "admin"})).refused(403)


@pytest.mark.parametrize("role", STRONG_IN_A_PROJECT)
def test_no_label_on_a_namespace(accounts: Accounts, role: str) -> None:
    """No role in a project allows changing which project owns a namespace."""
    project, api = _strong(accounts, role)
    other = accounts.project()
    for name, owner in ((f"runai-{other}", project), (f"runai-{project}", other), ("runai", project)):
        api.patch(f"namespaces/{name}", {"metadata": {"labels": {"aliquot.dev/project": owner}}}).refused(403)
        api.delete(f"namespaces/{name}").refused(403)
    api.post("namespaces", named(unique("n"), labels={"aliquot.dev/project": project})).refused(403)


def test_namespace_of_another_project(accounts: Accounts) -> None:
    """A project that names another project's namespace gets no access to it, and fails with a message."""
    victim, thief = accounts.project(), unique("thief")
    accounts.admin.post(f"{project_path(victim)}/workloads", named("secret", WORK)).ok(201)
    accounts.admin.post("projects", named(thief, {"namespace": f"runai-{victim}"})).ok(201)
    wait_until(lambda: accounts.phase(thief) == "Failed", "the project to fail")
    ann = accounts.grant(accounts.user(), "system-administrator", in_project(thief))
    ann.api.get(f"{project_path(victim)}/workloads").refused(403)
    assert ann.api.get("workloads").names == []
    assert victim in accounts.admin.get(f"projects/{thief}").ok()["status"]["message"]


def test_namespace_of_a_project_to_come(accounts: Accounts) -> None:
    """A project cannot take the namespace of a project that does not exist yet."""
    later, thief = unique("later"), unique("thief")
    accounts.admin.post("projects", named(thief, {"namespace": f"runai-{later}"})).ok(201)
    wait_until(lambda: accounts.phase(thief) == "Failed", "the project to fail")
    accounts.admin.get(f"namespaces/runai-{later}").refused(404)
    accounts.admin.post("projects", named(later)).ok(201)
    accounts.ready(later)


@pytest.mark.parametrize("spec", [{}, {"namespace": "runai"}, {"namespace": "runai-reservation"}])
def test_namespaces_of_the_platform(accounts: Accounts, spec: dict[str, str]) -> None:
    """A project cannot take a namespace of the platform."""
    name = unique("thief") if spec else "reservation"
    accounts.admin.post("projects", named(name, spec)).ok(201)
    wait_until(lambda: accounts.phase(name) == "Failed", "the project to fail")
    accounts.admin.delete(f"projects/{name}").ok()


def test_own_project_moved_onto_another(accounts: Accounts) -> None:
    """Changing the namespace of the own project gives no access, and error messages reveal nothing."""
    victim, own = accounts.project(), accounts.project()
    accounts.admin.post(f"{project_path(victim)}/workloads", named("secret", WORK)).ok(201)
    ann = accounts.member(own, "editor")
    ann.api.patch(f"projects/{own}", {"spec": {"namespace": f"runai-{victim}"}}).ok()
    wait_until(lambda: accounts.phase(own) == "Failed", "the project to fail")
    ann.api.get(f"{project_path(victim)}/workloads").refused(403)
    assert b"secret" not in ann.api.delete(f"projects/{own}").raw


def test_status_gives_nothing(accounts: Accounts) -> None:
    """The namespace in a project's status gives no access, and only the platform writes it."""
    victim, own = accounts.project(), accounts.project()
    ann = accounts.member(own, "editor")
    lie = {"status": {"namespace": f"runai-{victim}"}}
    ann.api.patch(f"projects/{own}/status", lie).refused(403)
    accounts.admin.patch(f"projects/{own}/status", lie).ok()
    ann.api.get(f"{project_path(victim)}/workloads").refused(403)


def test_project_with_rules_stays(accounts: Accounts) -> None:
    """A project that access rules name cannot be deleted: the next project of that name would inherit them."""
    name = accounts.project()
    ann = accounts.member(name, "editor")
    ann.api.delete(f"projects/{name}").refused(409)
    assert name in accounts.admin.get("projects").names


def test_pod_placed_by_its_owner(accounts: Accounts) -> None:
    """A member cannot set a pod's node, GPUs, nomination or eviction record."""
    name = accounts.project()
    ann = accounts.member(name)
    pods = f"{project_path(name)}/pods"
    containers = [{"name": "main", "image": "busybox"}]
    devices = {"aliquot.dev/devices": '[{"index": 0, "milli": 1000}]'}
    ann.api.post(pods, named("p", {"containers": containers, "nodeName": "n1"})).refused(403)
    greedy = named("p", {"containers": containers})
    greedy["metadata"]["annotations"] = devices
    ann.api.post(pods, greedy).refused(403)
    ann.api.post(pods, named("p", {"containers": containers})).ok(201)
    ann.api.patch(f"{pods}/p", {"metadata": {"annotations": devices}}).refused(403)
    ann.api.patch(f"{pods}/p", {"spec": {"nodeName": "n1"}}).refused(403)
    for annotation in ("aliquot.dev/evicted", "aliquot.dev/promised"):
        ann.api.patch(f"{pods}/p", {"metadata": {"annotations": {annotation: '{"node": "n1"}'}}}).refused(403)
        annotated = named("q", {"containers": containers})
        annotated["metadata"]["annotations"] = {annotation: "{}"}
        ann.api.post(pods, annotated).refused(403)
    ann.api.patch(f"{pods}/p", {"metadata": {"labels": {"own": "yes"}}}).ok()


@pytest.mark.parametrize("part, query", [("exec", {"command": "true"}), ("portforward", {"ports": "80"})])
def test_no_way_into_another_project(accounts: Accounts, part: str, query: dict[str, str]) -> None:
    """exec and port-forward need a token and a role in the pod's project; invalid requests get a message."""
    own, other = accounts.project(), accounts.project()
    for project in (own, other):
        pod = named("p", {"containers": [{"name": "main", "image": "busybox"}]})
        accounts.admin.post(f"{project_path(project)}/pods", pod).ok(201)
    ann = accounts.member(own)
    ann.api.upgrade(f"{project_path(other)}/pods/p/{part}", **query).refused(403)
    ann.api.with_token(None).upgrade(f"{project_path(own)}/pods/p/{part}", **query).refused(401)
    ann.api.upgrade(f"{project_path(own)}/pods/p/{part}").refused(400)
    assert ann.api.upgrade(f"{project_path(own)}/pods/p/{part}", **query).status in (409, 503)  # it does not run


def test_namespace_in_the_body(accounts: Accounts) -> None:
    """A body with another namespace than the path is refused."""
    own, other = accounts.project(), accounts.project()
    ann = accounts.member(own)
    wrong = {**named("w", WORK), "metadata": {"name": "w", "namespace": f"runai-{other}"}}
    ann.api.post(f"{project_path(own)}/workloads", wrong).refused(400)
    assert accounts.admin.get(f"{project_path(other)}/workloads").names == []


def test_tricky_addresses(accounts: Accounts) -> None:
    """No spelling of a path leads into another project."""
    own, other = accounts.project(), accounts.project()
    accounts.admin.post(f"{project_path(other)}/workloads", named("secret", WORK)).ok(201)
    ann = accounts.member(own)
    for path in (
        f"namespaces/runai-{own}/../runai-{other}/workloads",
        f"namespaces/runai-{own}%2f..%2frunai-{other}/workloads",
        f"namespaces/runai-{own}/workloads/..%2f..%2frunai-{other}%2fworkloads%2fsecret",
        f"namespaces//runai-{other}/workloads",
        f"namespaces/runai-{other}%00/workloads",
        f"namespaces/RUNAI-{other}/workloads",
    ):
        response = ann.api.get(path)
        assert response.status in (400, 403, 404), path
        assert b"training" not in response.raw


def test_owner_reference_reaches_nobody(accounts: Accounts) -> None:
    """An owner reference to another project's object has no effect on that object."""
    own, other = accounts.project(), accounts.project()
    created = accounts.admin.post(f"{project_path(other)}/workloads", named("w", WORK)).ok(201)
    ann = accounts.member(own)
    owner = {"apiVersion": "aliquot.dev/v1", "kind": "Workload", "name": "w", "uid": created["metadata"]["uid"]}
    ann.api.post(f"{project_path(own)}/templates", named("t", ownerReferences=[owner])).ok(201)
    accounts.admin.get(f"{project_path(other)}/workloads/w").ok()


def test_namespaces_of_no_project(accounts: Accounts) -> None:
    """An editor of the cluster cannot change pods, or read their logs, in namespaces that no project owns."""
    unowned, project = unique("system"), accounts.project()
    accounts.admin.post("namespaces", named(unowned)).ok(201)
    editor = accounts.grant(accounts.user(), "editor", CLUSTER)
    pod = named("p", {"containers": [{"name": "main", "image": "none"}]})
    accounts.admin.post(f"namespaces/{unowned}/pods", pod).ok(201)
    wait_until(
        lambda: editor.api.post(f"namespaces/{unowned}/pods", named("q", pod["spec"])).status == 403,
        "the namespace to be out of reach",
    )
    for kind, body in (("workloads", named("w", WORK)), ("services", named("s", {"ports": [{"port": 80}]}))):
        editor.api.post(f"namespaces/{unowned}/{kind}", body).refused(403)
    editor.api.delete(f"namespaces/{unowned}/pods/p").refused(403)
    editor.api.get(f"namespaces/{unowned}/pods/p/log").refused(403)
    assert "p" in editor.api.get(f"namespaces/{unowned}/pods").names
    editor.api.post(f"{project_path(project)}/workloads", named("w", WORK)).ok(201)
    accounts.admin.delete(f"namespaces/{unowned}/pods/p").ok()
