"""Schemas made from the types: JSON Schema for OpenAPI, and the custom resources' structural schemas.

The types are the only source. Pydantic gives the shape; the words come from the classes and the strings under their
fields, which are read from the source code here, when schemas are made, so that no running program carries them.

Two readers, two dialects. OpenAPI 3.1 takes JSON Schema (draft 2020-12) with references. Kubernetes wants a schema
without references in which every value has exactly one type; what only it can say (CEL rules) stands
under `x-crd` in a type's schema, and is left out for everyone else.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from aliquot.api.descriptions import add_descriptions, wire_name_in
from aliquot.api.kind import Column, Kind
from aliquot.api.kind_table import KINDS
from aliquot.api.object_names import name_pattern
from aliquot.api.schema import SchemaWithoutDefaults
from aliquot.api.serialization import Json, adapter
from aliquot.labels import API_GROUP

# Lists that cannot hold the same key twice.
_LIST_KEYS = {"conditions": "type", "environment": "name", "subgroups": "name"}


def crds() -> list[Json]:
    """The custom resource definitions of our own kinds."""
    return [_crd(kind) for kind in KINDS if kind.is_custom_resource]


def _crd(kind: Kind[Any]) -> Json:
    version: Json = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": structural_schema(kind)},
        "additionalPrinterColumns": [_printer_column(column) for column in kind.columns],
    }
    if kind.has_status:
        version["subresources"] = {"status": {}}
    if kind.selectable_fields:
        version["selectableFields"] = [{"jsonPath": f".{path}"} for path in kind.selectable_fields]
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
                "singular": kind.singular,
                "shortNames": list(kind.aliases[:1]),
                "categories": ["aliquot"],
            },
            "versions": [version],
        },
    }


def _printer_column(column: Column) -> Json:
    out: Json = {"name": column.title, "type": column.value_type, "jsonPath": column.path}
    if column.wide:
        out["priority"] = 1
    return out


def structural_schema(kind: Kind[Any]) -> Json:
    """The schema as Kubernetes wants it: no references, one type for every value."""
    schema = adapter(kind.type).json_schema(ref_template="{model}", schema_generator=SchemaWithoutDefaults)
    found: Json = schema.pop("$defs", {})
    add_descriptions(found, [kind.type])
    add_descriptions({kind.type.__name__: schema}, [kind.type])
    out = _inlined(schema, found)
    name = {"type": "string", "pattern": name_pattern(kind), "maxLength": kind.max_name_length}
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
    for path, rule, message in kind.cel_rules:
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
    named = {wire_name_in(cls, field.name): field for field in dataclasses.fields(cls)}
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
