"""Schemas made from the types: JSON Schema for OpenAPI, and the custom resources' structural schemas.

The types are the only source. Pydantic gives the shape; the words come from the classes and the strings under their
fields, which are read from the source code here, when schemas are made, so that no running program carries them.

Two readers, two dialects. OpenAPI 3.1 takes JSON Schema (draft 2020-12) with references. Kubernetes wants a schema
without references in which every value has exactly one type; what only it can say (CEL rules) stands
under `x-crd` in a type's schema, and is left out for everyone else.
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


def add_descriptions(found: Json, roots: list[type]) -> None:
    """Puts the words of classes and fields into their schemas."""
    classes: dict[str, type] = {}
    for root in roots:
        for cls in record_classes(root):
            if classes.setdefault(cls.__name__, cls) is not cls:
                raise TypeError(f"two types are called {cls.__name__}: schemas need one name for each")
    for name, schema in found.items():
        cls = classes[name]
        schema["description"] = inspect.cleandoc(cls.__doc__ or "")
        for field, words in _field_words(cls).items():
            schema["properties"][wire_name_in(cls, field)]["description"] = words


def wire_name_in(cls: type, field: str) -> str:
    names: Callable[[str], str] = cls.__pydantic_config__["alias_generator"]  # type: ignore[attr-defined]  # see base.record
    return names(field)


def record_classes(cls: type) -> Iterator[type]:
    """A record and every record inside it, each once."""
    seen: dict[type, None] = {}
    waiting: list[Any] = [cls]
    while waiting:
        here = waiting.pop()
        if dataclasses.is_dataclass(here) and isinstance(here, type):
            if here not in seen:
                seen[here] = None
                waiting += [type_hints_of(here)[field.name] for field in dataclasses.fields(here)]
        else:
            waiting += [part for part in typing.get_args(here) if not isinstance(part, str)]
    return iter(seen)


def _field_words(cls: type) -> Mapping[str, str]:
    words: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        module = sys.modules.get(base.__module__)
        if module is not None and dataclasses.is_dataclass(base):
            words |= _words_of_module(module).get(base.__name__, {})
    return words


@cache
def _words_of_module(module: ModuleType) -> dict[str, dict[str, str]]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(module)))
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {node.name: _words_of_class(node) for node in classes}


def _words_of_class(node: ast.ClassDef) -> dict[str, str]:
    words = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = text.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                words[field.target.id] = inspect.cleandoc(value.value)
    return words
