"""Descriptions in schemas: docstrings of the types, and the strings under their fields.

The strings are read from the source code when schemas are generated, so that running programs do not hold them.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from aliquot.api.serialization import Json, type_hints_of


def add_descriptions(schemas: Json, roots: list[type]) -> None:
    """Adds the descriptions of types and fields to the schemas, which are by the name of their type."""
    classes: dict[str, type] = {}
    for root in roots:
        for cls in record_classes(root):
            if classes.setdefault(cls.__name__, cls) is not cls:
                raise TypeError(f"two types are called {cls.__name__}: schemas need one name for each")
    for name, schema in schemas.items():
        cls = classes[name]
        schema["description"] = inspect.cleandoc(cls.__doc__ or "")
        for field, description in _field_descriptions(cls).items():
            schema["properties"][wire_name_in(cls, field)]["description"] = description


def wire_name_in(cls: type, field: str) -> str:
    """The wire name of a field of a record."""
    config = cls.__pydantic_config__  # type: ignore[attr-defined]  # set by serialization.record
    wire_name: Callable[[str], str] = config["alias_generator"]
    return wire_name(field)


def record_classes(root: type) -> Iterator[type]:
    """A record and every record inside it, each once."""
    seen: dict[type, None] = {}
    pending: list[Any] = [root]
    while pending:
        cls = pending.pop()
        if dataclasses.is_dataclass(cls) and isinstance(cls, type):
            if cls not in seen:
                seen[cls] = None
                pending += [type_hints_of(cls)[field.name] for field in dataclasses.fields(cls)]
        else:
            pending += [part for part in typing.get_args(cls) if not isinstance(part, str)]
    return iter(seen)


def _field_descriptions(cls: type) -> Mapping[str, str]:
    descriptions: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        module = sys.modules.get(base.__module__)
        if module is not None and dataclasses.is_dataclass(base):
            descriptions |= _module_descriptions(module).get(base.__name__, {})
    return descriptions


@cache
def _module_descriptions(module: ModuleType) -> dict[str, dict[str, str]]:
    """Class name -> field name -> description."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(module)))
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {node.name: _class_descriptions(node) for node in classes}


def _class_descriptions(node: ast.ClassDef) -> dict[str, str]:
    descriptions = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = text.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                descriptions[field.target.id] = inspect.cleandoc(value.value)
    return descriptions
