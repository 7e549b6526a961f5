"""The server has no rules for single kinds: those are rows of the table of kinds, or hooks of admission."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from aliquot.admission.hooks import HOOKS
from aliquot.api import KINDS

SERVER = Path(__file__).parents[3] / "src/aliquot/server"


def decisions_by_name(source: str) -> list[str]:
    """Expressions that compare the name of a kind, by an operator or by `match`."""
    decisions = []
    for node in ast.walk(ast.parse(source)):
        operands = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if isinstance(node, ast.Match):
            operands = [node.subject]
        if any(_is_name_of_kind(operand) for operand in operands):
            decisions.append(ast.unparse(node).partition("\n")[0])
    return decisions


def _is_name_of_kind(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Attribute) and node.attr == "name"):
        return False
    owner = node.value
    return (isinstance(owner, ast.Name) and owner.id == "kind") or (
        isinstance(owner, ast.Attribute) and owner.attr == "kind"
    )


@pytest.mark.parametrize("path", sorted(SERVER.glob("*.py")), ids=lambda path: path.name)
def test_the_server_does_not_compare_names_of_kinds(path: Path) -> None:
    """A new kind needs no code in the server."""
    assert decisions_by_name(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        'if kind.name == "Token": pass',
        'if kind.name != "Project": pass',
        'if kind.name in ("User", "Token"): pass',
        "if target.kind.name in TABLE: pass",
        'match kind.name:\n    case "Project": pass',
    ],
)
def test_comparisons_are_found(source: str) -> None:
    """The check above finds every form of such a rule."""
    assert len(decisions_by_name(source)) == 1


def test_hooks_belong_to_kinds_that_exist() -> None:
    """A misspelt kind in the table of hooks would have no effect."""
    assert HOOKS.keys() <= {kind.name for kind in KINDS}
