"""JSON Schema of the API types, for OpenAPI 3.1 and on its own. `crds.py` has the dialect of custom resources.

The types are the only source: pydantic gives the structure, `descriptions.py` the descriptions. Schemas follow JSON
Schema (draft 2020-12) with references. What only custom resources have, such as CEL rules, is under `x-crd` in the
schema of a type, and is removed here.
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
    """Without `default`: the description of a field says what applies when it is absent."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Json:
        return self.generate_inner(schema["schema"])


def component_schemas() -> Json:
    """The schemas of all kinds and of the types inside them, by name; for `components.schemas` of OpenAPI 3.1."""
    adapters: Any = [(kind.name, "validation", adapter(kind.type)) for kind in KINDS]
    _, combined = TypeAdapter.json_schemas(
        adapters, ref_template=_COMPONENTS + "{model}", schema_generator=SchemaWithoutDefaults
    )
    by_type: Json = combined["$defs"]
    add_descriptions(by_type, [kind.type for kind in KINDS])
    open_types = {cls.__name__ for kind in KINDS if not kind.is_custom_resource for cls in record_classes(kind.type)}
    schemas = {}
    for name, schema in by_type.items():
        # Kubernetes' kinds have more fields than our types; our own kinds do not.
        closed = {} if name in open_types else {"additionalProperties": False}
        schemas[name] = {**_without_extensions(schema), **closed}
    for kind in KINDS:
        schemas[kind.name] = _with_envelope(kind, schemas.pop(kind.type.__name__))
    return dict(sorted(schemas.items()))


def json_schema(kind: Kind[Any]) -> Json:
    """JSON Schema of one kind, with the types inside it under `$defs`."""
    schema = adapter(kind.type).json_schema(schema_generator=SchemaWithoutDefaults)
    inner: Json = schema.pop("$defs", {})
    add_descriptions(inner, [kind.type])
    add_descriptions({kind.type.__name__: schema}, [kind.type])
    definitions = {name: _without_extensions(part) for name, part in sorted(inner.items())}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_with_envelope(kind, _without_extensions(schema)),
        "$defs": definitions,
    }


def _with_envelope(kind: Kind[Any], schema: Json) -> Json:
    envelope = {"apiVersion": {"const": kind.api_version}, "kind": {"const": kind.name}}
    return {**schema, "properties": {**envelope, **schema["properties"]}}


def _without_extensions(schema: Any) -> Any:
    """Without `x-` extensions, and without titles, which only repeat names."""
    if isinstance(schema, list):
        return [_without_extensions(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            out[key] = {name: _without_extensions(part) for name, part in value.items()}
        elif key != "title" and not key.startswith("x-"):
            out[key] = _without_extensions(value)
    return out
