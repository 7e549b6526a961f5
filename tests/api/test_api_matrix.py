"""The permission matrix: every role, scope, verb and kind, in the own project and in another.

Requests for objects that do not exist are enough: 403 means denied; 404, 400 or 409 mean allowed. So the whole matrix
is tested and nothing changes.
"""

from __future__ import annotations

import pytest

from aliquot.api import KINDS
from aliquot.auth.roles import ROLES
from aliquot.store.driver import AnyKind
from api.accounts import TwoProjects
from api.http_client import Api

# What each role allows, written independently of the server's table:
# W workloads  D data (claims)  T templates  P policies  J project  E department  N nodes  O node pools  S settings
WRITES = {
    "system-administrator": "WDTPJENOS",
    "administrator": "WDTPJENOS",
    "department-administrator": "WDTPJ",
    "editor": "WDTPJE",
    "research-manager": "DTJ",
    "l1-researcher": "WDT",
    "researcher": "WDT",
    "l2-researcher": "W",
    "template-administrator": "T",
    "data-source-administrator": "D",
}
READS = {
    "department-administrator": "ENO",
    "editor": "NO",
    "research-manager": "EPOW",
    "l1-researcher": "PJO",
    "researcher": "PJO",
    "l2-researcher": "PJODT",
    "ml-engineer": "EPJONW",
    "viewer": "EPJONWDT",
    "department-viewer": "EPJWDT",
    **dict.fromkeys(
        ["template-administrator", "data-source-administrator", "environment-administrator",
         "compute-resource-administrator", "credentials-administrator", "data-volume-administrator"],
        "EPJWDT",
    ),
}  # fmt: skip
LETTERS = {
    "Workload": "W", "Pod": "W", "Service": "W", "Event": "W", "PersistentVolumeClaim": "D", "Template": "T",
    "Policy": "P", "Lease": "S", "Project": "J", "Namespace": "J", "Department": "E", "Node": "N", "NodePool": "O",
    "SchedulingPolicy": "S",
}  # fmt: skip
# Kinds that only administrators of the cluster may write.
OF_THE_CLUSTER = ("User", "AccessRule")
VERBS = ("view", "create", "replace", "patch", "status", "delete")
ALL_ROLES = [*ROLES, "administrator", "researcher"]
SCOPED = [(role, "project") for role in ALL_ROLES] + [
    (role, scope)
    for role in ("system-administrator", "department-administrator", "editor", "l1-researcher", "viewer")
    for scope in ("department", "cluster")
]


def test_table_is_complete() -> None:
    """The table of this test has every role and every kind."""
    assert set(ALL_ROLES) == WRITES.keys() | READS.keys()
    assert {kind.name for kind in KINDS} == {*LETTERS, *OF_THE_CLUSTER, "Token"}


@pytest.mark.parametrize("role, scope", SCOPED)
def test_in_the_own_project(two_projects: TwoProjects, role: str, scope: str) -> None:
    """A role allows exactly its actions within its scope."""
    _compare(two_projects, role, scope, "own")


@pytest.mark.parametrize("role, scope", SCOPED)
def test_in_another_project(two_projects: TwoProjects, role: str, scope: str) -> None:
    """Outside of its scope a role allows nothing."""
    _compare(two_projects, role, scope, "other")


@pytest.mark.parametrize("role, scope", SCOPED)
def test_logs_exec_and_port_forward(two_projects: TwoProjects, role: str, scope: str) -> None:
    """Logs need the permission to view pods; exec and port-forward need the permission to edit them."""
    api, pod = two_projects.user(role, scope).api, KINDS.named("pod")
    for which, project in two_projects.projects.items():
        path = f"namespaces/runai-{project}/pods/not-there"
        asked = {
            "log": (api.get(f"{path}/log"), "view"),
            "exec": (api.upgrade(f"{path}/exec", command="true"), "patch"),
            "portforward": (api.upgrade(f"{path}/portforward", ports="80"), "patch"),
        }
        for part, (response, right) in asked.items():
            may = _should(role, scope, pod, right, which)
            assert (part, response.refused(404 if may else 403).status != 403) == (part, may)


def _compare(two_projects: TwoProjects, role: str, scope: str, which: str) -> None:
    api = two_projects.user(role, scope).api
    cases = [
        (kind, verb) for kind in KINDS if kind.name != "Token" for verb in VERBS if verb != "status" or kind.has_status
    ]
    got = {(kind.name, verb): _may(api, two_projects, kind, verb, which) for kind, verb in cases}
    wanted = {(kind.name, verb): _should(role, scope, kind, verb, which) for kind, verb in cases}
    assert {case: may for case, may in got.items() if may != wanted[case]} == {}


def _should(role: str, scope: str, kind: AnyKind, verb: str, which: str) -> bool:
    writes = WRITES.get(role, "")
    reads = writes + READS.get(role, "")
    administers = role in ("system-administrator", "administrator")
    if kind.name in OF_THE_CLUSTER:
        may_read = administers or role in ("department-administrator", "editor", "research-manager")
        return scope == "cluster" and (administers or (verb == "view" and may_read))
    letter = LETTERS[kind.name]
    if verb == "status" and not administers:
        return False  # only the platform writes the status
    if letter in "NO" and verb == "view":
        return letter in reads  # nodes and pools belong to no project
    if kind.name in ("Node", "NodePool", "SchedulingPolicy"):
        return scope == "cluster" and letter in (reads if verb == "view" else writes)
    if which == "other" and scope != "cluster":
        return False
    if verb == "view":
        return letter in reads and (kind.name != "Department" or scope != "project")
    if kind.name == "Namespace":
        return scope == "cluster" and letter in writes
    if kind.name == "Department" or (kind.name == "Project" and verb == "create"):
        return scope != "project" and letter in writes
    return letter in writes


def _may(api: Api, two_projects: TwoProjects, kind: AnyKind, verb: str, which: str) -> bool:
    names = {
        "Project": two_projects.projects[which],
        "Department": two_projects.departments[which],
        "Namespace": f"runai-{two_projects.projects[which]}",
    }
    name = names.get(kind.name, "not-there")
    many = f"namespaces/runai-{two_projects.projects[which]}/{kind.plural}" if kind.namespaced else kind.plural
    path = f"{many}/{name}"
    match verb:
        case "view":
            response = api.get(path)
            if kind.namespaced:
                assert (response.status == 403) == (api.get(many).status == 403), "a list needs the same permission"
        case "create":
            # Incomplete on purpose: an allowed request gets 400.
            body = {"spec": {"department": two_projects.departments[which]}} if kind.name == "Project" else {}
            named = {"metadata": {"name": name}} if kind.name in ("Department", "Namespace") else {}
            response = api.post(many, {**body, **named})
        case "replace":
            response = api.put(path, {})
        case "patch":
            response = api.patch(path, {})
        case "status":
            response = api.patch(f"{path}/status", {})
        case _:
            response = api.delete(path, {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}})
    assert response.status in (200, 400, 403, 404, 409), response.raw
    return response.status != 403
