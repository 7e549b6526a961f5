"""Teams do not see each other, and nobody gets more rights than he was given."""

from __future__ import annotations

import pytest

from aliquot.api import KINDS
from api.people import CLUSTER, Office, in_department, in_project, space
from api.wire import Api, named, unique, until

WORK = {"type": "training", "image": "none"}


def test_list_shows_the_own_project_only(office: Office) -> None:
    """A list over all namespaces has only what the reader may see."""
    mine, theirs = office.project(), office.project()
    ann = office.member(mine)
    for project in (mine, theirs):
        office.admin.post(f"{space(project)}/workloads", named("w", WORK)).ok(201)
    found = [item["metadata"]["namespace"] for item in ann.api.get("workloads").ok()["items"]]
    assert found == [f"runai-{mine}"]


@pytest.mark.parametrize("kind", ["projects", "namespaces"])
def test_lists_of_projects(office: Office, kind: str) -> None:
    """Of projects and namespaces a member sees his own."""
    mine, theirs = office.project(), office.project()
    ann = office.member(mine)
    prefix = "runai-" if kind == "namespaces" else ""
    assert ann.api.get(kind).names == [prefix + mine]
    ann.api.get(f"{kind}/{prefix}{theirs}").refused(403)


@pytest.mark.parametrize("kind", ["departments", "users", "accessrules", "schedulingpolicies"])
def test_nothing_of_the_cluster(office: Office, kind: str) -> None:
    """What belongs to the whole cluster is not a member's to see."""
    ann = office.member(office.project())
    assert ann.api.get(kind).names == []


def test_watch_shows_the_own_project_only(office: Office) -> None:
    """A watch over all namespaces brings only what the reader may see."""
    mine, theirs = office.project(), office.project()
    ann = office.member(mine)
    with ann.api.watch("workloads") as stream:
        office.admin.post(f"{space(theirs)}/workloads", named("secret", WORK)).ok(201)
        office.admin.delete(f"{space(theirs)}/workloads/secret").ok()
        office.admin.post(f"{space(mine)}/workloads", named("open", WORK)).ok(201)
        assert stream.names(1) == [("ADDED", "open")]


def test_watch_of_another_project(office: Office) -> None:
    """A watch of another team's namespace is refused."""
    mine, theirs = office.project(), office.project()
    ann = office.member(mine)
    version = ann.api.get(f"{space(mine)}/workloads").version
    ann.api.get(f"{space(theirs)}/workloads", watch="true", resourceVersion=version).refused(403)


def test_department_sees_a_project_come_and_go(office: Office) -> None:
    """Who administers a department sees its projects appear and disappear, and no other's."""
    department = unique("dept")
    office.admin.post("departments", named(department)).ok(201)
    boss = office.grant(office.person("boss"), "department-administrator", in_department(department))
    mine, theirs = unique("mine"), unique("theirs")
    with boss.api.watch("projects") as stream:
        for name, spec in ((theirs, {}), (mine, {"department": department})):
            office.admin.post("projects", named(name, spec)).ok(201)
            office.ready(name)
            office.admin.delete(f"projects/{name}").ok()
        seen = [stream.next()]
        while seen[-1]["type"] != "DELETED":
            seen.append(stream.next())
    assert seen[0]["type"] == "ADDED"
    assert {event["object"]["metadata"]["name"] for event in seen} == {mine}


def test_department_administrator_makes_projects(office: Office) -> None:
    """In his department an administrator makes projects; elsewhere he does not."""
    department = unique("dept")
    office.admin.post("departments", named(department)).ok(201)
    boss = office.grant(office.person("boss"), "department-administrator", in_department(department))
    name = unique("team")
    boss.api.post("projects", named(name, {"department": department})).ok(201)
    until(lambda: boss.api.patch(f"projects/{name}", {"spec": {"description": "x"}}).status == 200)
    boss.api.post("projects", named(unique("team"))).refused(403)
    boss.api.post("projects", named(unique("team"), {"department": "default"})).refused(403)


def test_project_is_not_moved_elsewhere(office: Office) -> None:
    """Who administers a department does not push projects into another."""
    department = unique("dept")
    office.admin.post("departments", named(department)).ok(201)
    boss = office.grant(office.person("boss"), "department-administrator", in_department(department))
    name = unique("team")
    boss.api.post("projects", named(name, {"department": department})).ok(201)
    until(lambda: boss.api.get(f"projects/{name}").status == 200)
    seen = boss.api.get(f"projects/{name}").ok()
    boss.api.patch(f"projects/{name}", {"spec": {"department": None}}).refused(403)
    boss.api.put(f"projects/{name}", {**seen, "spec": {}}).refused(403)
    assert office.admin.get(f"projects/{name}").ok()["spec"]["department"] == department


def test_no_rule_no_view(office: Office) -> None:
    """Without a rule every list is refused and every object too."""
    ann = office.person()
    for kind in KINDS:
        if kind.name != "Token":
            ann.api.get(kind.plural).refused(403)


def test_group_rule(office: Office) -> None:
    """A rule for a group holds for its members."""
    project, group = office.project(), unique("group")
    ann, bob = office.person(groups=[group]), office.person("bob")
    office.rule("l1-researcher", in_project(project), group=group)
    until(lambda: ann.api.get(f"{space(project)}/workloads").status == 200)
    bob.api.get(f"{space(project)}/workloads").refused(403)


def test_leaving_a_group(office: Office) -> None:
    """Who leaves the group loses what it gave."""
    project, group = office.project(), unique("group")
    ann = office.person(groups=[group])
    office.rule("l1-researcher", in_project(project), group=group)
    until(lambda: ann.api.get(f"{space(project)}/workloads").status == 200)
    office.admin.patch(f"users/{ann.name}", {"spec": {"groups": []}}).ok()
    until(lambda: ann.api.get(f"{space(project)}/workloads").status == 403)


def test_group_is_not_a_user(office: Office) -> None:
    """A rule for a group gives nothing to a user of the same name, nor the other way round."""
    ann = office.person()
    bob = office.person("bob", groups=[ann.name])
    office.rule("viewer", CLUSTER, group=ann.name)
    until(lambda: office.roles(bob))
    assert office.roles(ann) == []


def test_deleted_rule(office: Office) -> None:
    """A deleted rule gives nothing any more."""
    ann = office.person()
    rule = office.rule("viewer", CLUSTER, user=ann.name)
    until(lambda: ann.api.get("projects").status == 200)
    office.admin.delete(f"accessrules/{rule}").ok()
    until(lambda: ann.api.get("projects").status == 403)


def test_rules_add_up(office: Office) -> None:
    """Two rules give what either gives."""
    one, two = office.project(), office.project()
    ann = office.member(one)
    office.rule("viewer", in_project(two), user=ann.name)
    until(lambda: ann.api.get(f"{space(two)}/workloads").status == 200)
    ann.api.post(f"{space(one)}/workloads", named("w", WORK)).ok(201)
    ann.api.post(f"{space(two)}/workloads", named("w", WORK)).refused(403)


def test_templates_for_everybody(office: Office) -> None:
    """Templates of the platform are read by every member, and written by none."""
    ann, name = office.member(office.project()), unique("template")
    office.admin.post("namespaces/runai/templates", named(name)).ok(201)
    ann.api.get(f"namespaces/runai/templates/{name}").ok()
    assert name in ann.api.get("templates").names
    ann.api.patch(f"namespaces/runai/templates/{name}", {"spec": {"description": "x"}}).refused(403)
    ann.api.delete(f"namespaces/runai/templates/{name}").refused(403)
    ann.api.get("namespaces/runai/workloads").refused(403)


# --- attempts to get more

STRONG_IN_A_PROJECT = [
    "l1-researcher",
    "research-manager",
    "editor",
    "department-administrator",
    "system-administrator",
]


def _strong(office: Office, role: str) -> tuple[str, Api]:
    project = office.project()
    return project, office.grant(office.person("climber"), role, in_project(project)).api


@pytest.mark.parametrize("role", STRONG_IN_A_PROJECT)
def test_no_rule_for_oneself(office: Office, role: str) -> None:
    """However strong in a project, nobody makes a rule; not even one named like the project's namespace."""
    project, api = _strong(office, role)
    me = api.get("whoami").ok()["user"]
    spec = {"subject": {"kind": "user", "name": me}, "role": "system-administrator", "scope": {"kind": "cluster"}}
    for name in (unique("rule"), f"runai-{project}", project):
        api.post("accessrules", named(name, spec)).refused(403)
    api.patch("accessrules/admin", {"spec": {"subject": {"name": me}}}).refused(403)
    api.delete("accessrules/admin").refused(403)


@pytest.mark.parametrize("role", STRONG_IN_A_PROJECT)
def test_no_group_for_oneself(office: Office, role: str) -> None:
    """Nobody puts himself into a group, or makes users to hide behind."""
    project, api = _strong(office, role)
    me = api.get("whoami").ok()["user"]
    api.patch(f"users/{me}", {"spec": {"groups": ["admins"]}}).refused(403)
    api.patch(f"users/{me}/status", {"spec": {"groups": ["admins"]}}).refused(403)
    for name in (unique("user"), f"runai-{project}"):
        api.post("users", named(name)).refused(403)


@pytest.mark.parametrize("role", STRONG_IN_A_PROJECT)
def test_no_token_of_another(office: Office, role: str) -> None:
    """Nobody makes a token for another, whatever he calls it."""
    project, api = _strong(office, role)
    for name in (unique("token"), f"runai-{project}"):
        api.post("tokens", named(name, {"user": "admin"})).refused(403)


@pytest.mark.parametrize("role", STRONG_IN_A_PROJECT)
def test_no_label_on_a_namespace(office: Office, role: str) -> None:
    """Whose a namespace is, is not for its users to say."""
    project, api = _strong(office, role)
    other = office.project()
    for name, owner in ((f"runai-{other}", project), (f"runai-{project}", other), ("runai", project)):
        api.patch(f"namespaces/{name}", {"metadata": {"labels": {"aliquot.dev/project": owner}}}).refused(403)
        api.delete(f"namespaces/{name}").refused(403)
    api.post("namespaces", named(unique("n"), labels={"aliquot.dev/project": project})).refused(403)


def test_namespace_of_another_project(office: Office) -> None:
    """A project that names another one's namespace gets nothing of it, and fails saying why."""
    victim, thief = office.project(), unique("thief")
    office.admin.post(f"{space(victim)}/workloads", named("secret", WORK)).ok(201)
    office.admin.post("projects", named(thief, {"namespace": f"runai-{victim}"})).ok(201)
    until(lambda: office.phase(thief) == "Failed")
    ann = office.grant(office.person(), "system-administrator", in_project(thief))
    ann.api.get(f"{space(victim)}/workloads").refused(403)
    assert ann.api.get("workloads").names == []
    assert victim in office.admin.get(f"projects/{thief}").ok()["status"]["message"]


def test_namespace_of_a_project_to_come(office: Office) -> None:
    """Nobody takes the namespace of a project that is yet to be made."""
    later, thief = unique("later"), unique("thief")
    office.admin.post("projects", named(thief, {"namespace": f"runai-{later}"})).ok(201)
    until(lambda: office.phase(thief) == "Failed")
    office.admin.get(f"namespaces/runai-{later}").refused(404)
    office.admin.post("projects", named(later)).ok(201)
    office.ready(later)


@pytest.mark.parametrize("spec", [{}, {"namespace": "runai"}, {"namespace": "runai-reservation"}])
def test_namespaces_of_the_platform(office: Office, spec: dict[str, str]) -> None:
    """No project gets a namespace that the platform keeps for itself."""
    name = unique("thief") if spec else "reservation"
    office.admin.post("projects", named(name, spec)).ok(201)
    until(lambda: office.phase(name) == "Failed")
    office.admin.delete(f"projects/{name}").ok()


def test_own_project_moved_onto_another(office: Office) -> None:
    """Nor does it help to change a project that is one's own; and the refusals tell nothing of the other."""
    victim, mine = office.project(), office.project()
    office.admin.post(f"{space(victim)}/workloads", named("secret", WORK)).ok(201)
    ann = office.member(mine, "editor")
    ann.api.patch(f"projects/{mine}", {"spec": {"namespace": f"runai-{victim}"}}).ok()
    until(lambda: office.phase(mine) == "Failed")
    ann.api.get(f"{space(victim)}/workloads").refused(403)
    assert b"secret" not in ann.api.delete(f"projects/{mine}").raw


def test_status_gives_nothing(office: Office) -> None:
    """What a project's status says of its namespace is no right to it; and only the platform says it."""
    victim, mine = office.project(), office.project()
    ann = office.member(mine, "editor")
    lie = {"status": {"namespace": f"runai-{victim}"}}
    ann.api.patch(f"projects/{mine}/status", lie).refused(403)
    office.admin.patch(f"projects/{mine}/status", lie).ok()
    ann.api.get(f"{space(victim)}/workloads").refused(403)


def test_project_with_rules_stays(office: Office) -> None:
    """A project that rules name is not deleted: the next one of its name would inherit them."""
    name = office.project()
    ann = office.member(name, "editor")
    ann.api.delete(f"projects/{name}").refused(409)
    assert name in office.admin.get("projects").names


def test_pod_placed_by_its_owner(office: Office) -> None:
    """Where a pod runs, which GPUs it holds or is promised, and why it was stopped is not its owner's to say."""
    name = office.project()
    ann = office.member(name)
    pods = f"{space(name)}/pods"
    containers = [{"name": "main", "image": "busybox"}]
    devices = {"aliquot.dev/devices": '[{"index": 0, "milli": 1000}]'}
    ann.api.post(pods, named("p", {"containers": containers, "nodeName": "n1"})).refused(403)
    greedy = named("p", {"containers": containers})
    greedy["metadata"]["annotations"] = devices
    ann.api.post(pods, greedy).refused(403)
    ann.api.post(pods, named("p", {"containers": containers})).ok(201)
    ann.api.patch(f"{pods}/p", {"metadata": {"annotations": devices}}).refused(403)
    ann.api.patch(f"{pods}/p", {"spec": {"nodeName": "n1"}}).refused(403)
    for mark in ("aliquot.dev/evicted", "aliquot.dev/promised"):
        ann.api.patch(f"{pods}/p", {"metadata": {"annotations": {mark: '{"node": "n1"}'}}}).refused(403)
        marked = named("q", {"containers": containers})
        marked["metadata"]["annotations"] = {mark: "{}"}
        ann.api.post(pods, marked).refused(403)
    ann.api.patch(f"{pods}/p", {"metadata": {"labels": {"mine": "yes"}}}).ok()


@pytest.mark.parametrize("part, query", [("exec", {"command": "true"}), ("portforward", {"ports": "80"})])
def test_no_way_into_another_project(office: Office, part: str, query: dict[str, str]) -> None:
    """Another team's pod cannot be entered, and without a token nobody's; who may is told what is wrong."""
    mine, theirs = office.project(), office.project()
    for project in (mine, theirs):
        pod = named("p", {"containers": [{"name": "main", "image": "busybox"}]})
        office.admin.post(f"{space(project)}/pods", pod).ok(201)
    ann = office.member(mine)
    ann.api.upgrade(f"{space(theirs)}/pods/p/{part}", **query).refused(403)
    ann.api.bearing(None).upgrade(f"{space(mine)}/pods/p/{part}", **query).refused(401)
    ann.api.upgrade(f"{space(mine)}/pods/p/{part}").refused(400)
    assert ann.api.upgrade(f"{space(mine)}/pods/p/{part}", **query).status in (409, 503)  # it does not run


def test_namespace_in_the_body(office: Office) -> None:
    """The address decides where an object goes; a body that says otherwise is refused."""
    mine, theirs = office.project(), office.project()
    ann = office.member(mine)
    wrong = {**named("w", WORK), "metadata": {"name": "w", "namespace": f"runai-{theirs}"}}
    ann.api.post(f"{space(mine)}/workloads", wrong).refused(400)
    assert office.admin.get(f"{space(theirs)}/workloads").names == []


def test_tricky_addresses(office: Office) -> None:
    """No spelling of an address leads into another project."""
    mine, theirs = office.project(), office.project()
    office.admin.post(f"{space(theirs)}/workloads", named("secret", WORK)).ok(201)
    ann = office.member(mine)
    for path in (
        f"namespaces/runai-{mine}/../runai-{theirs}/workloads",
        f"namespaces/runai-{mine}%2f..%2frunai-{theirs}/workloads",
        f"namespaces/runai-{mine}/workloads/..%2f..%2frunai-{theirs}%2fworkloads%2fsecret",
        f"namespaces//runai-{theirs}/workloads",
        f"namespaces/runai-{theirs}%00/workloads",
        f"namespaces/RUNAI-{theirs}/workloads",
    ):
        answer = ann.api.get(path)
        assert answer.status in (400, 403, 404), path
        assert b"training" not in answer.raw


def test_owner_reference_reaches_nobody(office: Office) -> None:
    """Naming another team's object as owner neither shows it nor touches it."""
    mine, theirs = office.project(), office.project()
    made = office.admin.post(f"{space(theirs)}/workloads", named("w", WORK)).ok(201)
    ann = office.member(mine)
    owner = {"apiVersion": "aliquot.dev/v1", "kind": "Workload", "name": "w", "uid": made["metadata"]["uid"]}
    ann.api.post(f"{space(mine)}/templates", named("t", ownerReferences=[owner])).ok(201)
    office.admin.get(f"{space(theirs)}/workloads/w").ok()


def test_namespaces_of_no_project(office: Office) -> None:
    """Who may work in every project does not act, nor look inside, where the cluster itself or others run things."""
    nobodys, project = unique("system"), office.project()
    office.admin.post("namespaces", named(nobodys)).ok(201)
    editor = office.grant(office.person(), "editor", CLUSTER)
    pod = named("p", {"containers": [{"name": "main", "image": "none"}]})
    office.admin.post(f"namespaces/{nobodys}/pods", pod).ok(201)
    until(lambda: editor.api.post(f"namespaces/{nobodys}/pods", named("q", pod["spec"])).status == 403)
    for kind, body in (("workloads", named("w", WORK)), ("services", named("s", {"ports": [{"port": 80}]}))):
        editor.api.post(f"namespaces/{nobodys}/{kind}", body).refused(403)
    editor.api.delete(f"namespaces/{nobodys}/pods/p").refused(403)
    editor.api.get(f"namespaces/{nobodys}/pods/p/log").refused(403)
    assert "p" in editor.api.get(f"namespaces/{nobodys}/pods").names
    editor.api.post(f"{space(project)}/workloads", named("w", WORK)).ok(201)
    office.admin.delete(f"namespaces/{nobodys}/pods/p").ok()
