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

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from aliquot.api.base import Json, adapter, field_types
from aliquot.api.kinds import Column, Kind
from aliquot.api.names import name_pattern
from aliquot.api.registry import KINDS
from aliquot.labels import API_GROUP

# Lists that cannot hold the same key twice.
_LIST_KEYS = {"conditions": "type", "environment": "name", "subgroups": "name"}
_COMPONENTS = "#/components/schemas/"


class _WithoutDefaults(GenerateJsonSchema):
    """What is absent has its default, which the words under a field explain; most defaults are "nothing said"."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Json:
        return self.generate_inner(schema["schema"])


def component_schemas() -> Json:
    """One schema per kind, by its name, and those they refer to; for `components.schemas` of OpenAPI 3.1."""
    adapters: Any = [(kind.name, "validation", adapter(kind.type)) for kind in KINDS]
    _, combined = TypeAdapter.json_schemas(
        adapters, ref_template=_COMPONENTS + "{model}", schema_generator=_WithoutDefaults
    )
    found: Json = combined["$defs"]
    _describe(found, [kind.type for kind in KINDS])
    shared = {cls.__name__ for kind in KINDS if not kind.ours for cls in _classes(kind.type)}
    schemas = {}
    for name, schema in found.items():
        # Kubernetes' own kinds have more fields than we know; ours have none but these.
        closed = {} if name in shared else {"additionalProperties": False}
        schemas[name] = {**_plain(schema), **closed}
    for kind in KINDS:
        schemas[kind.name] = _enveloped(kind, schemas.pop(kind.type.__name__))
    return dict(sorted(schemas.items()))


def json_schema(kind: Kind[Any]) -> Json:
    """JSON Schema (draft 2020-12) of one kind, complete in itself."""
    schema = adapter(kind.type).json_schema(schema_generator=_WithoutDefaults)
    found: Json = schema.pop("$defs", {})
    _describe(found, [kind.type])
    _describe({kind.type.__name__: schema}, [kind.type])
    parts = {name: _plain(part) for name, part in sorted(found.items())}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_enveloped(kind, _plain(schema)),
        "$defs": parts,
    }


def crds() -> list[Json]:
    """The custom resource definitions of our own kinds."""
    return [_crd(kind) for kind in KINDS if kind.ours]


def _enveloped(kind: Kind[Any], schema: Json) -> Json:
    envelope = {"apiVersion": {"const": kind.api_version}, "kind": {"const": kind.name}}
    return {**schema, "properties": {**envelope, **schema["properties"]}}


def _plain(schema: Any) -> Any:
    """Without what only Kubernetes reads, and without titles, which say nothing that names do not."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            out[key] = {name: _plain(part) for name, part in value.items()}
        elif key != "title" and not key.startswith("x-"):
            out[key] = _plain(value)
    return out


# --- custom resources


def _crd(kind: Kind[Any]) -> Json:
    version: Json = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": structural(kind)},
        "additionalPrinterColumns": [_printer_column(column) for column in kind.columns],
    }
    if kind.has_status:
        version["subresources"] = {"status": {}}
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": f".{path}"} for path in kind.selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "preserveUnknownFields": False,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.word,
                "shortNames": list(kind.aliases[:1]),
                "categories": ["aliquot"],
            },
            "versions": [version],
        },
    }


def _printer_column(column: Column) -> Json:
    out: Json = {"name": column.title, "type": column.form, "jsonPath": column.path}
    if column.wide:
        out["priority"] = 1
    return out


def structural(kind: Kind[Any]) -> Json:
    """The schema as Kubernetes wants it: no references, one type for every value."""
    schema = adapter(kind.type).json_schema(ref_template="{model}", schema_generator=_WithoutDefaults)
    found: Json = schema.pop("$defs", {})
    _describe(found, [kind.type])
    _describe({kind.type.__name__: schema}, [kind.type])
    out = _inlined(schema, found)
    name = {"type": "string", "pattern": name_pattern(kind), "maxLength": kind.name_length}
    text = {"type": "string"}
    out["properties"] = {
        "apiVersion": text,
        "kind": text,
        **out["properties"],
        "metadata": {"type": "object", "properties": {"name": name}},
    }
    out["required"] = [part for part in out.get("required", ()) if part != "metadata"]
    if not out["required"]:
        del out["required"]
    # Only we write the status; rules there would cost every write of ours and help nobody.
    _drop_rules(out["properties"].get("status", {}))
    _add_defaults(kind, out)
    for path, rule, message in kind.rules:
        _at(out, path).setdefault("x-kubernetes-validations", []).append({"rule": rule, "message": message})
    return out


def _drop_rules(schema: Any) -> None:
    if isinstance(schema, dict):
        schema.pop("x-kubernetes-validations", None)
        for part in schema.values():
            _drop_rules(part)


def _add_defaults(kind: Kind[Any], schema: Json) -> None:
    """Fields that `encode` always writes are there on Kubernetes too, so that columns and selectors see them."""
    for path in getattr(kind.type, "ALWAYS", ()):
        part, cls, default = schema, kind.type, None
        for name in path.split("."):
            default = _default(cls, name)
            part, cls = part["properties"][name], type(default)
            # A default inside an absent object counts only if the object is there by default too.
            part["default"] = {} if dataclasses.is_dataclass(cls) else default


def _default(cls: type, wire: str) -> Any:
    named = {_wire(cls, field.name): field for field in dataclasses.fields(cls)}
    return named[wire].default


def _at(schema: Json, path: str) -> Json:
    for name in path.split(".") if path else ():
        schema = schema["properties"][name]
    return schema


def _inlined(schema: Json, found: Json) -> Json:
    if "$ref" in schema:
        words = {key: value for key, value in schema.items() if key == "description"}
        return {**_inlined(found[schema["$ref"]], found), **words}
    if "anyOf" in schema and "x-kubernetes-int-or-string" not in schema:
        # Absent is how Kubernetes says null, so `X or null` is X.
        real = [part for part in schema["anyOf"] if part.get("type") != "null"]
        if len(real) != 1:
            raise TypeError(f"a custom resource cannot have a field of several types: {schema}")
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "title")}
        return {**_inlined(real[0], found), **rest}
    return _translated(schema, found)


def _translated(schema: Json, found: Json) -> Json:
    out: Json = {}
    for key, value in schema.items():
        match key:
            case "title" | "x-crd" | "propertyNames":
                continue
            case "properties":
                out[key] = {name: _keyed(name, _inlined(part, found)) for name, part in value.items()}
            case "items":
                out[key] = _inlined(value, found)
            case "additionalProperties" if isinstance(value, dict):
                out[key] = _inlined(value, found)
            case "additionalProperties" if value is True:
                out["x-kubernetes-preserve-unknown-fields"] = True
            case "const":
                out["enum"] = [value]
            case "exclusiveMinimum" | "exclusiveMaximum":
                out[key], out[f"{key[9:].lower()}"] = True, value
            case _:
                out[key] = value
    if out.get("type") == "integer":
        out = {"format": "int64", **{key: value for key, value in out.items() if abs(_number(value)) < 2**63 - 1}}
    return {**out, **schema.get("x-crd", {})}


def _keyed(name: str, schema: Json) -> Json:
    """Lists whose items have names of their own are merged item by item by `kubectl apply`."""
    key = _LIST_KEYS.get(name)
    if key is None or key not in schema.get("items", {}).get("required", ()):
        return schema
    return {**schema, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


# --- words


def _describe(found: Json, roots: list[type]) -> None:
    """Puts the words of classes and fields into their schemas."""
    classes: dict[str, type] = {}
    for root in roots:
        for cls in _classes(root):
            if classes.setdefault(cls.__name__, cls) is not cls:
                raise TypeError(f"two types are called {cls.__name__}: schemas need one name for each")
    for name, schema in found.items():
        cls = classes[name]
        schema["description"] = inspect.cleandoc(cls.__doc__ or "")
        for field, words in _field_words(cls).items():
            schema["properties"][_wire(cls, field)]["description"] = words


def _wire(cls: type, field: str) -> str:
    names: Callable[[str], str] = cls.__pydantic_config__["alias_generator"]  # type: ignore[attr-defined]  # see base.record
    return names(field)


def _classes(cls: type) -> Iterator[type]:
    """A record and every record inside it, each once."""
    seen: dict[type, None] = {}
    waiting: list[Any] = [cls]
    while waiting:
        here = waiting.pop()
        if dataclasses.is_dataclass(here) and isinstance(here, type):
            if here not in seen:
                seen[here] = None
                waiting += [field_types(here)[field.name] for field in dataclasses.fields(here)]
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
