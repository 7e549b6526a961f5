"""Roles and the permission check."""

from __future__ import annotations

import itertools

import pytest

from aliquot.api import KINDS
from aliquot.auth.roles import ENTITY_OF_KIND, FULL_ACCESS, ROLES, ObjectScope, ScopedRole, allowed, allowed_everywhere

A, B = ObjectScope("team-a", "research"), ObjectScope("team-b", "sales")
CLUSTER = ObjectScope()


def test_nothing_without_a_rule() -> None:
    """Without a role nothing is allowed."""
    for kind, action in itertools.product(ENTITY_OF_KIND, FULL_ACCESS):
        assert not allowed([], action, kind, A)


def test_every_kind_belongs_to_an_entity() -> None:
    """Every kind belongs to an entity."""
    assert {kind.name for kind in KINDS} == ENTITY_OF_KIND.keys()


def test_unknown_kind_is_denied() -> None:
    """An unknown kind is denied to everyone."""
    assert not allowed([ScopedRole("system-administrator", "cluster")], "view", "Spaceship", CLUSTER)


def test_unknown_role_is_nothing() -> None:
    """An unknown role allows nothing."""
    assert not allowed([ScopedRole("king", "cluster")], "view", "Project", A)


def test_administrator_may_everything() -> None:
    """The system administrator may do everything everywhere."""
    roles = [ScopedRole("system-administrator", "cluster")]
    for kind, action, scope in itertools.product(ENTITY_OF_KIND, FULL_ACCESS, (A, B, CLUSTER)):
        assert allowed(roles, action, kind, scope)


@pytest.mark.parametrize("role", sorted(ROLES))
def test_project_scope_ends_at_the_project(role: str) -> None:
    """A role in one project allows nothing in another project or in the cluster, except viewing nodes and pools."""
    roles = [ScopedRole(role, "project", "team-a")]
    for kind, action in itertools.product(ENTITY_OF_KIND, FULL_ACCESS):
        if not (action == "view" and kind in ("Node", "NodePool")):
            assert not allowed(roles, action, kind, B)
            assert not allowed(roles, action, kind, CLUSTER)


@pytest.mark.parametrize("role", sorted(set(ROLES) - {"system-administrator"}))
def test_only_the_administrator_gives_roles(role: str) -> None:
    """Only the system administrator may write users, access rules and tokens of others."""
    for kind, action in itertools.product(("User", "AccessRule", "Token"), ("create", "edit", "delete")):
        assert not allowed([ScopedRole(role, "cluster")], action, kind, CLUSTER)


def test_department_scope() -> None:
    """A role in a department applies to its projects."""
    roles = [ScopedRole("editor", "department", "research")]
    assert allowed(roles, "create", "Workload", A)
    assert not allowed(roles, "create", "Workload", B)


def test_viewer_changes_nothing() -> None:
    """A viewer may not change anything."""
    for kind, action in itertools.product(ENTITY_OF_KIND, ("create", "edit", "delete")):
        assert not allowed([ScopedRole("viewer", "cluster")], action, kind, A)


def test_researcher() -> None:
    """A researcher may create workloads in the project, and may not edit the project."""
    roles = [ScopedRole("researcher", "project", "team-a")]
    assert allowed(roles, "create", "Workload", A)
    assert allowed(roles, "view", "Project", A)
    assert not allowed(roles, "edit", "Project", A)


def test_empty_name_covers_nothing() -> None:
    """A role without a scope name does not cover objects without a project or department."""
    assert not allowed([ScopedRole("editor", "project", "")], "view", "Workload", ObjectScope("", ""))
    assert not allowed([ScopedRole("editor", "department", "")], "view", "Workload", ObjectScope("team-a", ""))


def test_everywhere() -> None:
    """Only a role in the cluster allows an action on every object, except for viewing nodes."""
    assert allowed_everywhere([ScopedRole("viewer", "cluster")], "view", "Workload")
    assert not allowed_everywhere([ScopedRole("viewer", "project", "team-a")], "view", "Workload")
    assert allowed_everywhere([ScopedRole("viewer", "project", "team-a")], "view", "Node")
