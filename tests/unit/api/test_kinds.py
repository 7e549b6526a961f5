"""The table of kinds, and the rules for names of objects."""

from __future__ import annotations

import re

import pytest

from aliquot.api import KINDS, Claim, Workload, check_name
from aliquot.api.object_names import name_pattern
from aliquot.api.serialization import type_hints_of
from aliquot.errors import Invalid


def test_names_of_kinds_are_unique() -> None:
    """Every name that users may type belongs to one kind."""
    names = [name for kind in KINDS for name in {name.lower() for name in kind.accepted_names}]

    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("workload", "Workload"), ("WL", "Workload"), ("jobs", "Workload"), ("proj", "Project"), ("dept", "Department"),
        ("pvc", "PersistentVolumeClaim"), ("claims", "PersistentVolumeClaim"), ("po", "Pod"), ("no", "Node"),
        ("ns", "Namespace"), ("svc", "Service"), ("node-pools", "NodePool"), ("accessrules", "AccessRule"),
    ],
)  # fmt: skip
def test_kinds_are_found_by_every_name(word: str, name: str) -> None:
    """Plurals, short names and other spellings find the kind."""
    assert KINDS.named(word).name == name


def test_unknown_name_lists_the_known_kinds() -> None:
    """The error about an unknown kind lists the known ones."""
    with pytest.raises(Invalid, match=r"unknown kind 'gadgets'; one of: departments, projects, .*leases$"):
        KINDS.named("gadgets")


def test_kind_is_found_by_type_and_by_declaration() -> None:
    """A kind is found by its Python type, and by a manifest's apiVersion and kind."""
    assert KINDS.of(Claim).name == "PersistentVolumeClaim"
    assert KINDS.declared("coordination.k8s.io/v1", "Lease").plural == "leases"
    assert KINDS.declared("aliquot.dev/v1", "Workload").type is Workload


def test_scopes_are_as_designed() -> None:
    """Only workloads, templates and policies are namespaced."""
    assert {kind.name for kind in KINDS if kind.is_custom_resource and kind.namespaced} == {
        "Workload",
        "Template",
        "Policy",
    }


def test_kind_without_status_has_none() -> None:
    """`has_status` agrees with the fields of the type."""
    assert {kind.name for kind in KINDS if kind.has_status != ("status" in type_hints_of(kind.type))} == set()


GOOD = {
    "Project": ["team-a", "a", "a1", "x" * 57],
    "Department": ["research", "d" * 63],
    "NodePool": ["default", "h100"],
    "Workload": ["1st", "train-1", "a" * 50],
    "Template": ["batch.ops", "a" * 253],
    "User": ["ann.lee"],
}
BAD: dict[str, list[object]] = {
    "Project": ["Team", "1a", "-a", "a-", "a_b", "a.b", "é", "x" * 58, "a\n", "", None, 7],
    "Department": ["9", "a.b"],
    "NodePool": ["1h", "A"],
    "Workload": ["a" * 51, "a.b", "a-", "A"],
    "Template": ["a_b", ".a", "a..b", "a" * 254],
    "User": ["Ann", "a@b"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in GOOD.items() for name in names])
def test_good_names_pass(kind: str, name: str) -> None:
    """Valid names are accepted."""
    assert check_name(KINDS.named(kind), name) == name


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in BAD.items() for name in names])
def test_bad_names_are_refused(kind: str, name: object) -> None:
    """Invalid names are refused under metadata.name, with the rule."""
    with pytest.raises(Invalid, match=rf"^{kind.lower()}: metadata\.name: (must|is required)"):
        check_name(KINDS.named(kind), name)


def test_message_about_a_name_has_the_rule() -> None:
    """The message says in words which characters a name may have."""
    with pytest.raises(Invalid, match="lower-case letters, digits and hyphens, a letter first and no hyphen last"):
        check_name(KINDS.named("project"), "Team A")
    with pytest.raises(Invalid, match="must have at most 50 characters, not 60"):
        check_name(KINDS.named("workload"), "a" * 60)


@pytest.mark.parametrize("kind", tuple(KINDS), ids=lambda kind: kind.name)
def test_pattern_in_schemas_is_the_same_rule(kind: object) -> None:
    """Kubernetes refuses the same names as our server."""
    pattern = re.compile(name_pattern(kind))  # type: ignore[arg-type]  # parametrize gives objects

    assert pattern.match("a1")
    assert not pattern.match("A1")
    assert not pattern.match("a_1")
