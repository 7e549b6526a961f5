"""Who may do what: every role, in every scope, with every verb, on every kind, in one's own project and another's.

A request about something that does not exist tells as much as one about something that does: 403 is "you may not",
404, 400 or 409 is "you may, but". So the whole matrix is asked and nothing changes.
"""

from __future__ import annotations

import pytest

from aliquot.api import KINDS
from aliquot.auth.roles import ROLES
from aliquot.store.driver import AnyKind
from api.people import Company
from api.wire import Api

# What each role gives, in one place and in other words than the server has it:
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
# Those that nobody but an administrator of the cluster may write, and nobody else sees.
OF_THE_CLUSTER = ("User", "AccessRule")
VERBS = ("view", "create", "replace", "patch", "status", "delete")
ALL_ROLES = [*ROLES, "administrator", "researcher"]
SCOPED = [(role, "project") for role in ALL_ROLES] + [
    (role, scope)
    for role in ("system-administrator", "department-administrator", "editor", "l1-researcher", "viewer")
    for scope in ("department", "cluster")
]


def test_table_is_complete() -> None:
    """The table here speaks of every role and every kind there is."""
    assert set(ALL_ROLES) == WRITES.keys() | READS.keys()
    assert {kind.name for kind in KINDS} == {*LETTERS, *OF_THE_CLUSTER, "Token"}


@pytest.mark.parametrize("role, scope", SCOPED)
def test_in_the_own_project(company: Company, role: str, scope: str) -> None:
    """A role gives what it says in its scope, and not more."""
    _compare(company, role, scope, "mine")


@pytest.mark.parametrize("role, scope", SCOPED)
def test_in_another_project(company: Company, role: str, scope: str) -> None:
    """Outside its scope a role gives nothing."""
    _compare(company, role, scope, "theirs")


@pytest.mark.parametrize("role, scope", SCOPED)
def test_looking_inside(company: Company, role: str, scope: str) -> None:
    """Whoever may see pods may read their logs; commands in them and their ports are for those who may change them."""
    api, pod = company.person(role, scope).api, KINDS.named("pod")
    for whose, project in company.projects.items():
        one = f"namespaces/runai-{project}/pods/not-there"
        asked = {
            "log": (api.get(f"{one}/log"), "view"),
            "exec": (api.upgrade(f"{one}/exec", command="true"), "patch"),
            "portforward": (api.upgrade(f"{one}/portforward", ports="80"), "patch"),
        }
        for part, (answer, right) in asked.items():
            may = _should(role, scope, pod, right, whose)
            assert (part, answer.refused(404 if may else 403).status != 403) == (part, may)


def _compare(company: Company, role: str, scope: str, whose: str) -> None:
    api = company.person(role, scope).api
    cases = [
        (kind, verb) for kind in KINDS if kind.name != "Token" for verb in VERBS if verb != "status" or kind.has_status
    ]
    got = {(kind.name, verb): _may(api, company, kind, verb, whose) for kind, verb in cases}
    wanted = {(kind.name, verb): _should(role, scope, kind, verb, whose) for kind, verb in cases}
    assert {case: may for case, may in got.items() if may != wanted[case]} == {}


def _should(role: str, scope: str, kind: AnyKind, verb: str, whose: str) -> bool:
    writes = WRITES.get(role, "")
    reads = writes + READS.get(role, "")
    administers = role in ("system-administrator", "administrator")
    if kind.name in OF_THE_CLUSTER:
        may_read = administers or role in ("department-administrator", "editor", "research-manager")
        return scope == "cluster" and (administers or (verb == "view" and may_read))
    letter = LETTERS[kind.name]
    if verb == "status" and not administers:
        return False  # how things stand is the platform's word
    if letter in "NO" and verb == "view":
        return letter in reads  # nodes and pools are everybody's to see
    if kind.name in ("Node", "NodePool", "SchedulingPolicy"):
        return scope == "cluster" and letter in (reads if verb == "view" else writes)
    if whose == "theirs" and scope != "cluster":
        return False
    if verb == "view":
        return letter in reads and (kind.name != "Department" or scope != "project")
    if kind.name == "Namespace":
        return scope == "cluster" and letter in writes
    if kind.name == "Department" or (kind.name == "Project" and verb == "create"):
        return scope != "project" and letter in writes
    return letter in writes


def _may(api: Api, company: Company, kind: AnyKind, verb: str, whose: str) -> bool:
    names = {
        "Project": company.projects[whose],
        "Department": company.departments[whose],
        "Namespace": f"runai-{company.projects[whose]}",
    }
    name = names.get(kind.name, "not-there")
    many = f"namespaces/runai-{company.projects[whose]}/{kind.plural}" if kind.namespaced else kind.plural
    one = f"{many}/{name}"
    match verb:
        case "view":
            answer = api.get(one)
            if kind.namespaced:
                assert (answer.status == 403) == (api.get(many).status == 403), "a list is a look too"
        case "create":
            # Incomplete on purpose: who may is told what is missing.
            body = {"spec": {"department": company.departments[whose]}} if kind.name == "Project" else {}
            named = {"metadata": {"name": name}} if kind.name in ("Department", "Namespace") else {}
            answer = api.post(many, {**body, **named})
        case "replace":
            answer = api.put(one, {})
        case "patch":
            answer = api.patch(one, {})
        case "status":
            answer = api.patch(f"{one}/status", {})
        case _:
            answer = api.delete(one, {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}})
    assert answer.status in (200, 400, 403, 404, 409), answer.raw
    return answer.status != 403
