"""Roles of the platform, in the verbs of Kubernetes."""

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
    """For every kind in a namespace a role has the verbs of the actions it has in our API, and no others."""
    for kind in (kind for kind in KINDS if kind.namespaced):
        wanted: set[str] = set()
        for action, words in VERBS.items():
            wanted |= (
                words if allowed([ScopedRole(role, "project", "p")], action, kind.name, ObjectScope("p")) else set()
            )
        assert verbs(role, kind.group, kind.plural) == wanted


@pytest.mark.parametrize("role", ROLES)
def test_a_terminal_is_for_those_who_may_edit_pods(role: str) -> None:
    """Commands in a pod, its ports and its terminal are for those who may change it; its log for those who see it."""
    may = {a: allowed([ScopedRole(role, "project", "p")], a, "Pod", ObjectScope("p")) for a in ("view", "edit", REPORT)}
    for part in ("exec", "attach", "portforward"):
        assert verbs(role, "", f"pods/{part}") == ({"create", "get"} if may["edit"] else set())
    assert verbs(role, "", "pods/log") == ({"get"} if may["view"] else set())
    assert verbs(role, "", "pods/binding") == ({"create"} if may[REPORT] else set())


@pytest.mark.parametrize("role", ROLES)
def test_nothing_from_which_more_can_be_had(role: str) -> None:
    """No role has a wildcard, a secret, an account, RBAC itself, or a kind of the whole cluster."""
    resources = {resource.partition("/")[0] for rule in rules_of(role) for resource in rule["resources"]}
    groups = {group for rule in rules_of(role) for group in rule["apiGroups"]}
    assert resources <= {kind.plural for kind in (*KINDS, *RUNAI_KINDS) if kind.namespaced}
    assert groups <= {"", "aliquot.dev", "coordination.k8s.io", "run.ai"}
    assert not any("*" in part for rule in rules_of(role) for parts in rule.values() for part in parts)
