"""`aliquot.workload_status` alone writes `Workload.status`.

The test reads the source. Every call outside of the store that writes a status must show the kind of the object, and
that kind must not be Workload. A call whose kind cannot be seen fails too, except in the folders listed here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import aliquot

SOURCE = Path(aliquot.__file__).parent
OWNER = "workload_status.py"
UNKNOWN = "cannot be seen"
# Folders that write statuses of a kind that is a variable: users' requests to the API, and the two Run:ai kinds.
GENERIC = ("server/", "backends/kubernetes/v2alpha1/")


def status_writes(tree: ast.Module) -> Iterator[str]:
    """The kind whose status each call writes."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            status = next((ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "status"), "False")
            if call.func.attr == "update_status":
                yield _kind_of_seen(function, call)
            elif call.func.attr == "patch" and status != "False":
                yield _kind_named(call.args[0]) if call.args else UNKNOWN


def _kind_named(argument: ast.expr) -> str:
    """`KINDS.of(Pod)` or `KINDS.named("Pod")`."""
    if isinstance(argument, ast.Call) and ast.unparse(argument.func) in ("KINDS.of", "KINDS.named"):
        return ast.unparse(argument.args[0]).strip("'\"")
    return UNKNOWN


def _kind_of_seen(function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call) -> str:
    """By the annotation of the parameter `seen=...` names, or the `store.get(Kind, ...)` that it comes from."""
    seen = next((keyword.value for keyword in call.keywords if keyword.arg == "seen"), None)
    if not isinstance(seen, ast.Name):
        return UNKNOWN
    for argument in function.args.args:
        if argument.arg == seen.id and argument.annotation is not None:
            return ast.unparse(argument.annotation)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == seen.id for target in node.targets):
            value = node.value.value if isinstance(node.value, ast.Await) else node.value
            if isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".get") and value.args:
                return ast.unparse(value.args[0])
    return UNKNOWN


def test_one_owner() -> None:
    """The owner writes the status of workloads, and no other module does."""
    writes: dict[str, list[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if not name.startswith("store/"):
            kinds = status_writes(ast.parse(file.read_text()))
            writes[name] = [kind for kind in kinds if kind != UNKNOWN or not name.startswith(GENERIC)]
    assert writes.pop(OWNER) == ["Workload"]
    assert {name: kinds for name, kinds in writes.items() if {"Workload", UNKNOWN} & set(kinds)} == {}
    assert {"Pod", "Node", "Project"} <= {kind for kinds in writes.values() for kind in kinds}


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("await self._store.update_status(replace(work, status=s), seen=work)", "Workload"),
        ("seen = await store.get(Workload, name)\n    await store.update_status(wanted, seen=seen)", "Workload"),
        ("await driver.patch(KINDS.of(Workload), name, space, change, status=True)", "Workload"),
        ("await driver.patch(KINDS.named('Workload'), name, space, change, status=True)", "Workload"),
        ("await driver.patch(kind, name, space, change, status=True)", UNKNOWN),
        ("await store.update_status(wanted, seen=self._seen)", UNKNOWN),
        ("await store.update_status(replace(pod, status=s), seen=pod)", "Pod"),
    ],
)
def test_every_way_to_write_is_seen(statement: str, kind: str) -> None:
    """The check above would fail for each of these."""
    assert list(status_writes(ast.parse(f"async def f(work: Workload, pod: Pod):\n    {statement}\n"))) == [kind]


def test_other_writes_are_not_meant() -> None:
    """A patch of the spec is no write of the status."""
    source = "async def f():\n    await driver.patch(KINDS.of(Workload), name, space, change, version=v)\n"
    assert list(status_writes(ast.parse(source))) == []
