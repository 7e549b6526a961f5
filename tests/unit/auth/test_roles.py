"""Who may do what, where."""

from __future__ import annotations

import itertools

import pytest

from aliquot.api import KINDS
from aliquot.auth.roles import ENTITY_OF_KIND, FULL_ACCESS, ROLES, ObjectScope, ScopedRole, allowed, allowed_everywhere

A, B = ObjectScope("team-a", "research"), ObjectScope("team-b", "sales")
CLUSTER = ObjectScope()


def test_nothing_without_a_rule() -> None:
    """Who was granted nothing may do nothing."""
    for kind, action in itertools.product(ENTITY_OF_KIND, FULL_ACCESS):
        assert not allowed([], action, kind, A)


def test_every_kind_belongs_to_an_entity() -> None:
    """A new kind is nobody's until somebody decides whose."""
    assert {kind.name for kind in KINDS} == ENTITY_OF_KIND.keys()


def test_unknown_kind_is_denied() -> None:
    """What the table does not know nobody may touch."""
    assert not allowed([ScopedRole("system-administrator", "cluster")], "view", "Spaceship", CLUSTER)


def test_unknown_role_is_nothing() -> None:
    """A role that does not exist gives nothing."""
    assert not allowed([ScopedRole("king", "cluster")], "view", "Project", A)


def test_administrator_may_everything() -> None:
    """The system administrator may do everything everywhere."""
    grants = [ScopedRole("system-administrator", "cluster")]
    for kind, action, place in itertools.product(ENTITY_OF_KIND, FULL_ACCESS, (A, B, CLUSTER)):
        assert allowed(grants, action, kind, place)


@pytest.mark.parametrize("role", sorted(ROLES))
def test_project_scope_ends_at_the_project(role: str) -> None:
    """A role in one project says nothing about another, or about the cluster, but for seeing shared hardware."""
    grants = [ScopedRole(role, "project", "team-a")]
    for kind, action in itertools.product(ENTITY_OF_KIND, FULL_ACCESS):
        if not (action == "view" and kind in ("Node", "NodePool")):
            assert not allowed(grants, action, kind, B)
            assert not allowed(grants, action, kind, CLUSTER)


@pytest.mark.parametrize("role", sorted(set(ROLES) - {"system-administrator"}))
def test_only_the_administrator_gives_roles(role: str) -> None:
    """Who could write users, rules or tokens could give himself any role."""
    for kind, action in itertools.product(("User", "AccessRule", "Token"), ("create", "edit", "delete")):
        assert not allowed([ScopedRole(role, "cluster")], action, kind, CLUSTER)


def test_department_scope() -> None:
    """A role in a department holds in its projects."""
    grants = [ScopedRole("editor", "department", "research")]
    assert allowed(grants, "create", "Workload", A)
    assert not allowed(grants, "create", "Workload", B)


def test_viewer_changes_nothing() -> None:
    """Viewers look."""
    for kind, action in itertools.product(ENTITY_OF_KIND, ("create", "edit", "delete")):
        assert not allowed([ScopedRole("viewer", "cluster")], action, kind, A)


def test_researcher() -> None:
    """A researcher works in the project, and does not change its quota."""
    grants = [ScopedRole("researcher", "project", "team-a")]
    assert allowed(grants, "create", "Workload", A)
    assert allowed(grants, "view", "Project", A)
    assert not allowed(grants, "edit", "Project", A)


def test_empty_name_covers_nothing() -> None:
    """A rule without a name is not a rule for what has no name."""
    assert not allowed([ScopedRole("editor", "project", "")], "view", "Workload", ObjectScope("", ""))
    assert not allowed([ScopedRole("editor", "department", "")], "view", "Workload", ObjectScope("team-a", ""))


def test_everywhere() -> None:
    """Only a rule for the whole cluster needs no filter."""
    assert allowed_everywhere([ScopedRole("viewer", "cluster")], "view", "Workload")
    assert not allowed_everywhere([ScopedRole("viewer", "project", "team-a")], "view", "Workload")
    assert allowed_everywhere([ScopedRole("viewer", "project", "team-a")], "view", "Node")
