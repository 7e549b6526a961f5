"""Custom resource definitions of our own kinds, generated from the API types.

Kubernetes requires structural schemas: without references, and with exactly one type for every value. Extensions that
only custom resources have, such as CEL rules, come from `x-crd` in the schema of a type.
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

# Lists whose items are unique by this field.
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
    printer_column: Json = {"name": column.title, "type": column.value_type, "jsonPath": column.path}
    if column.wide:
        printer_column["priority"] = 1
    return printer_column


def structural_schema(kind: Kind[Any]) -> Json:
    """The structural schema of a kind."""
    schema = adapter(kind.type).json_schema(ref_template="{model}", schema_generator=SchemaWithoutDefaults)
    definitions: Json = schema.pop("$defs", {})
    add_descriptions(definitions, [kind.type])
    add_descriptions({kind.type.__name__: schema}, [kind.type])
    out = _inlined(schema, definitions)
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
    # Only the platform writes the status. Rules there would only make its writes slower.
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
    """Defaults for the fields that `encode` always writes, so that columns and selectors on Kubernetes find them."""
    for path in getattr(kind.type, "ALWAYS", ()):
        part, cls, default = schema, kind.type, None
        for name in path.split("."):
            default = _default(cls, name)
            part, cls = part["properties"][name], type(default)
            # Kubernetes applies a default inside an object only if the object itself is present or has a default.
            part["default"] = {} if dataclasses.is_dataclass(cls) else default


def _default(cls: type, wire_name: str) -> Any:
    fields = {wire_name_in(cls, field.name): field for field in dataclasses.fields(cls)}
    return fields[wire_name].default


def _at(schema: Json, path: str) -> Json:
    for name in path.split(".") if path else ():
        schema = schema["properties"][name]
    return schema


def _inlined(schema: Json, definitions: Json) -> Json:
    """The schema with every reference replaced by what it refers to."""
    if "$ref" in schema:
        description = {key: value for key, value in schema.items() if key == "description"}
        return {**_inlined(definitions[schema["$ref"]], definitions), **description}
    if "anyOf" in schema and "x-kubernetes-int-or-string" not in schema:
        # In a custom resource an absent field stands for null, so `X or null` is X.
        types = [part for part in schema["anyOf"] if part.get("type") != "null"]
        if len(types) != 1:
            raise TypeError(f"a custom resource cannot have a field of several types: {schema}")
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "title")}
        return {**_inlined(types[0], definitions), **rest}
    return _translated(schema, definitions)


def _translated(schema: Json, definitions: Json) -> Json:
    """The keywords of JSON Schema as those of structural schemas."""
    out: Json = {}
    for key, value in schema.items():
        match key:
            case "title" | "x-crd" | "propertyNames":
                continue
            case "properties":
                out[key] = {name: _with_list_key(name, _inlined(part, definitions)) for name, part in value.items()}
            case "items":
                out[key] = _inlined(value, definitions)
            case "additionalProperties" if isinstance(value, dict):
                out[key] = _inlined(value, definitions)
            case "additionalProperties" if value is True:
                out["x-kubernetes-preserve-unknown-fields"] = True
            case "const":
                out["enum"] = [value]
            case "exclusiveMinimum" | "exclusiveMaximum":
                out[key], out[f"{key[9:].lower()}"] = True, value
            case _:
                out[key] = value
    if out.get("type") == "integer":
        out = {"format": "int64", **{key: value for key, value in out.items() if abs(_as_number(value)) < 2**63 - 1}}
    return {**out, **schema.get("x-crd", {})}


def _with_list_key(name: str, schema: Json) -> Json:
    """Marks lists whose items have a key, so that `kubectl apply` merges them item by item."""
    key = _LIST_KEYS.get(name)
    if key is None or key not in schema.get("items", {}).get("required", ()):
        return schema
    return {**schema, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _as_number(value: object) -> int:
    return value if isinstance(value, int) else 0
