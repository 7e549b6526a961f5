"""The platform's roles in the verbs of Kubernetes."""

from __future__ import annotations

import pytest

from aliquot.api import KINDS
from aliquot.auth.roles import REPORT, ROLES, ObjectScope, ScopedRole, allowed
from aliquot.backends.kubernetes.rbac_verbs import rules_of
from aliquot.backends.kubernetes.v2alpha1.definitions import RUNAI_KINDS

VERBS = {"view": {"get", "list", "watch"}, "create": {"create"}, "edit": {"patch", "update"}, "delete": {"delete"}}


def verbs(role: str, group: str, resource: str) -> set[str]:
    rules = [rule for rule in rules_of(role) if group in rule["apiGroups"] and resource in rule["resources"]]
    return {verb for rule in rules for verb in rule["verbs"]}


@pytest.mark.parametrize("role", ROLES)
def test_verbs_are_what_the_rest_api_allows(role: str) -> None:
    """For every namespaced kind a role has the verbs of its actions in the REST API, and no others."""
    for kind in (kind for kind in KINDS if kind.namespaced):
        wanted: set[str] = set()
        for action, names in VERBS.items():
            wanted |= (
                names if allowed([ScopedRole(role, "project", "p")], action, kind.name, ObjectScope("p")) else set()
            )
        assert verbs(role, kind.group, kind.plural) == wanted


@pytest.mark.parametrize("role", ROLES)
def test_pod_subresources(role: str) -> None:
    """exec, attach and portforward need the right to edit pods; log needs the right to view them."""
    may = {a: allowed([ScopedRole(role, "project", "p")], a, "Pod", ObjectScope("p")) for a in ("view", "edit", REPORT)}
    for subresource in ("exec", "attach", "portforward"):
        assert verbs(role, "", f"pods/{subresource}") == ({"create", "get"} if may["edit"] else set())
    assert verbs(role, "", "pods/log") == ({"get"} if may["view"] else set())
    assert verbs(role, "", "pods/binding") == ({"create"} if may[REPORT] else set())


@pytest.mark.parametrize("role", ROLES)
def test_no_escalation(role: str) -> None:
    """No role has wildcards, secrets, service accounts, RBAC itself, or cluster-scoped kinds."""
    resources = {resource.partition("/")[0] for rule in rules_of(role) for resource in rule["resources"]}
    groups = {group for rule in rules_of(role) for group in rule["apiGroups"]}
    assert resources <= {kind.plural for kind in (*KINDS, *RUNAI_KINDS) if kind.namespaced}
    assert groups <= {"", "aliquot.dev", "coordination.k8s.io", "run.ai"}
    assert not any("*" in value for rule in rules_of(role) for values in rule.values() for value in values)
