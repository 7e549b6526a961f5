"""Schemas that are generated from the types, for OpenAPI and for custom resources."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from aliquot.api import KINDS, Json, Kind
from aliquot.api.crds import crds, structural_schema
from aliquot.api.schema import component_schemas, json_schema

OURS = tuple(kind for kind in KINDS if kind.is_custom_resource)


def parts(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every schema inside a structural schema, with its path."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from parts(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from parts(schema[key], f"{path}[]")


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_every_value_has_one_type(kind: Kind[Any]) -> None:
    """Structural schemas have exactly one type for each value, and no references."""
    for path, part in parts(structural_schema(kind)):
        typed = {"type", "x-kubernetes-int-or-string"} & set(part)
        assert len(typed) == 1, path
        assert not {"$ref", "title", "const", "x-crd", "propertyNames", "oneOf", "allOf"} & set(part), path
        assert "anyOf" not in part or "x-kubernetes-int-or-string" in part, path


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_every_field_has_a_description(kind: Kind[Any]) -> None:
    """Every field that a user can write has a description for `kubectl explain`."""
    undescribed = [
        path
        for path, part in parts(structural_schema(kind))
        if "description" not in part
        and not path.endswith("[]")
        and path not in (".apiVersion", ".kind", ".metadata", ".metadata.name")
    ]

    assert undescribed == []


def test_descriptions_are_sentences_of_one_line() -> None:
    """Descriptions are single lines that end with a full stop."""
    for kind in OURS:
        for path, part in parts(structural_schema(kind)):
            description = part.get("description", "x.")
            assert "\n" not in description, f"{kind.name}{path}"
            assert description.endswith("."), f"{kind.name}{path}: {description}"


def test_only_untyped_maps_accept_unknown_fields() -> None:
    """Kubernetes drops unknown fields except in the two maps that are untyped on purpose."""
    open_fields = {
        f"{kind.name}{path}"
        for kind in OURS
        for path, part in parts(structural_schema(kind))
        if "x-kubernetes-preserve-unknown-fields" in part
    }

    assert open_fields == {"Policy.spec.defaults", "Policy.spec.imposed"}


def test_definition_has_names_columns_and_selectors() -> None:
    """A definition has short name, category, columns, status subresource and selectable fields."""
    definitions = {definition["spec"]["names"]["kind"]: definition for definition in crds()}
    workload = definitions["Workload"]["spec"]
    version = workload["versions"][0]

    assert definitions["Workload"]["metadata"]["name"] == "workloads.aliquot.dev"
    assert workload["names"]["shortNames"] == ["wl"]
    assert workload["names"]["categories"] == ["aliquot"]
    assert workload["names"]["singular"] == "workload"
    assert workload["scope"] == "Namespaced"
    assert version["subresources"] == {"status": {}}
    assert {"jsonPath": ".status.phase"} in version["selectableFields"]
    assert version["additionalPrinterColumns"][0] == {"name": "Type", "type": "string", "jsonPath": ".spec.type"}
    assert set(definitions) == {kind.name for kind in OURS}


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_columns_and_selectors_name_real_fields(kind: Kind[Any]) -> None:
    """Columns and selectors refer to fields that exist."""
    known = {path for path, _ in parts(structural_schema(kind))} | {".metadata.creationTimestamp"}

    assert {column.path.removesuffix("[0]") for column in kind.columns} <= known
    assert {f".{path}" for path in kind.selectable_fields} <= known


def test_rules_are_on_the_schema() -> None:
    """CEL rules are on the fields they check, and not in the status, which only the platform writes."""
    schema = structural_schema(KINDS.named("workload"))
    gpu = schema["properties"]["spec"]["properties"]["compute"]["properties"]["gpu"]

    assert [rule["message"] for rule in gpu["x-kubernetes-validations"]] == [
        "must have at most three decimals",
        "must be a whole number of GPUs, or a fraction of one below 1",
    ]
    assert "x-kubernetes-validations" not in json.dumps(schema["properties"]["status"])


def test_fields_that_are_always_written_are_defaulted() -> None:
    """Fields that users select by have a default on Kubernetes, as in our server."""
    spec = structural_schema(KINDS.named("workload"))["properties"]["spec"]

    assert spec["default"] == {}
    assert spec["properties"]["type"]["default"] == "training"


def test_status_is_not_required() -> None:
    """Only the spec is required, and of the metadata only the name is checked."""
    schema = structural_schema(KINDS.named("accessrule"))

    assert schema["required"] == ["spec"]
    assert schema["properties"]["metadata"] == {
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": schema_pattern("accessrule"), "maxLength": 253}},
    }


def schema_pattern(kind_name: str) -> str:
    pattern: str = structural_schema(KINDS.named(kind_name))["properties"]["metadata"]["properties"]["name"]["pattern"]
    return pattern


def test_components_refer_only_to_each_other() -> None:
    """Every reference in the component schemas resolves, and every kind has a schema."""
    schemas = component_schemas()
    wanted = {part.split('"')[0] for part in json.dumps(schemas).split("#/components/schemas/")[1:]}

    assert wanted <= set(schemas)
    assert {kind.name for kind in KINDS} <= set(schemas)
    assert '"x-' not in json.dumps(schemas)


def test_component_names_its_kind() -> None:
    """The schema of a kind has its apiVersion and kind, and our own kinds accept no unknown fields."""
    schemas = component_schemas()

    assert schemas["Workload"]["properties"]["kind"] == {"const": "Workload"}
    assert schemas["Workload"]["additionalProperties"] is False
    assert schemas["Compute"]["additionalProperties"] is False
    assert "additionalProperties" not in schemas["Pod"]
    assert "additionalProperties" not in schemas["Metadata"]


@pytest.mark.parametrize("kind", tuple(KINDS), ids=lambda kind: kind.name)
def test_single_schema_is_complete(kind: Kind[Any]) -> None:
    """The schema of one kind contains everything that it refers to."""
    schema = json_schema(kind)
    wanted = {part.split('"')[0] for part in json.dumps(schema).split("#/$defs/")[1:]}

    assert wanted <= set(schema["$defs"])
    assert set(schema["properties"]) >= {"apiVersion", "kind", "metadata"}
    assert len(schema["properties"]) == len(dataclasses.fields(kind.type)) + 2
