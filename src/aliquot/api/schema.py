"""Schemas made from the types: JSON Schema for OpenAPI, and the custom resources' structural schemas.

The types are the only source. Pydantic gives the shape; the words come from the classes and the strings under their
fields, which are read from the source code here, when schemas are made, so that no running program carries them.

Two readers, two dialects. OpenAPI 3.1 takes JSON Schema (draft 2020-12) with references. Kubernetes wants a schema
without references in which every value has exactly one type; what only it can say (CEL rules) stands
under `x-crd` in a type's schema, and is left out for everyone else.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from aliquot.api.descriptions import add_descriptions, record_classes
from aliquot.api.kind import Kind
from aliquot.api.kind_table import KINDS
from aliquot.api.serialization import Json, adapter

_COMPONENTS = "#/components/schemas/"


class SchemaWithoutDefaults(GenerateJsonSchema):
    """What is absent has its default, which the words under a field explain; most defaults are "nothing said"."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Json:
        return self.generate_inner(schema["schema"])


def component_schemas() -> Json:
    """One schema per kind, by its name, and those they refer to; for `components.schemas` of OpenAPI 3.1."""
    adapters: Any = [(kind.name, "validation", adapter(kind.type)) for kind in KINDS]
    _, combined = TypeAdapter.json_schemas(
        adapters, ref_template=_COMPONENTS + "{model}", schema_generator=SchemaWithoutDefaults
    )
    found: Json = combined["$defs"]
    add_descriptions(found, [kind.type for kind in KINDS])
    shared = {cls.__name__ for kind in KINDS if not kind.is_custom_resource for cls in record_classes(kind.type)}
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
    schema = adapter(kind.type).json_schema(schema_generator=SchemaWithoutDefaults)
    found: Json = schema.pop("$defs", {})
    add_descriptions(found, [kind.type])
    add_descriptions({kind.type.__name__: schema}, [kind.type])
    parts = {name: _plain(part) for name, part in sorted(found.items())}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_enveloped(kind, _plain(schema)),
        "$defs": parts,
    }


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
